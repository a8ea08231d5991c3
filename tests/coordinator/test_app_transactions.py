"""Batch writes with txnAppId and txnVersion: once per topic, despite crashes and repeats (R36)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_sink.commit import commit_batch_write
from tests.cases import Some
from tests.coordinator.test_phases import options, stage
from tests.faults import Trial, cuts, meetings
from tests.world import (
    PLAIN,
    SETTINGS,
    TOPICS,
    both,
    faults,
    process,
    recover,
    staged,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import (
    DuplicateTransactionError,
    InvalidTxnStateError,
    TopicAuthorizationError,
    TxnLogError,
)
from txnlog.protocol.app_transactions import newest_version, other_records, transactional_id_of
from txnlog.protocol.metadata import AppTransaction, Owner, StagedBatch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_cluster


def write(
    cluster: Cluster, batches: list[StagedBatch], version: int, *, app_id: str = "nightly"
) -> bool:
    app = AppTransaction(app_id=app_id, version=version)
    return commit_one_off(cluster, batches, Owner(run_id="job"), app=app, phases=None)


def one(cluster: Cluster, topic: str, name: str) -> list[StagedBatch]:
    return [staged(cluster, topic, name)]


def test_one_pair_for_writes_to_two_topics_writes_both() -> None:
    """Delta's own foreachBatch idiom: every second write was silently lost."""
    shared = world()
    cluster = process(shared)
    for version in range(3):
        for topic in TOPICS:
            assert write(cluster, one(cluster, topic, f"v{version}"), version)
    for version in range(3):
        assert visible(cluster, f"v{version}") == (True, True)
    # Run again, in another process and after the rows are gone: each topic remembers for itself.
    again = process(shared)
    for topic in TOPICS:
        assert not write(again, one(again, topic, "again"), 2)
        assert not write(again, one(again, topic, "again"), 1)
    assert visible(again, "again") == (False, False)
    check_cluster(again, settled=True)


def test_pair_in_some_topics_only_is_an_error_that_names_them() -> None:
    """Writing all would duplicate rows of one topic, skipping all would lose those of the other."""
    cluster = process(world())
    assert write(cluster, one(cluster, "stock", "first"), 7)
    with pytest.raises(DuplicateTransactionError) as failure:
        write(cluster, both(cluster, "second"), 7)
    assert "'stock' (at version 7), and not in topic 'orders' (no version)" in str(failure.value)
    assert failure.value.context["missing"] == ["orders"]
    assert visible(cluster, "second") == (False, False)
    assert write(cluster, one(cluster, "orders", "second"), 7)
    assert write(cluster, both(cluster, "third"), 8)


def begun(settings: LogSettings = PLAIN) -> Trial:
    shared = world(settings=settings)
    cluster = process(shared, settings=settings)
    return Trial(shared, cluster, partial(write, cluster, both(cluster, "mine"), 1))


@pytest.mark.parametrize(
    ("settings", "recovered"),
    [(PLAIN, False), (SETTINGS, True)],
    ids=["unswept", "swept-checkpoints"],
)
def test_write_cut_at_any_call_and_run_again_happens_once(
    settings: LogSettings, recovered: bool, some: Some[Any]
) -> None:
    """The job dies, or gets an error, at each storage call, between the topics, too (R36).

    The job is run again with files of its own; exactly one of the two is in, in both topics.
    """
    first_runs = set()
    for trial in cuts(partial(begun, settings), some):
        shared = trial.shared
        if recovered:
            recover(shared)
        again = process(shared, settings=settings)
        written = write(again, both(again, "again"), 1)
        assert visible(again, "again") == (written, written)
        assert visible(again, "mine") == (not written, not written)
        assert trial.outcome != "done" or not written
        first_runs.add(written)
        recover(shared)
        assert not write(process(shared), both(process(shared), "third"), 1)
    assert first_runs == {True, False}


def during(cluster: Cluster, where: Callable[[str, str], bool], act: Callable[[], object]) -> None:
    """Run `act` once, before the first storage call that `where` accepts."""
    done = []

    def plan(verb: str, path: str) -> Fault:
        if not done and where(verb, path):
            done.append(path)
            act()
        return Fault.NONE

    faults(cluster).plan = plan


