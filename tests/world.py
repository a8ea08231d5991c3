"""One store in memory, its processes, and what most tests let them do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar
from unittest.mock import patch

import obstore
from obstore.exceptions import BaseError

from tests.staged_files import append_ongoing, named_file_of
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete, finish, publish
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import StorageError, TxnLogError
from txnlog.process.clock import Clock
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.row_log import TransactionLog
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster, check_rows, read_committed

T = TypeVar("T")

SETTINGS = LogSettings(checkpoint_interval=6, checkpoint_mode="inline")
PLAIN = LogSettings(checkpoint_mode="off")
TOPICS = ("orders", "stock")
GROUP = "readers"
MINUTE_MS = 60_000
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
ERRORS = (Fault.LOSE_REPLY, Fault.FAIL_BEFORE, Fault.SAY_EXISTS, Fault.LAND_LATE)
BEHIND_TRIES = 50


def process(
    shared: SharedMemory,
    *,
    settings: LogSettings = PLAIN,
    clock: Clock | None = None,
    seed: int | None = None,
    offsets_shards: int = 1,
) -> Cluster:
    """A new process: its own memory, the shared store; `seed` as in FaultyStore."""
    store = shared.open(clock=clock, seed=seed)
    return Cluster.open(
        store, create=True, shards=2, offsets_shards=offsets_shards, settings=settings
    )


def faults(cluster: Cluster) -> FaultyStore:
    assert isinstance(cluster.store, FaultyStore)
    return cluster.store


def world(
    topics: Sequence[str] = TOPICS,
    *,
    partitions: int = 2,
    groups: Sequence[str] = (GROUP,),
    settings: LogSettings = PLAIN,
    config: Mapping[str, str] | None = None,
    offsets_shards: int = 1,
) -> SharedMemory:
    """A store with a cluster, some topics, and groups at generation 1.

    Records of `staged` have timestamps of 1970: retention removes them unless `config` prevents it.
    """
    shared = SharedMemory()
    first = process(shared, settings=settings, offsets_shards=offsets_shards)
    for name in topics:
        first.create_topic(name, partitions=partitions, config=config)
    for group in groups:
        first.groups.start(group)
    return shared


def staged(cluster: Cluster, topic: str, name: str, *, records: int = 2) -> StagedBatch:
    """A staged file of some bytes: the coordinator never reads it."""
    partition = sum(name.encode()) % 2
    write_behind(cluster, f"{topic}/part-{partition}-{name}.parquet", b"records")
    return named_file_of(
        cluster.topic(topic),
        f"part-{partition}-{name}.parquet",
        partition=partition,
        records=records,
        size_bytes=7,
        times_us=(1, 2),
        staged_ms=cluster.store.now_ms(),
    )


def write_behind(cluster: Cluster, path: str, data: bytes) -> None:
    """Write an object that another machine has written: no call of this process, no fault.

    Of a server behind a proxy with faults it is asked again.
    """
    for _ in range(BEHIND_TRIES):
        with suppress(BaseError):
            obstore.put(cluster.store._store, path, data)
            return
    obstore.put(cluster.store._store, path, data)


def both(cluster: Cluster, name: str) -> list[StagedBatch]:
    """One batch for each topic."""
    return [staged(cluster, topic, name) for topic in TOPICS]


def consumed(start: int, end: int, *, generation: int = 1, group: str = GROUP) -> GroupOffsets:
    """The input of a transaction: offsets start to end of one partition."""
    return GroupOffsets(
        group_id=group,
        generation=generation,
        start={"input": {0: start}},
        end={"input": {0: end}},
    )


def owned(cluster: Cluster, run: str, *, tid: str = "tx") -> TransactionMetadata:
    return cluster.coordinator.init_producer_id(tid, Owner(run_id=run), timeout_ms=MINUTE_MS)


def eager(
    cluster: Cluster,
    row: TransactionMetadata,
    name: str,
    *,
    offsets: Sequence[GroupOffsets] = (),
) -> TransactionMetadata:
    """Open a transaction with these offsets, and append one batch to each topic as `ongoing`."""
    batches = both(cluster, name)
    partitions = [
        TopicPartitions(topic=b.topic, topic_id=b.topic_id, partitions=(b.partition,))
        for b in batches
    ]
    row = cluster.coordinator.add_partitions(row, partitions, offsets=offsets)
    for batch in batches:
        append_ongoing(cluster, row, [batch], {batch.partition: 0})
    return row


def persist(act: Callable[[], T]) -> T:
    """Repeat an act while it fails with a retriable error, as a client does."""
    for _ in range(3):
        try:
            return act()
        except StorageError:
            continue
    return act()


def visible(cluster: Cluster, name: str) -> tuple[bool, ...]:
    """For each topic, whether a read_committed reader sees the batch of that name."""
    found = []
    for topic in TOPICS:
        log = cluster.topic_log(topic)
        log.refresh()
        paths = [b.path for batches in read_committed(log.view).values() for b in batches]
        assert len(set(paths)) == len(paths)
        found.append(any(path.endswith(f"-{name}.parquet") for path in paths))
    return tuple(found)


def position(cluster: Cluster) -> int:
    """The group's committed position, with nothing pending."""
    return cluster.groups.fetch(GROUP).get("input", {}).get(0, 0)


