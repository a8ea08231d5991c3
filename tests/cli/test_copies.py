"""`txnlog backup` and `txnlog clone`, as an operator types them."""

from __future__ import annotations

from pathlib import Path

from tests.cli.runner import Command


def test_root_is_backed_up_restored_and_cloned(command: Command, tmp_path: Path) -> None:
    """Paths may be relative; scripts read what was copied; an error says what to do."""
    command.ok("topics", "create", "-t", "t")
    root, backup, clone = command.root, str(tmp_path / "backup"), str(tmp_path / "clone")
    made = command.ok("backup", root, backup)
    assert made.startswith("Copied 1 topics, 0 groups and 0 transactional ids as of 20")
    found = command.json("clone", backup, clone, "--deep")
    assert found["topics"] == 1
    assert found["bytes_copied"] == 0
    assert found["tables"] == []
    assert command.json("backup", backup, str(tmp_path / "restored"))["cluster_id"] not in (
        found["cluster_id"],
        command.json("backup", root, backup)["cluster_id"],
    )
    assert "Choose an empty place" in command.fails("backup", clone, backup)
    assert "cannot be copied into itself" in command.fails("backup", root, f"{root}/copy")
    assert "There is no folder" in command.fails("backup", str(tmp_path / "nowhere"), backup)
