"""What Tab suggests: names of the cluster, and nothing, silently, where there is none."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tests.cli.runner import ENVIRONMENT, Command
from txnlog.cli.app import app


def suggested(line: str, root: str = "") -> list[str]:
    """The suggestions of bash's protocol for a line, whose last word is being typed."""
    env = {
        **ENVIRONMENT,
        "TXNLOG_ROOT": root,
        "_TXNLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    result = CliRunner().invoke(app, env=env, prog_name="txnlog")
    assert result.stderr == ""
    return [word for word in result.stdout.split("\n") if word]


def test_names_of_the_cluster_are_suggested(command: Command) -> None:
    """Topics, groups and transactional ids, by the root of the environment or of the line."""
    for name in ("orders", "orders-by-day", "stock"):
        command.ok("topics", "create", "-t", name, "--partitions", "1")
    command.ok("produce", "-t", "orders", "--transactional-id", "shop", input=b"1\n")
    command.ok("consume", "-t", "orders", "-g", "audit", "--from-beginning", "-n", "1")
    root = command.root
    for line in ("topics describe -t ord", "consume --topic ord", "topics --describe -t ord"):
        assert suggested(f"txnlog {line}", root) == ["orders", "orders-by-day"], line
    assert suggested(f"txnlog --root {root} configs alter -t s") == ["stock"]
    assert suggested(f"txnlog topics delete --root {root} -t s") == ["stock"]
    assert suggested("txnlog groups describe -g ", root) == ["audit"]
    assert suggested("txnlog groups --describe --group a", root) == ["audit"]
    assert suggested("txnlog transactions abort --transactional-id s", root) == ["shop"]
    assert suggested("txnlog dump --transactional-id ", root) == ["shop"]


def test_names_that_need_no_cluster_are_suggested() -> None:
    """Commands, options, configurations, states."""
    assert suggested("txnlog top") == ["topics"]
    assert suggested("txnlog groups reset-offsets --by") == ["--by-duration"]
    assert suggested("txnlog configs alter -t t --delete-config retention.b") == ["retention.bytes"]
    assert suggested("txnlog topics create --config retention.b") == ["retention.bytes="]
    assert suggested("txnlog transactions list --state On") == ["Ongoing"]
    assert suggested("txnlog consume --isolation-level read_u") == ["read_uncommitted"]


def test_without_a_readable_cluster_nothing_is_suggested_and_nothing_created(
    tmp_path: Path,
) -> None:
    """An error in the middle of a line that is being typed would destroy the line."""
    assert suggested("txnlog topics describe -t ") == []
    assert suggested("txnlog topics describe -t ", str(tmp_path / "none")) == []
    assert suggested("txnlog --storage secret topics describe -t ", str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
