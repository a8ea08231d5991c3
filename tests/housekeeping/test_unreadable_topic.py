"""An unreadable topic, and foreign tables: every duty is done for the other topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    WEEK_MS,
    log_names,
    names,
    written_both,
)
from tests.staged_files import append_idempotent
from tests.world import PLAIN, TOPICS, both, faults, outcome_of, owned, world
from txnlog.cluster import Cluster
from txnlog.errors import CorruptLogError, StorageError, TopicAuthorizationError, TxnLogError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.log_cleanup import EXPIRED_LOG_FILE, LogCleanup
from txnlog.housekeeping.producer_expiry import EXPIRED_SEQUENCE, ProducerExpiry
from txnlog.housekeeping.retention import Retention
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.producer import Producer
from txnlog.protocol.vacuum import NEVER_COMMITTED
from txnlog.storage.delta.log_files import commit_path
from txnlog.testing.faults import Fault, SharedMemory

UNREADABLE, READABLE = TOPICS

Break = Callable[[Cluster], None]


def garbled(cluster: Cluster) -> None:
    cluster.store.put(commit_path(UNREADABLE, 1), b'{"add": {"pa')


def denied(cluster: Cluster) -> None:
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if path.startswith(f"{UNREADABLE}/") or path == UNREADABLE else Fault.NONE
    )


def failing(cluster: Cluster) -> None:
    faults(cluster).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if verb == "get" and path.startswith(UNREADABLE) else Fault.NONE
    )


unreadable = pytest.mark.parametrize(
    ("broken", "error"),
    [(garbled, CorruptLogError), (denied, TopicAuthorizationError), (failing, StorageError)],
)


def process(shared: SharedMemory, broken: Break) -> Cluster:
    """A new process to which the topic is unreadable."""
    cluster = Cluster.open(shared.open(), create=True, shards=2, settings=PLAIN)
    broken(cluster)
    return cluster


def whole(cluster: Cluster) -> None:
    """Nothing is wrong."""


def lived_in() -> SharedMemory:
    """Long logs, an idle producer and an orphaned file in both topics, all of a week ago."""
    shared = world(config=FOREVER)
    cluster = process(shared, whole)
    row = owned(cluster, "a")
    for number in range(12):
        row = cluster.coordinator.commit(row, written_both(cluster, f"n{number}"))
    for batch in written_both(cluster, "idle"):
        append_idempotent(cluster, 77, [batch], {batch.partition: 0})
    written_both(cluster, "orphan")
    shared.clock.advance_ms(WEEK_MS + HOUR_MS)
    return shared


def live_files(shared: SharedMemory) -> int:
    return len(process(shared, whole).topic(READABLE).view.by_path)


def orphans(cluster: Cluster, topic: str) -> set[str]:
    return {name for name in names(cluster, topic) if name.endswith("-orphan.parquet")}


def check_reported(
    act: Callable[[], object], error: type[TxnLogError], caplog: pytest.LogCaptureFixture
) -> None:
    """Housekeeping logs that a log is damaged, and raises the store's errors at the end."""
    if error is CorruptLogError:
        act()
        assert f"skips {UNREADABLE}" in caplog.text
    else:
        with pytest.raises(error, match=UNREADABLE):
            act()


@unreadable
def test_retention_continues_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError]
) -> None:
    """Else one damaged log keeps the files of all topics for ever (R37)."""
    shared = world()
    cluster = process(shared, whole)
    cluster.coordinator.commit(owned(cluster, "a"), both(cluster, "x"))
    assert live_files(shared) == 1
    with pytest.raises(error, match=UNREADABLE):
        Retention(process(shared, broken)).enforce_all()
    assert live_files(shared) == 0


@unreadable
def test_compaction_continues_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError]
) -> None:
    """Else one damaged log makes all topics slow to read (R37)."""
    shared = world(config=FOREVER)
    config = {"txnlog.root": "memory://", "transactional.id": "tx"}
    with Producer(config, cluster=process(shared, whole), background=False) as producer:
        producer.init_transactions()
        for _ in range(12):
            with producer.transaction():
                for topic in TOPICS:
                    producer.produce(topic, b"v", partition=0)
    assert live_files(shared) == 12
    worker = Compactor(process(shared, broken))
    with pytest.raises(error, match=UNREADABLE):
        worker.step(budget_ms=DAY_MS)
    assert not worker.is_busy()
    assert live_files(shared) < 12


