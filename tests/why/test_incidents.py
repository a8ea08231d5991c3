"""Planted incidents: `why` names each rightly, and reports nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.admin.test_transactions_admin import forget
from tests.staged_files import written_file
from tests.tables import appended, rows
from tests.verify.roots import build, commit_file, commits, halve, truncate_log
from tests.why.worlds import MINUTE_MS, Disk, produce
from tests.world import decide, row_of
from txnlog.admin import AdminClient, ProblemKind, looks
from txnlog.admin.moments import Moments
from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging
from txnlog.errors import StorePermissionError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.lease import LeaseHolder
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol import diagnosis
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.leases import HOUSEKEEPING
from txnlog.protocol.metadata import LastBatch, Owner, StagedBatch, TransactionMetadata
from txnlog.storage.batches.records import RECORD_SCHEMA

K = ProblemKind
Incident = Callable[[Disk], tuple[ProblemKind, str, str]]
"""Plants it; returns the kind, the subject, and what the text must say."""

DAY_MS = 86_400_000


def opened(disk: Disk, name: str = "tx", **config: object) -> Producer:
    """An eager transaction that its producer does not end."""
    made = disk.producer(name, transaction_publish="eager", linger_ms=0, **config)
    made.begin_transaction()
    made.produce("orders", "open")
    made.flush()
    return made


def staged(cluster: Cluster, topic: str = "orders") -> StagedBatch:
    """A file with one record that no commit refers to yet."""
    record = {"timestamp": 0, "key": b"k", "value": b"v", "headers": []}
    return written_file(cluster, topic, pa.RecordBatch.from_pylist([record], schema=RECORD_SCHEMA))


def decided(disk: Disk) -> tuple[TransactionMetadata, StagedBatch]:
    """A transaction whose process died when it had decided it."""
    cluster = disk.process()
    owner = Owner(run_id="run", query_id="q1", query_name="hourly", host="driver", pid=7)
    row = cluster.coordinator.init_producer_id("tx", owner, timeout_ms=MINUTE_MS)
    batch = staged(cluster)
    return decide(cluster, row, [batch]), batch


def paused_eager_producer(disk: Disk) -> tuple[ProblemKind, str, str]:
    opened(disk)
    disk.later(40_000)
    return K.OPEN, "tx", f"process {os.getpid()}"


def time_out_that_nobody_carries_out(disk: Disk) -> tuple[ProblemKind, str, str]:
    opened(disk)
    disk.later(5 * MINUTE_MS)
    return K.OPEN, "tx", "its time-out is over"


def prepared_by_its_client(disk: Disk) -> tuple[ProblemKind, str, str]:
    made = opened(disk)
    made.prepare_transaction()
    disk.later(MINUTE_MS)
    return K.OPEN, "tx", "two-phase commit"


def dead_member(disk: Disk) -> tuple[ProblemKind, str, str]:
    produce(disk)
    consumer = disk.consumer(session_timeout_ms=6_000)
    consumer.subscribe(["orders"])
    assert consumer.poll(5) is not None
    disk.later(MINUTE_MS)
    return K.DEAD_MEMBER, "readers", "has sent no heartbeat for"


def fenced_twin(disk: Disk) -> tuple[ProblemKind, str, str]:
    for _ in range(4):
        produce(disk)
        disk.later(1_000)
    return K.TAKEN_OVER, "tx", "two use it"


def fenced_by_an_operator(disk: Disk) -> tuple[ProblemKind, str, str]:
    opened(disk)
    disk.admin.abort_transaction("tx", reason="it hung").result()
    return K.FENCED, "tx", "it hung"


def unpublished_decision(disk: Disk) -> tuple[ProblemKind, str, str]:
    decided(disk)
    disk.later(MINUTE_MS)
    return K.DECIDED, "tx", "its marker is not in orders"


def decided_file_is_missing(disk: Disk) -> tuple[ProblemKind, str, str]:
    _, batch = decided(disk)
    disk.folder.joinpath("orders", batch.path).unlink()
    disk.later(MINUTE_MS)
    return K.FILE_DAMAGED, "tx", f"orders/{batch.path} is missing"


def decided_file_is_cut(disk: Disk) -> tuple[ProblemKind, str, str]:
    _, batch = decided(disk)
    halve(disk.folder / "orders" / batch.path)
    disk.later(MINUTE_MS)
    return K.FILE_DAMAGED, "tx", f"and {batch.size_bytes} were written"


def decided_for_a_table(disk: Disk) -> Path:
    """The process died when it had decided a part of a Delta table of others."""
    silver = disk.folder.parent / "silver"
    write_deltalake(silver, rows(0), partition_by=["day"])
    disk.admin.enlist_tables({"silver": str(silver)})["silver"].result()
    cluster = disk.process()
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="run"), timeout_ms=MINUTE_MS)
    decide(cluster, row, Staging(frozenset(), tuple, appended(cluster, 1, name="silver")))
    return silver


def table_takes_a_part_no_more(disk: Disk) -> tuple[ProblemKind, str, str]:
    silver = decided_for_a_table(disk)
    other = pa.table({"other": [1], "day": ["1"]})
    write_deltalake(silver, other, mode="overwrite", schema_mode="overwrite")
    disk.later(MINUTE_MS)
    return K.TABLE_BLOCKED, "tx", "silver: column 'id'"


def table_of_a_part_is_missing(disk: Disk) -> tuple[ProblemKind, str, str]:
    shutil.rmtree(decided_for_a_table(disk))
    disk.later(MINUTE_MS)
    return K.TABLE_BLOCKED, "tx", "there is no Delta table"


def unpublished_part(disk: Disk) -> tuple[ProblemKind, str, str]:
    decided_for_a_table(disk)
    disk.later(MINUTE_MS)
    return K.DECIDED, "tx", "its marker is not in the table silver"


def topic_of_a_decision_is_missing(disk: Disk) -> tuple[ProblemKind, str, str]:
    decided(disk)
    shutil.rmtree(disk.folder / "orders")
    disk.later(MINUTE_MS)
    return K.TOPIC_MISSING, "tx", "orders, and its folder is gone"


def topic_of_a_group_is_missing(disk: Disk) -> tuple[ProblemKind, str, str]:
    produce(disk)
    consumer = disk.consumer()
    consumer.subscribe(["orders"])
    assert consumer.poll(5) is not None
    shutil.rmtree(disk.folder / "orders")
    return K.TOPIC_MISSING, "orders", "group 'readers' reads it"


def hanging_batch(disk: Disk) -> tuple[ProblemKind, str, str]:
    opened(disk)
    cluster = disk.process()
    row = row_of(cluster)
    forget(cluster, row)
    disk.later(MINUTE_MS)
    return K.HANGING, f"producer {row.producer_id}, epoch 0", "without a state row"


def damaged_log(disk: Disk) -> tuple[ProblemKind, str, str]:
    produce(disk)
    halve(commit_file(str(disk.folder), "orders", commits(str(disk.folder), "orders")[-1]))
    return K.DAMAGE, "orders", "truncated or garbled"


def damaged_shard(disk: Disk) -> tuple[ProblemKind, str, str]:
    """Nobody can say whose the open data is: it is not called hanging."""
    opened(disk)
    table = "__transaction_state-0"
    halve(commit_file(str(disk.folder), table, commits(str(disk.folder), table)[-1]))
    disk.later(MINUTE_MS)
    return K.DAMAGE, table, "truncated or garbled"


def restored_shard(disk: Disk) -> tuple[ProblemKind, str, str]:
    made = produce(disk)
    made.begin_transaction()
    made.produce("orders", "later")
    made.commit_transaction()
    table = "__transaction_state-0"
    truncate_log(str(disk.folder), table, to=commits(str(disk.folder), table)[-1] - 1)
    return K.DAMAGE, "tx", "has its marker of epoch 1, its row has 0"


def restored_topic(disk: Disk) -> tuple[ProblemKind, str, str]:
    produce(disk)
    before = commits(str(disk.folder), "orders")[-1]
    with Producer(disk.root, cluster=disk.process(), background=False) as made:
        made.produce("orders", "later")
    with disk.consumer() as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    truncate_log(str(disk.folder), "orders", to=before)
    return K.DAMAGE, "readers", "offset 2 of orders partition 0: the partition ends at 1"


def stuck_query(disk: Disk) -> tuple[ProblemKind, str, str]:
    """It committed every 10 s, and does not, though its group has records to read."""
    produce(disk, "input", records=9)
    cluster = disk.process()
    generation = cluster.groups.start("q-group")
    owner = Owner(run_id="run", query_id="q1", query_name="hourly", host="driver", pid=7)
    row = cluster.coordinator.init_producer_id("q1", owner)
    for number in range(7):
        offsets = GroupOffsets(
            group_id="q-group",
            generation=generation,
            start={"orders": {0: number}},
            end={"orders": {0: number + 1}},
        )
        last = LastBatch(batch_id=number, topics=("stock",))
        row = cluster.coordinator.commit(
            row, [staged(cluster, "stock")], offsets=[offsets], last_batch=last
        )
        disk.later(10_000)
    disk.later(2 * MINUTE_MS)
    return K.STUCK_QUERY, "q1", "group q-group has 2 records to read"


def dead_housekeeping(disk: Disk) -> tuple[ProblemKind, str, str]:
    Housekeeper(disk.process()).step()
    disk.later(10 * MINUTE_MS)
    return K.NO_HOUSEKEEPING, "the root", f"process {os.getpid()}"


def small_files(disk: Disk) -> tuple[ProblemKind, str, str]:
    made = disk.producer()
    for _ in range(30):
        made.begin_transaction()
        made.produce("orders", "x")
        made.commit_transaction()
    return K.SMALL_FILES, "orders", "small files could be merged"


def vacuum_overdue(disk: Disk) -> tuple[ProblemKind, str, str]:
    """Housekeeping has its lease, and no right to delete: an old file stays."""
    produce(disk)
    left = staged(disk.process())
    at_s = (disk.clock.now_ms() - 20 * DAY_MS) / 1000
    os.utime(disk.folder / "orders" / left.path, (at_s, at_s))
    holder = LeaseHolder(disk.process(), HOUSEKEEPING)
    holder.take()
    holder.release()
    return K.VACUUM_OVERDUE, "orders", "past the vacuum age"


def nobody_does_housekeeping(disk: Disk) -> tuple[ProblemKind, str, str]:
    for version in commits(str(disk.folder), "__cluster"):
        os.utime(commit_file(str(disk.folder), "__cluster", version), (0, 0))
    return K.NO_HOUSEKEEPING, "the root", "nobody did it"


def failing_duty(disk: Disk) -> tuple[ProblemKind, str, str]:
    with patch.object(Compactor, "step", side_effect=StorePermissionError("denied")):
        keeper = Housekeeper(disk.process())
        keeper.step()
        # The lease is renewed, and tells of the duties.
        disk.later(20_000)
        keeper.step()
    return K.DUTY_FAILED, "files compacted", "denied"


INCIDENTS = [
    paused_eager_producer, time_out_that_nobody_carries_out, prepared_by_its_client, dead_member,
    fenced_twin, fenced_by_an_operator, unpublished_decision, decided_file_is_missing,
    table_takes_a_part_no_more, table_of_a_part_is_missing, unpublished_part,
    decided_file_is_cut, topic_of_a_decision_is_missing, topic_of_a_group_is_missing, hanging_batch,
    damaged_log, damaged_shard, restored_shard, restored_topic, stuck_query, dead_housekeeping,
    small_files, vacuum_overdue, nobody_does_housekeeping, failing_duty,
]  # fmt: skip
OLD = {vacuum_overdue, nobody_does_housekeeping}


@pytest.mark.parametrize("plant", INCIDENTS, ids=lambda plant: plant.__name__)
def test_planted_incident_is_named_and_nothing_else(
    plant: Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer costs the hour in which readers wait."""
    for module in (diagnosis, looks):
        monkeypatch.setattr(module, "SMALL_FILES_MIN", 20)
    disk = Disk(tmp_path / "lake", age_ms=30 * DAY_MS if plant in OLD else 0)
    kind, subject, text = plant(disk)
    found = disk.problems()
    assert [(one.kind, one.subject) for one in found] == [(kind, subject)], found
    shown = Moments(disk.process()).now().problems
    assert [(one.kind, one.subject) for one in shown] == [(kind, subject)], "on the page, too"
    [problem] = found
    assert text in f"{problem.why} {problem.ends} {problem.who}"


