"""`txnlog repair`: what it says, its exit codes, and each kind of damage that it mends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cases import Some
from tests.repair.checking import check_clean
from tests.verify.damage import DAMAGES
from tests.verify.planting import Damage
from tests.verify.roots import (
    OFFSETS,
    ORDERS,
    batches,
    checkpoint_file,
    checkpoints,
    commit_file,
    commits,
    halve,
    live,
    shard_of,
    verified,
    zero,
)
from txnlog.admin import AdminClient, NewTopic
from txnlog.cli.app import app
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import ConcurrentTransactionsError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.repair.facts import LEAP
from txnlog.protocol.verification.findings import KINDS, Severity
from txnlog.protocol.verification.findings import FindingKind as K
from txnlog.repairing.repair import Repair
from txnlog.storage.store.objects import ObjectStore

CONTRADICTIONS = {
    K.BATCHES_OVERLAP,
    K.BOUND_WRONG,
    K.COPY_UNFINISHED,
    K.HEADER_UNREADABLE,
    K.OFFSETS_MISSING,
    K.PARTITION_UNKNOWN,
    K.PRODUCER_ID_SHARED,
    K.ROW_IN_WRONG_SHARD,
    K.ROW_REPEATED,
    K.ROW_UNREADABLE,
    K.ROW_WENT_BACK,
    K.SEQUENCE_GAP,
    K.SEQUENCE_REPEATED,
    K.TABLE_ID_SHARED,
    K.TABLE_ID_WRONG,
    K.TABLE_UNSUPPORTED,
}
"""What whole commits say, or whole folders: no power cut leaves that, and no repair mends it; and a
copy that is under way."""


def one_of_each() -> list[Damage]:
    """For each kind of finding, the first damage that shows it."""
    found: dict[K, Damage] = {}
    for damage in DAMAGES:
        if damage.name != "settled without a marker":
            found.setdefault(damage.kinds[0], damage)
    return [damage for kind, damage in found.items() if kind not in CONTRADICTIONS]


def run(root: str, *args: str) -> Any:
    return CliRunner().invoke(
        app,
        ["--root", root, "repair", "--watch-seconds", "0", *args],
        env={"NO_COLOR": "1", "TERM": "dumb"},
    )


def state(root: str) -> dict[str, tuple[int, int]]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = status.st_mtime_ns, status.st_size
    return found


def test_damage_that_verify_finds_is_mended(
    built_root: Path, tmp_path: Path, some: Some[Damage]
) -> None:
    """Each kind of damage but contradictions of whole commits."""
    for number, damage in enumerate(some(one_of_each())):
        print(damage.name)
        root = str(shutil.copytree(built_root, tmp_path / str(number)))
        damage.plant(root)
        assert run(root, "--yes").exit_code == 0
        check_clean(root)


def test_advice_of_verify_names_the_repair_where_it_mends() -> None:
    """Without a backup the other advice was to restore one."""
    mended = {damage.kinds[0] for damage in one_of_each()}
    named = {kind for kind, text in KINDS.items() if "`txnlog repair`" in text.advice}
    assert named <= mended
    errors = {kind for kind in mended if KINDS[kind].severity is Severity.ERROR}
    # One command ends it, while clients run.
    assert errors - named == {K.HANGING_TRANSACTION}


def test_whole_root_ends_with_0_and_is_not_changed(root: str) -> None:
    """A repair of a root that is whole would take away its history."""
    before = state(root)
    for args in ((), ("--yes",)):
        result = run(root, *args)
        assert result.exit_code == 0, result.output
        assert "nothing to repair" in result.stdout
    assert state(root) == before


def test_dry_run_ends_with_1_and_writes_nothing(root: str) -> None:
    """An operator sees what is lost before anything is taken away."""
    zero(commit_file(root, ORDERS, commits(root, ORDERS)[-1]))
    before = state(root)
    result = run(root)
    assert result.exit_code == 1
    assert "Nothing was written. Stop all clients" in result.stdout
    assert state(root) == before


def test_repair_says_what_is_lost_and_where_it_keeps_it(root: str) -> None:
    """In text for people, in JSON for programs; then there is nothing left to do."""
    newest = commits(root, ORDERS)[-1]
    halve(commit_file(root, ORDERS, newest))
    would = json.loads(run(root, "--output", "json").stdout)
    result = run(root, "--yes", "--output", "json")
    assert result.exit_code == 0, result.output
    did = json.loads(result.stdout)
    assert did["isDone"]
    [damaged] = did["damaged"]
    assert damaged["table"] == ORDERS
    assert (damaged["keptVersion"], damaged["lostCommits"]) == (newest - 1, 1)
    assert damaged["newVersion"] == newest + LEAP
    assert did["offsets"] == would["offsets"]
    kept = Path(root, did["folder"], "cut", f"{ORDERS}/_delta_log/{newest:020}.json")
    assert kept.exists()
    assert run(root).exit_code == 0
    check_clean(root)


def test_control_characters_of_ids_are_shown_escaped(root: str) -> None:
    """An id may hold what a terminal obeys; JSON stays exact."""
    name = "evil\x1b[2J\n"
    config = {"txnlog.root": root}
    producer = Producer({**config, "transactional.id": name})
    producer.init_transactions()
    with producer.transaction():
        producer.produce(ORDERS, b"x", partition=0)
    producer.close()
    [added] = batches(root, ORDERS, 0)[-1:]
    zero(Path(root, ORDERS, added.path))
    assert "evil\\x1b[2J\\x0a" in run(root).stdout
    assert "\x1b" not in run(root).stdout
    [one] = json.loads(run(root, "--output", "json").stdout)["transactions"]
    assert (one["transactionalId"], one["outcome"]) == (name, "lost")


def test_topic_of_which_nothing_is_whole_is_deleted_and_can_be_created_again(root: str) -> None:
    """Its log goes on above all offsets that anybody can have read."""
    config = {"txnlog.root": root}
    producer = Producer({**config})
    producer.produce("young", b"lost", partition=0)
    producer.close()
    for version in commits(root, "young"):
        zero(commit_file(root, "young", version))
    assert run(root, "--yes").exit_code == 0
    check_clean(root)
    producer = Producer({**config})
    producer.produce("young", b"new", partition=0)
    producer.flush()
    producer.close()
    consumer = Consumer({**config, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("young", 0)])
    [message] = consumer.consume(2, 1)
    assert message.value() == b"new"
    assert message.offset() >= 10**12
    consumer.close()


@pytest.mark.parametrize("kind", ["FIFO", "folder", "broken link", "link to itself"])
@pytest.mark.parametrize("place", ["commit", "checkpoint", "file"])
def test_what_is_no_file_is_taken_away(root: str, kind: str, place: str) -> None:
    """It cannot be read, synced or opened; without it the repair would never end."""
    path = {
        "commit": commit_file(root, ORDERS, commits(root, ORDERS)[-2]),
        "checkpoint": checkpoint_file(root, ORDERS, checkpoints(root, ORDERS)[-1]),
        "file": Path(root, ORDERS, batches(root, ORDERS, 0)[-1].path),
    }[place]
    path.unlink()
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "broken link":
            path.symlink_to("nowhere")
        case _:
            path.symlink_to(path.name)
    assert any(one.file == str(path.relative_to(root)) for one in verified(root).findings)
    assert run(root, "--yes").exit_code == 0
    check_clean(root)


def test_log_whose_first_commit_has_no_protocol_is_repaired(root: str) -> None:
    """An older or newer commit was restored under its name."""
    admin = AdminClient({"txnlog.root": root})
    admin.create_topics([NewTopic("young", 1)])["young"].result()
    admin.delete_topics(["young"])["young"].result()
    first, newest = (commit_file(root, "young", commits(root, "young")[at]) for at in (0, -1))
    shutil.copy(newest, first)
    assert run(root, "--yes").exit_code == 0
    check_clean(root)


def test_records_of_a_lost_commit_that_a_segment_has_are_not_doubled(root: str) -> None:
    """The segment's commit is whole, and says which files it merged."""
    producer = Producer({"txnlog.root": root, "transactional.id": "merged"})
    producer.init_transactions()
    for number in range(4):
        with producer.transaction():
            producer.produce(ORDERS, f"value {number}", partition=1)
    lost, path = commits(root, ORDERS)[-3], batches(root, ORDERS, 1)[-3].path
    assert Compactor(Cluster.open(root)).step()
    assert path not in live(root, ORDERS)
    zero(commit_file(root, ORDERS, lost))
    assert run(root, "--yes").exit_code == 0
    check_clean(root)
    found = Cluster.open(root).read(ORDERS, columns=["value"])["value"].to_pylist()
    assert found.count(b"value 1") == 1