@pytest.mark.parametrize("topics", [("orders", "stock"), ("stock",)])
@pytest.mark.parametrize("version", [1, 2])
def test_two_writers_of_one_app_id_are_decided_one_after_another(
    topics: tuple[str, ...], version: int, some: Some[Any]
) -> None:
    """Both read the topics before either has decided: the pair would be written twice.

    The second writer does all its work at each storage call of the first, in turns.
    """

    def begin() -> Trial:
        shared = world()
        first, second = process(shared), process(shared)
        mine = both(first, "mine")
        theirs = [batch for batch in both(second, "theirs") if batch.topic in topics]
        results: dict[str, bool] = {}

        def act() -> None:
            results["first"] = write(first, mine, 1)

        return Trial(shared, first, act, more=(second, theirs, results))

    def meanwhile(trial: Trial) -> None:
        second, theirs, results = trial.more
        results["second"] = write(second, theirs, version)

    for trial in meetings(begin, meanwhile, some):
        results = trial.more[-1]
        after = recover(trial.shared)
        seen_first, seen_second = visible(after, "mine"), visible(after, "theirs")
        assert seen_first in ((True, True), (False, False))
        assert seen_second == tuple(results["second"] and t in topics for t in TOPICS)
        assert seen_first[0] == results.get("first", False)
        if trial.outcome == "done" and version == 1:
            assert results["first"] != results["second"]
        elif trial.outcome != "done":
            assert trial.outcome == "DuplicateTransactionError"
            assert len(topics) == 1


@pytest.mark.parametrize("step", ["marker", "complete"])
def test_write_that_is_decided_is_not_said_to_have_failed(step: str) -> None:
    """A job that repeated it wrote its records twice (R36, R37)."""
    shared = world()
    cluster = process(shared)
    batches, markers = both(cluster, "mine"), []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith("orders/_delta_log"):
            markers.append(path)
        is_next = path.startswith("orders" if step == "marker" else "__transaction_state")
        return Fault.FAIL_BEFORE if verb == "put" and markers and is_next else Fault.NONE

    faults(cluster).plan = plan
    commit = partial(commit_one_off, cluster, batches, Owner(run_id="job"))
    if step == "marker":
        with pytest.raises(TxnLogError) as failure:
            commit()
        assert failure.value.context["decided"] is TransactionResult.COMMIT
    else:
        assert commit(), "only COMPLETE is left"
    assert markers
    recover(shared)
    assert visible(process(shared), "mine") == (True, True)


def test_batch_write_that_is_decided_says_that_it_must_not_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows its user the message only; with a transactional.id, too (R42)."""

    def denied(*_: object, **__: object) -> bool:
        raise TopicAuthorizationError("No permission to write topic 't'.", topic="t")

    monkeypatch.setattr("txnlog.coordinator.finishing.publish_own", denied)
    monkeypatch.setattr("txnlog.coordinator.transactions.publish_own", denied)
    for more in ({}, {"transactional.id": "job"}):
        with pytest.raises(
            TopicAuthorizationError, match="(?s)topic 't'.*decided.*Do not repeat it"
        ):
            commit_batch_write(options(tmp_path, "write", **more), [stage(tmp_path, ["a"], task=0)])


def test_pair_of_a_deleted_topic_is_not_that_of_its_successor() -> None:
    """The topic is another one, but its log continues, and with it the pair (R71)."""
    shared = world()
    cluster = process(shared)
    assert write(cluster, both(cluster, "first"), 5)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", partitions=2)
    for reader in (cluster, process(shared)):
        log = reader.topic("orders")
        assert log.view.txns.applications == {"nightly": -1}
    assert write(cluster, one(cluster, "orders", "again"), 5)
    assert visible(cluster, "again") == (True, False)


def test_expiry_of_producers_leaves_txn_versions_alone() -> None:
    """Vacuum and expiry of markers must not make a job's pair unknown (R11)."""
    memory = TxnMemory()
    memory.set_txn("nightly", 7, 1_000)
    memory.set_txn("txnlog/3", 0, 1_000)
    memory.set_txn("txnlog/expired/transactions", 5_000, 5_000)
    memory.set_txn("txnlog/expired/producers", 5_000, 5_000)
    assert not memory.markers
    assert newest_version(memory, "nightly", configuration={}, now_ms=10**15) == 7