def test_query_without_a_group_that_stops_is_no_problem_and_its_last_batch_is_told(
    tmp_path: Path,
) -> None:
    """Nobody can tell whether it has input: no guess, but what is known."""
    disk = Disk(tmp_path / "lake")
    cluster = disk.process()
    owner = Owner(run_id="run", query_id="q1", query_name="hourly", host="driver", pid=7)
    row = cluster.coordinator.init_producer_id("q1", owner)
    for number in range(7):
        last = LastBatch(batch_id=number, topics=("stock",))
        row = cluster.coordinator.commit(row, [staged(cluster, "stock")], last_batch=last)
        disk.later(10_000)
    disk.later(2 * MINUTE_MS)
    assert disk.problems() == []
    found = disk.admin.explain_transactional_id("q1").result()
    assert "its last batch, 6, is 130 s old" in found.verdict
    assert "look at its driver" in found.advice
    batch = Moments(disk.process()).now().queries["q1"].batches[-1]
    assert (batch.batch_id, disk.clock.now_ms() - batch.at_ms) == (6, 130_000)


def test_full_disk_is_named(tmp_path: Path) -> None:
    """Writers try again for ever, and their errors are far away."""
    disk = Disk(tmp_path / "lake")
    produce(disk)
    assert disk.problems() == []
    status = os.statvfs(tmp_path)
    full = os.statvfs_result((*status[:4], 0, *status[5:]))
    with patch("os.statvfs", return_value=full):
        [problem] = disk.problems()
    assert (problem.kind, problem.why[:12]) == (K.DISK_FULL, "0 bytes are ")


