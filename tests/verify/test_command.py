"""`txnlog verify`: exit codes, output, and that it writes nothing."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.verify.damage import DAMAGES
from tests.verify.roots import (
    ORDERS,
    STOCK,
    append,
    batches,
    checkpoint_file,
    checkpoints,
    commit_file,
    halve,
    verified,
)
from txnlog.admin import AdminClient
from txnlog.cli.app import app
from txnlog.errors import StorageError, UnknownTopicOrPartitionError
from txnlog.protocol.verification.findings import FINDINGS_PER_KIND_MAX, FindingKind
from txnlog.storage.delta.actions import Remove
from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying import verifier
from txnlog.verifying.report import VerifySettings


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes here: the second look need not wait."""
    monkeypatch.setattr(verifier, "SECOND_PASS_MS", 0)


def run(root: str, *args: str) -> Any:
    return CliRunner().invoke(
        app, ["--root", root, "verify", *args], env={"NO_COLOR": "1", "TERM": "dumb"}
    )


def test_a_clean_root_ends_with_0_and_changes_nothing(root: str) -> None:
    """A check that writes may damage what it checks, and cannot run with read-only rights."""

    def state() -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(root):
            for name in names:
                status = os.stat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = status.st_mtime_ns, status.st_size
        return found

    before = state()
    result = run(root, "--deep")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout.endswith("0 errors, 0 warnings.\n")
    assert state() == before