def test_shard_of_which_nothing_is_left_begins_anew(root: str) -> None:
    """It was created once, so clients would refuse it for ever."""
    table = shard_of(root, "deferred")
    for path in Path(root, table).rglob("*"):
        if path.is_file():
            path.unlink()
    assert run(root, "--yes").exit_code == 0
    check_clean(root)
    producer = Producer({"txnlog.root": root, "transactional.id": "deferred"})
    producer.init_transactions()
    with producer.transaction():
        producer.produce(ORDERS, b"after", partition=0)
    producer.close()
    assert batches(root, ORDERS, 0)[-1].partition_values["txn_status"] == "committed"


def test_group_that_went_back_has_another_generation(root: str) -> None:
    """A query whose checkpoint names the old one is refused, and says what to do."""
    admin = AdminClient({"txnlog.root": root})
    before = admin.describe_consumer_groups(["readers"])["readers"].result()
    zero(commit_file(root, OFFSETS, commits(root, OFFSETS)[-1]))
    assert run(root, "--yes").exit_code == 0
    after = AdminClient({"txnlog.root": root}).describe_consumer_groups(["readers"])
    assert after["readers"].result().generation >= before.generation + LEAP - 1


def test_root_whose_cluster_table_is_lost_is_refused(root: str) -> None:
    """Nothing else says how many shards there are: an id would be looked for in another one."""
    for path in Path(root, "__cluster", "_delta_log").iterdir():
        zero(path)
    result = run(root, "--yes")
    assert result.exit_code == 1
    assert "Restore the whole root from a backup" in result.stderr


def test_folder_without_a_cluster_is_refused(tmp_path: Path) -> None:
    """A wrong path is no damaged root."""
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "There is no txnlog cluster" in result.stderr


def test_live_member_stops_a_repair(root: str) -> None:
    """What it commits meanwhile would be cut, though it was acknowledged."""
    zero(commit_file(root, ORDERS, commits(root, ORDERS)[-1]))
    store = ObjectStore.from_url(root, create=False)

    class Clock:
        """While the repair waits, a member writes a heartbeat."""

        boot_id = store.clock.boot_id
        now_ms = store.clock.now_ms
        waited_ms = 0

        def boot_ms(self) -> int:
            return self.waited_ms

        def sleep_ms(self, duration_ms: float) -> None:
            self.waited_ms += int(duration_ms)
            newest = commits(root, OFFSETS)[-1]
            commit_file(root, OFFSETS, newest + 1).write_bytes(b"{}")

    store.clock = Clock()
    with pytest.raises(ConcurrentTransactionsError, match=OFFSETS):
        Repair(store, watch_ms=30_000).run()
    assert not [name for name in os.listdir(root) if name.startswith("__repaired")]