def recover(shared: SharedMemory, *, settings: LogSettings = PLAIN) -> Cluster:
    """Let a sweeper of a new process settle everything; no other traffic (R73)."""
    cluster = process(shared, settings=settings)
    sweeper = Sweeper(cluster, interval_ms=2 * MINUTE_MS)
    for _ in range(3):
        sweeper.sweep()
        shared.clock.advance_ms(2 * MINUTE_MS)
    check_cluster(cluster, settled=True)
    check_cluster(process(shared), settled=True)
    for shard in cluster.existing_shards():
        # It writes COMPLETE, too.
        check_rows(shard, settled=True)
    return cluster


def complete_all(cluster: Cluster) -> None:
    """Write the COMPLETE, and the offsets, that producers leave to their next commit; no topic
    changes.
    """
    shards = [log for _, tail in cluster.shard_tails() if isinstance(log := tail(), TransactionLog)]

    def others() -> set[str]:
        return {
            item.path
            for item in cluster.store.list("")
            if not item.path.startswith(("__transaction_state", "__consumer_offsets"))
        }

    before = others()
    for shard in shards:
        for row in list(shard.view.rows.values()):
            if row.state.is_prepared:
                finish(cluster, row)
    assert others() == before


def check_settled(shared: SharedMemory) -> None:
    """Invariants, when no transaction is open and each decided one is published."""
    cluster = process(shared)
    complete_all(cluster)
    check_cluster(cluster, settled=True)


@contextmanager
def planned(cluster: Cluster, plan: Mapping[int, Fault]) -> Iterator[FaultsAt]:
    """Faults at the storage calls made inside the block, numbered from its start."""
    store = faults(cluster)
    counted = FaultsAt(plan)
    store.plan = counted
    try:
        yield counted
    finally:
        store.plan = lambda verb, path: Fault.NONE


def outcome_of(act: Callable[[], object]) -> str:
    """ "done", "crashed", or the name of the error."""
    try:
        act()
    except SimulatedCrash:
        return "crashed"
    except TxnLogError as error:
        return type(error).__name__
    return "done"


def row_of(cluster: Cluster, tid: str = "tx") -> TransactionMetadata:
    row = cluster.coordinator.describe(tid)
    assert row is not None
    return row


def state_of(cluster: Cluster, tid: str = "tx") -> TransactionState:
    return row_of(cluster, tid).state


def finish_read(cluster: Cluster, row: TransactionMetadata, reading: Reading) -> None:
    """As `finish`, by a helper that has read the row before; it may have slept since."""
    if publish(cluster, row, reading=reading):
        complete(cluster, row)


def decide(
    cluster: Cluster,
    row: TransactionMetadata,
    batches: Sequence[StagedBatch] = (),
    *,
    offsets: Sequence[GroupOffsets] = (),
) -> TransactionMetadata:
    """Step 1 alone, as by a process that dies right after it; the row."""
    with (
        patch("txnlog.coordinator.transactions.publish_own", side_effect=SimulatedCrash),
        suppress(SimulatedCrash),
    ):
        cluster.coordinator.commit(row, batches, offsets=offsets)
    found = row_of(cluster, row.transactional_id)
    assert found.state is TransactionState.PREPARE_COMMIT
    return found


def prepared(shared: SharedMemory, name: str = "mine", start: int = 0) -> TransactionMetadata:
    """A transaction decided by a process that died right afterwards (R36)."""
    dying = process(shared)
    row = owned(dying, "dead")
    batches = both(dying, name)

    def plan(verb: str, path: str) -> Fault:
        is_marker = verb == "put" and path.startswith("orders/_delta_log")
        return Fault.CRASH_BEFORE if is_marker else Fault.NONE

    faults(dying).plan = plan
    with suppress(SimulatedCrash):
        dying.coordinator.commit(row, batches, offsets=[consumed(start, 10)])
    found = row_of(process(shared))
    assert found.state is TransactionState.PREPARE_COMMIT
    return found