def test_damage_ends_with_1_and_advice(root: str) -> None:
    """In text for people, in JSON for programs."""
    path = Path(root, ORDERS, batches(root, ORDERS, 0)[2].path)
    path.unlink()
    result = run(root)
    assert result.exit_code == 1
    assert path.name in result.stdout
    assert "file missing: Restore this very file from a backup" in result.stdout
    result = run(root, "--output", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["damaged"]
    assert found["counts"] == {"FILE_MISSING": 1}
    [finding] = found["findings"]
    assert finding["file"] == f"{ORDERS}/{path.name}"
    assert finding["severity"] == "error"
    assert finding["advice"]


FILE_DAMAGES = ("data file deleted", "data file halved", "data file replaced by another topic's")


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", FILE_DAMAGES)
def test_a_damaged_file_is_one_row_with_its_offsets(root: str, name: str, deep: bool) -> None:
    """The listing and the bytes are two checks of one file: an operator counts losses by rows."""
    add = batches(root, ORDERS, 0)[3]
    values = add.partition_values
    first, last = int(values["base_offset"] or 0), int(values["last_offset"] or 0)
    next(damage for damage in DAMAGES if damage.name == name).plant(root)
    result = run(root, *(["--deep"] if deep else []))
    row, _, advice, command, *_ = result.stdout.splitlines()[1:]
    where = f"{ORDERS}/{add.path}, partition 0, offsets {first}..{last}, 1 records"
    assert where in row
    assert advice.startswith("file ")
    paste = f"topics delete-records --topic={ORDERS} -p 0 --offset {last + 1}"
    assert command == f"    txnlog --root={root} {paste}"
    assert "1 errors, 0 warnings." in result.stdout
    [told] = json.loads(run(root, "--output", "json").stdout)["findings"]
    assert (told["offset"], told["lastOffset"], told["records"]) == (first, last, 1)
    assert told["command"] == f"txnlog {paste}"


def test_a_hanging_transaction_is_one_row(root: str) -> None:
    """It has a batch in each partition; one command ends it."""
    next(damage for damage in DAMAGES if damage.name == "newest commit deleted").plant(root)
    [found] = [
        finding
        for finding in verified(root).findings
        if finding.kind is FindingKind.HANGING_TRANSACTION
    ]
    assert "2 undecided batches of producer" in found.what
    assert ": offsets of partition 0 31..31, partition 1 " in found.what


@pytest.mark.parametrize(
    "name",
    [
        "data file deleted",
        "data file zeroed",
        "batch removed in the middle",
        "hanging transaction",
        "offset beyond the end",
        "offset of a deleted topic",
        "offset of no topic",
        "offset of no partition",
    ],
)
def test_pasted_command_ends_the_damage(root: str, name: str) -> None:
    """A command that was never run may fail, or end something else.

    Housekeeping removes the files below the log start.
    """
    damage = next(damage for damage in DAMAGES if damage.name == name)
    damage.plant(root)
    before = verified(root, deep=damage.deep).findings
    commands = [finding.command for finding in before if finding.kind in damage.kinds]
    for command in commands:
        program, *words = shlex.split(command)
        result = CliRunner().invoke(app, ["--root", root, *words])
        assert (program, result.exit_code) == ("txnlog", 0), result.output
    assert CliRunner().invoke(app, ["--root", root, "housekeeping", "--once"]).exit_code == 0
    left = {finding.kind for finding in verified(root, deep=damage.deep).findings}
    assert commands
    assert not left & set(damage.kinds)


def test_warnings_alone_end_with_0(root: str) -> None:
    """A stale hint is no reason to wake an operator."""
    Path(root, ORDERS, "_delta_log", "_last_checkpoint").write_text("{")
    result = run(root)
    assert result.exit_code == 0
    assert "warning" in result.stdout
    assert "hint wrong" in result.stdout


def test_unreadable_table_ends_with_2(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No damage found is not the same as no damage."""
    assert run(f"{root}/nowhere").exit_code == 2
    Path(root, "empty").mkdir()
    assert run(f"{root}/empty").exit_code == 2
    assert run(root, "-t", "nowhere").exit_code == 2
    get = ObjectStore.get

    def refuse(store: ObjectStore, path: str) -> bytes:
        if path.startswith(f"{STOCK}/"):
            raise StorageError("the store is out of order")
        return get(store, path)

    monkeypatch.setattr(ObjectStore, "get", refuse)
    result = run(root)
    assert result.exit_code == 2
    assert f"Could not read {STOCK}: the store is out of order" in result.stdout


def test_one_topic_is_checked_against_references_of_other_tables(root: str) -> None:
    """Damage elsewhere is not reported; a lost marker is, though the rows are in other tables."""
    halve(Path(root, ORDERS, batches(root, ORDERS, 0)[2].path))
    assert not len(verified(root, topics=[STOCK]).findings)
    [finding] = verified(root, topics=[ORDERS]).findings
    assert finding.kind is FindingKind.FILE_SIZE_WRONG
    lost = next(damage for damage in DAMAGES if damage.name == "older copy of a topic")
    lost.plant(root)
    kinds = {finding.kind for finding in verified(root, topics=[STOCK]).findings}
    assert FindingKind.MARKER_MISSING in kinds


def test_since_skips_older_files(root: str) -> None:
    """An hourly run need not read a year of log files."""
    first, newest = checkpoints(root, ORDERS)
    add = batches(root, ORDERS, 0)[2]
    Path(root, ORDERS, add.path).unlink()
    halve(checkpoint_file(root, ORDERS, first))
    halve(commit_file(root, ORDERS, first - 2))
    old_s = time.time() - 3600
    for version in range(newest + 1):
        os.utime(commit_file(root, ORDERS, version), (old_s, old_s))
    for version in (first, newest):
        os.utime(checkpoint_file(root, ORDERS, version), (old_s, old_s))
    since_ms = int(time.time() * 1000) + 3_600_000
    assert len(verified(root).findings) > 2
    found = verified(root, since_ms=since_ms, topics=[ORDERS])
    assert not len(found.findings), found.findings.kept
    assert run(root, "--since", "2100-01-01T00:00:00", "-t", ORDERS).exit_code == 0


def test_findings_are_bounded_and_counted(root: str) -> None:
    """A million findings would fill the memory without use."""
    template = batches(root, ORDERS, 0)[2]
    names = [f"part-0-{number}.parquet" for number in range(FINDINGS_PER_KIND_MAX + 50)]
    append(root, ORDERS, [Remove(template.path, 1), *(replace(template, path=n) for n in names)])
    found = verified(root)
    kind = FindingKind.FILE_MISSING
    kept = [finding for finding in found.findings if finding.kind is kind]
    assert len(kept) == FINDINGS_PER_KIND_MAX
    assert found.findings.counts[kind, ORDERS] == FINDINGS_PER_KIND_MAX + 50


def test_a_damaged_cluster_table_hides_nothing_else(root: str) -> None:
    """Verify must work on roots that clients cannot open."""
    halve(commit_file(root, "__cluster", 0))
    for version in checkpoints(root, "__cluster"):
        halve(checkpoint_file(root, "__cluster", version))
    Path(root, ORDERS, batches(root, ORDERS, 0)[2].path).unlink()
    kinds = {finding.kind for finding in verified(root).findings}
    assert {FindingKind.COMMIT_DAMAGED, FindingKind.CHECKPOINT_DAMAGED} < kinds
    assert FindingKind.FILE_MISSING in kinds


def test_the_admin_client_returns_a_future(root: str) -> None:
    """As its other calls do."""
    admin = AdminClient({"txnlog.root": root})
    assert not admin.verify().result().is_damaged
    failed = admin.verify(VerifySettings(topics=["nowhere"]))
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        failed.result()