@unreadable
def test_log_cleanup_continues_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError], caplog: pytest.LogCaptureFixture
) -> None:
    """Logs of the others do not grow meanwhile, and nothing of its own is removed (R37, R66)."""
    shared = lived_in()
    cluster = process(shared, broken)
    before = log_names(process(shared, whole), UNREADABLE)
    check_reported(LogCleanup(cluster).run, error, caplog)
    assert len(log_names(cluster, READABLE)) == 2
    assert log_names(process(shared, whole), UNREADABLE) == before


@unreadable
def test_expiry_of_producers_continues_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError], caplog: pytest.LogCaptureFixture
) -> None:
    """Announced, and expired an hour later, in all the others (R8, R37)."""
    shared = lived_in()
    for _ in range(2):
        check_reported(ProducerExpiry(process(shared, broken)).run, error, caplog)
        shared.clock.advance_ms(HOUR_MS)
    assert not process(shared, whole).topic(READABLE).view.last_sequences


@unreadable
def test_vacuum_continues_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError], caplog: pytest.LogCaptureFixture
) -> None:
    """Its references are unknown, so all its files stay (R37, R72)."""
    shared = lived_in()
    check_reported(Vacuum(process(shared, broken)).run, error, caplog)
    after = process(shared, whole)
    assert (len(orphans(after, UNREADABLE)), len(orphans(after, READABLE))) == (1, 0)
    assert len(names(after, READABLE)) == 13


def test_vacuum_continues_past_a_topic_it_may_not_list() -> None:
    """Its log is readable, its folder is not (R37)."""
    shared = lived_in()
    cluster = process(shared, whole)
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "list" and path == UNREADABLE else Fault.NONE
    )
    assert len([item for item in Vacuum(cluster).find() if "-orphan" in item.path]) == 1
    assert outcome_of(Vacuum(cluster).run) == "StorePermissionError"
    after = process(shared, whole)
    assert (len(orphans(after, UNREADABLE)), len(orphans(after, READABLE))) == (1, 0)


@unreadable
def test_dry_run_lists_the_rest_beside_an_unreadable_topic(
    broken: Break, error: type[TxnLogError], caplog: pytest.LogCaptureFixture
) -> None:
    """The topic's error is logged, not raised, so that the list is complete otherwise."""
    shared = lived_in()
    found = Housekeeper(process(shared, broken)).find()
    assert {item.reason for item in found if item.path.startswith(READABLE)} == {
        EXPIRED_LOG_FILE,
        EXPIRED_SEQUENCE,
        NEVER_COMMITTED,
    }
    assert not [item for item in found if item.path.startswith(UNREADABLE)]
    assert UNREADABLE in caplog.text


@unreadable
def test_run_once_does_every_duty_past_an_unreadable_topic(
    broken: Break, error: type[TxnLogError]
) -> None:
    """A run by cron must do the later duties even if an earlier one fails (R37)."""
    shared = world()
    cluster = process(shared, whole)
    cluster.coordinator.commit(owned(cluster, "a"), written_both(cluster, "live"))
    written_both(cluster, "orphan")
    shared.clock.advance_ms(WEEK_MS + DAY_MS)
    with pytest.raises(error, match=UNREADABLE):
        Housekeeper(process(shared, broken)).run_once()
    after = process(shared, whole)
    assert live_files(shared) == 0
    assert (len(orphans(after, UNREADABLE)), len(orphans(after, READABLE))) == (1, 0)


def test_foreign_tables_and_deleted_topics_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are below the same root; no duty fails or logs a warning because of them."""
    cluster = Cluster.open(str(tmp_path), create=True, shards=1, settings=PLAIN)
    for name in ("orders", "removed"):
        cluster.create_topic(name, partitions=1)
    cluster.delete_topic("removed")
    write_deltalake(str(tmp_path / "customers"), pa.table({"id": [1]}))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("not ours")
    before = sorted((tmp_path / "customers").rglob("*"))
    assert cluster.topic_names() == ["customers", "notes", "orders", "removed"]
    assert cluster.list_topics() == ["orders"]
    keeper = Housekeeper(Cluster.open(str(tmp_path), settings=PLAIN))
    assert keeper.find() == []
    assert keeper.run_once() is not None
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert sorted((tmp_path / "customers").rglob("*")) == before