@pytest.mark.parametrize(
    ("age_ms", "known"), [(0, 7), (86_400_000, 7), (86_400_001, -1), (10**15, -1)]
)
def test_txn_version_expires_by_deltas_property(age_ms: int, known: int) -> None:
    """delta.setTransactionRetentionDuration bounds what a table remembers, as for Delta."""
    memory = TxnMemory()
    memory.set_txn("nightly", 7, 1_000)
    found = newest_version(
        memory,
        "nightly",
        configuration={"delta.setTransactionRetentionDuration": "interval 1 days"},
        now_ms=1_000 + age_ms,
    )
    assert found == known
    assert newest_version(memory, "other", configuration={}, now_ms=0) == -1


def test_producer_with_the_id_of_batch_writes_is_named() -> None:
    """A row that is never removed would make the write wait forever."""
    cluster = process(world())
    cluster.coordinator.init_producer_id(transactional_id_of("nightly"), Owner(run_id="p"))
    with pytest.raises(InvalidTxnStateError, match="_batch-txnAppId-nightly"):
        write(cluster, both(cluster, "mine"), 1)


def test_skipped_write_is_a_warning_with_its_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second, different write under the same pair was skipped at level INFO."""
    pair = options(tmp_path, "write", txnAppId="app", txnVersion="3")
    commit_batch_write(pair, [stage(tmp_path, ["a", "b"], task=0)])
    with caplog.at_level(logging.WARNING, "txnlog"):
        commit_batch_write(pair, [stage(tmp_path, ["b", "c"], task=0)])
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "txnVersion 3 of txnAppId app is in topic t already" in record.getMessage()
    assert "skipped, with 2 records" in record.getMessage()


def test_skipped_write_of_other_records_is_said_to_be_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a lost checkpoint batch 0 is another batch under the pair of the first batch 0: its
    records never came, and the query ended well.
    """
    pair = options(tmp_path, "write", txnAppId="app", txnVersion="0")
    commit_batch_write(pair, [stage(tmp_path, ["a"], task=0)])
    with caplog.at_level(logging.WARNING, "txnlog"):
        commit_batch_write(pair, [stage(tmp_path, ["b", "c"], task=0)])
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "another write: it has 1 records in topic t" in record.getMessage()
    assert "skipped now has 2 records in topic t" in record.getMessage()
    assert "use spark_sink.transactional" in record.getMessage()


def test_count_of_a_pair_survives_checkpoints_and_ends_with_it() -> None:
    """A count that a checkpoint drops, or that a newer version leaves behind, says nothing true."""
    cluster = process(world(settings=SETTINGS), settings=SETTINGS)
    batches = both(cluster, "first")
    assert write(cluster, batches, 1)
    for number in range(15):
        assert write(cluster, both(cluster, f"n{number}"), number, app_id="other")
    memory = cluster.topic("orders").view.txns
    app = AppTransaction(app_id="nightly", version=1)
    known = sum(batch.num_records for batch in batches if batch.topic == "orders")
    assert other_records(app, {"orders": known}, {"orders": memory}) == {}
    assert other_records(app, {"orders": known + 1}, {"orders": memory}) == {"orders": known}
    assert write(cluster, one(cluster, "orders", "second"), 2)
    memory = cluster.topic("orders").view.txns
    assert other_records(app, {"orders": known + 1}, {"orders": memory}) == {}


def test_memory_of_the_pair_survives_checkpoints() -> None:
    """A checkpoint that drops it makes the job write twice a hundred commits later (R11)."""
    shared: SharedMemory = world(settings=SETTINGS)
    cluster = process(shared, settings=SETTINGS)
    assert write(cluster, both(cluster, "first"), 1)
    for number in range(15):
        assert write(cluster, both(cluster, f"n{number}"), number, app_id="other")
    cold = process(shared)
    assert cold.topic("orders").view.txns.applications == {"nightly": 1, "other": 14}
    assert not write(cold, both(cold, "again"), 1)