def test_healthy_busy_root_has_no_problems(tmp_path: Path) -> None:
    """Open, decided and committed transactions, groups, a restart, an abort, housekeeping."""
    disk = Disk(tmp_path / "lake")
    keeper = Housekeeper(disk.process())
    keeper.step()
    produce(disk)
    produce(disk).close()
    opened(disk, "eager")
    opened(disk, "aborted").abort_transaction()
    decided(disk)
    consumer = disk.consumer()
    consumer.subscribe(["orders", "stock"])
    consumer.poll(5)
    disk.process().delete_topic("stock")
    disk.later(2_000)
    keeper.step()
    assert disk.problems() == []


def test_root_with_checkpoints_aborts_and_all_kinds_of_clients_has_no_problems(
    tmp_path: Path,
) -> None:
    """What it says of damage is tried on this root, too."""
    build(str(tmp_path / "lake"), {"fsync": "false"})
    admin = AdminClient({"txnlog.root": str(tmp_path / "lake")})
    assert admin.find_problems().result() == []


def test_foreign_table_and_who_may_not_write_change_nothing(tmp_path: Path) -> None:
    """A root holds tables of other tools; an operator may have the right to read only."""
    disk = Disk(tmp_path / "lake")
    opened(disk)
    foreign = disk.folder / "foreign" / "_delta_log"
    foreign.mkdir(parents=True)
    shutil.copy(commit_file(str(disk.folder), "__cluster", 0), foreign / f"{0:020}.json")
    disk.later(40_000)
    reader = disk.process()
    with patch.object(type(reader.store), "put", side_effect=StorePermissionError("denied")):
        found = AdminClient({"client.id": "ops"}, cluster=reader).find_problems().result()
    assert [(one.kind, one.subject) for one in found] == [(K.OPEN, "tx")]
