"""TopicLog: topics created, deleted and created again in one log; unknown commits."""

from __future__ import annotations

import pytest

from tests.staged_files import named_file_of
from tests.storage.number_log import plant
from txnlog.errors import (
    CommitStateUnknownError,
    CorruptLogError,
    InvalidCommitError,
    InvalidPartitionsError,
    InvalidProducerEpochError,
    TopicAlreadyExistsError,
    TopicAuthorizationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.appends import Appended, Settled, prepare_append, prepare_marker
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.delta.actions import Add, Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_topic, check_topic_rebuilds

OFF = LogSettings(checkpoint_mode="off")
NO_FAULT = Fault.NONE


def opened(store: ObjectStore) -> TopicLog:
    topic = TopicLog(store, "orders", settings=OFF)
    topic.refresh()
    return topic


def created(store: ObjectStore, *, partitions: int = 2) -> TopicLog:
    topic = TopicLog(store, "orders", settings=OFF)
    topic.create(partitions=partitions, config={})
    return topic


def batch(topic: TopicLog, name: str, *, partition: int = 0, records: int = 3) -> StagedBatch:
    path = f"part-{partition}-{name}.parquet"
    return named_file_of(topic, path, partition=partition, records=records)


def publish(topic: TopicLog, batches: list[StagedBatch], *, epoch: int = 0) -> object:
    """A deferred transaction's marker commit, of the caller's staged batches."""
    return topic.transact(
        lambda state: prepare_marker(
            state,
            topic_id=batches[0].topic_id,
            transaction=ProducerIdAndEpoch(5, epoch),
            result=TransactionResult.COMMIT,
            batches=batches,
        )
    )


def append(
    topic: TopicLog, batches: list[StagedBatch], *, epoch: int = 0, sequence: int = 0
) -> object:
    return topic.transact(
        lambda state: prepare_append(
            state,
            batches,
            producer=ProducerIdAndEpoch(9, 0),
            base_sequences={batches[0].partition: 0},
            transactional=True,
        )
    )


# --- Create, delete, create again (R71) -----------------------------------------------------------


def test_create_twice_is_refused_unless_it_may_exist(store: ObjectStore) -> None:
    """Two jobs may start by creating their topic."""
    first = created(store)
    other = TopicLog(store, "orders", settings=OFF)
    with pytest.raises(TopicAlreadyExistsError, match="orders"):
        other.create(partitions=9, config={})
    other.create(partitions=9, config={}, exist_ok=True)
    assert (other.topic_id, other.partitions) == (first.topic_id, 2)


@pytest.mark.parametrize("partitions", [0, -1, 100_001])
def test_create_with_impossible_partitions_is_refused(store: ObjectStore, partitions: int) -> None:
    """An empty topic could never be written."""
    with pytest.raises(InvalidPartitionsError):
        created(store, partitions=partitions)


def test_topic_created_again_continues_at_the_old_end_with_a_new_id(store: ObjectStore) -> None:
    """An old position must be below the log start, never in the middle of new data (R71)."""
    topic = created(store)
    publish(topic, [batch(topic, "a"), batch(topic, "b", partition=1, records=7)])
    stale = opened(store)
    old = batch(stale, "old")
    topic.delete()
    assert not topic.exists
    topic.create(partitions=2, config={})
    assert topic.topic_id != stale.topic_id
    view = topic.view
    assert [(view.log_start_offset(p), view.high_watermark(p)) for p in (0, 1)] == [(3, 3), (7, 7)]
    assert isinstance(publish(stale, [old], epoch=1), Settled)
    with pytest.raises(UnknownTopicIdError):
        append(stale, [old])
    publish(topic, [batch(topic, "new")], epoch=2)
    assert [b.base_offset for b in topic.view.batches(0, 0, 99, True)] == [3]
    check_topic("orders", topic.view)
    create_checkpoint(store, "orders", trust_ms=OFF.trust_ms)
    clean_up(store, "orders", retention_ms=-1)
    cold = opened(store)
    assert (cold.topic_id, cold.view.high_watermark(1)) == (topic.topic_id, 7)


def test_topic_created_again_with_fewer_partitions_is_refused(store: ObjectStore) -> None:
    """It had the old number, silently: all ends are kept (D12)."""
    topic = created(store, partitions=4)
    topic.delete()
    with pytest.raises(InvalidPartitionsError, match="had 4 partitions.*Give at least 4"):
        topic.create(partitions=3, config={})
    assert not opened(store).exists
    topic.create(partitions=1, config={}, at_least=True)
    assert (topic.partitions, topic.config["partitions"]) == (4, "4")


def test_delete_of_no_topic_is_refused(store: ObjectStore) -> None:
    """Deleting twice is a mistake that must be reported."""
    topic = created(store)
    other = opened(store)
    topic.delete()
    for handle in (topic, other, TopicLog(store, "never", settings=OFF)):
        with pytest.raises(UnknownTopicOrPartitionError):
            handle.delete()


def test_delete_while_a_transaction_is_undecided_leaves_nothing_behind(store: ObjectStore) -> None:
    """The marker of a deleted topic counts as written, and the LSO does not wait (R71)."""
    topic = created(store)
    append(topic, [batch(topic, "open")])
    assert topic.view.last_stable_offset(0) == 0
    topic.delete()
    topic.create(partitions=2, config={})
    assert topic.view.last_stable_offset(0) == topic.view.high_watermark(0) == 3
    check_topic_rebuilds(topic)


def test_create_whose_reply_was_lost_is_recognised_after_another_process_deleted_it() -> None:
    """The topic was created, then deleted; it must not be created again."""
    shared = SharedMemory()
    store = shared.open()
    topic = TopicLog(store, "orders", settings=OFF)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put":
            return Fault.LAND_LATE
        if verb == "get" and store.calls[-2:-1] and store.calls[-2][0] == "put":
            return Fault.FAIL_BEFORE
        if verb == "list" and any(call[0] == "put" for call in store.calls):
            store.plan = lambda verb, path: NO_FAULT
            assert shared.land_late()
            opened(shared.open()).delete()
        return NO_FAULT

    store.plan = plan
    topic.create(partitions=1, config={})
    assert not opened(shared.open()).exists


# --- Unknown (D2) --------------------------------------------------------------------------------


def test_append_with_lost_replies_is_acknowledged_once() -> None:
    """Each retry first checks whether the effect is there (R2, R63)."""
    shared = SharedMemory()
    topic = created(shared.open())
    store = shared.open()
    writer = opened(store)
    store.now_ms()
    store.plan = lambda verb, path: Fault.LOSE_REPLY if verb == "put" else NO_FAULT
    written = append(writer, [batch(topic, "a"), batch(topic, "b")])
    assert isinstance(written, TopicCommit)
    assert append(writer, [batch(topic, "a"), batch(topic, "b")]) == Appended((0, 3))
    assert opened(shared.open()).view.high_watermark(0) == 6


def unknown_then(shared: SharedMemory, store_plan_after: Fault) -> TopicLog:
    """A writer whose first commit ended Unknown; its next puts have another fault."""
    store = shared.open()
    writer = opened(store)
    store.now_ms()
    gets = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put":
            return Fault.LAND_LATE if not gets else store_plan_after
        if verb == "get" and store.calls[-2][0] == "put":
            return Fault.FAIL_BEFORE
        if verb == "list":
            gets.append(path)
        return NO_FAULT

    store.plan = plan
    return writer


def test_refusal_after_an_unknown_commit_is_reported_as_unknown() -> None:
    """A refusal would mean that nothing was written; the first put may still land (R63, R68)."""
    shared = SharedMemory()
    topic = created(shared.open())
    writer = unknown_then(shared, Fault.DENY)
    with pytest.raises(CommitStateUnknownError):
        append(writer, [batch(topic, "a")])
    shared.land_late()
    assert opened(shared.open()).view.high_watermark(0) == 3


def test_refusal_by_the_protocol_after_an_unknown_commit_is_reported_as_unknown() -> None:
    """The first put landed, then others continued: "fenced" alone would mean it failed (D2)."""
    shared = SharedMemory()
    topic = created(shared.open())
    writer = unknown_then(shared, NO_FAULT)
    other = opened(shared.open())
    asked = []

    def decide(state: object) -> TopicCommit:
        if asked:
            raise InvalidProducerEpochError("fenced")
        asked.append(1)
        return prepare_append(  # type: ignore[return-value]
            writer.view,
            [batch(topic, "a")],
            producer=ProducerIdAndEpoch(9, 0),
            base_sequences={0: 0},
            transactional=True,
        )

    with pytest.raises(CommitStateUnknownError) as caught:
        writer.transact(decide)
    assert isinstance(caught.value.__cause__, InvalidProducerEpochError)
    other.refresh()


def test_no_permission_for_a_topic_is_an_authorization_error_and_nothing_lands() -> None:
    """TopicAuthorization names the topic (R68)."""
    shared = SharedMemory()
    topic = created(shared.open())
    store = shared.open()
    writer = opened(store)
    store.now_ms()
    store.plan = lambda verb, path: Fault.DENY if verb == "put" else NO_FAULT
    with pytest.raises(TopicAuthorizationError, match="orders"):
        append(writer, [batch(topic, "a")])
    with pytest.raises(TopicAuthorizationError, match="orders"):
        writer.delete()
    assert opened(shared.open()).view.high_watermark(0) == 0


# --- Two writers ----------------------------------------------------------------------------------


def test_writers_in_turn_get_dense_offsets(store: ObjectStore) -> None:
    """The loser of a race decides again on what the winner wrote (R62)."""
    topic = created(store)
    writers = [opened(store) for _ in range(3)]
    for number in range(9):
        publish(writers[number % 3], [batch(topic, f"n{number}")], epoch=number)
    topic.refresh()
    assert [b.base_offset for b in topic.view.batches(0, 0, 99, True)] == list(range(0, 27, 3))
    check_topic_rebuilds(topic)


# --- Damage (R66) ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        [Add("x", {"partition": "0"}, 1, 0)],
        [Add("x", {}, 1, 0)],
        [Txn("txnlog/end/x", 1)],
    ],
)
def test_header_that_cannot_be_read_is_an_error_that_names_the_commit(
    store: ObjectStore, actions: list[Add | Txn]
) -> None:
    """A file of another tool in a topic must not be skipped (R38)."""
    topic = created(store)
    other = opened(store)
    with pytest.raises(InvalidCommitError, match=r"orders.*was not written.*Nothing has changed"):
        other.log.commit(actions, operation="WRITE")
    assert opened(store).log.version == 0
    plant(other.log, actions)
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=commit_path("orders", 1)):
            topic.refresh()
        with pytest.raises(CorruptLogError, match=commit_path("orders", 1)):
            opened(store)
