"""Failures while a consumer joins, accepts or gives up partitions: later polls do it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.cases import Some
from tests.consumer.records import BEAT_MS, Told, beat, consumer, member, parts, put, turn, world
from tests.faults import Trial, cuts
from tests.interrupting import interrupted_at
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.consuming import (
    commits,
    consumption,
    fetcher,
    group_session,
    membership,
    rebalances,
)
from txnlog.consuming.rebalances import Rebalances
from txnlog.errors import (
    ClientStateError,
    CorruptLogError,
    StorageError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import TopicPartition
from txnlog.storage.delta.log_files import commit_path
from txnlog.testing.faults import Fault, FaultyStore, SharedMemory, no_faults

VALUES = [b"0", b"1"]
FILES = tuple(
    str(Path(module.__file__ or ""))
    for module in (commits, consumption, fetcher, group_session, membership, rebalances)
)
ROUNDS = 8
PLACES_MAX = 5_000
DAY_MS = 24 * 3_600_000
SUBSCRIPTIONS = pytest.mark.parametrize("topics", [["t"], ["^t.*"]], ids=["name", "pattern"])


def filled() -> SharedMemory:
    """Topic t with a record in each of two partitions."""
    shared = world(2)
    for number, value in enumerate(VALUES):
        put(process(shared), value, partition=number)
    return shared


def store_of(reader: Consumer) -> FaultyStore:
    store = reader._consumption().cluster.store
    assert isinstance(store, FaultyStore)
    return store


def polled(
    reader: Consumer, rounds: int = ROUNDS, errors: list[Exception] | None = None
) -> list[bytes]:
    """The values that some polls return; each is one heartbeat after the one before."""
    found: list[bytes] = []
    for _ in range(rounds):
        try:
            message = reader.poll(0)
            if message is not None:
                found.append(message.value() or b"")
        except (StorageError, CorruptLogError) as error:
            if errors is not None:
                errors.append(error)
        if reader._consumption()._session is not None:
            # The heartbeat thread continues, too.
            with suppress(TxnLogError):
                beat(reader)
        reader._consumption().clock.sleep_ms(BEAT_MS)
    return found


def polling(shared: SharedMemory, reader: Consumer) -> Trial:
    """Three polls."""
    found: list[bytes] = []
    polls = partial(polled, reader, 3)
    cluster = reader._consumption().cluster
    return Trial(shared, cluster, lambda: found.extend(polls()), more=(reader, found))


@contextmanager
def failing(reader: Consumer, path: str, verb: str = "") -> Iterator[None]:
    """The store's calls below this path fail."""
    store_of(reader).plan = lambda called, asked: (
        Fault.FAIL_BEFORE if asked.startswith(path) and called.startswith(verb) else Fault.NONE
    )
    try:
        yield
    finally:
        store_of(reader).plan = no_faults


def check_shared(shared: SharedMemory, reader: Consumer) -> None:
    """The reader is a member like any other: with a second one it shares the partitions."""
    assert parts(reader) == [0, 1]
    strategy = reader._config.get("partition.assignment.strategy")
    other = member(shared, partition_assignment_strategy=",".join(strategy))
    turn(shared, reader, other)
    assert sorted(parts(reader) + parts(other)) == [0, 1]
    assert len(parts(reader)) == 1


def check_all_read(trial: Trial) -> None:
    reader, found = trial.more
    assert sorted(found + polled(reader)) == VALUES
    check_shared(trial.shared, reader)


# --- Store errors ---------------------------------------------------------------------------------


@SUBSCRIPTIONS
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_REPLY])
def test_store_error_at_any_call_of_the_first_polls_only_delays(
    topics: list[str], fault: Fault, some: Some[int]
) -> None:
    """A consumer held its partitions for ever without reading them, and without an error (R48)."""

    def begin() -> Trial:
        shared = filled()
        return polling(shared, member(shared, topics))

    for trial in cuts(begin, some, (fault,)):
        check_all_read(trial)


@SUBSCRIPTIONS
def test_store_error_at_any_call_of_a_changed_subscription_only_delays(
    topics: list[str], some: Some[int]
) -> None:
    """A failed listing left the consumer without partitions for metadata.max.age.ms (R48)."""

    def begin() -> Trial:
        shared = filled()
        process(shared).create_topic("other", partitions=1)
        reader = member(shared, ["other"])
        polled(reader, 3)
        reader.subscribe(topics)
        return polling(shared, reader)

    for trial in cuts(begin, some, (Fault.FAIL_BEFORE,)):
        check_all_read(trial)


def test_assign_that_fails_changes_nothing() -> None:
    """A consumer whose assign() had failed read nothing, and its polls said nothing (R48)."""
    shared = filled()
    reader = consumer(process(shared), group_id="g")
    with failing(reader, "__consumer_offsets"), pytest.raises(StorageError):
        reader.assign([TopicPartition("t", 0)])
    with pytest.raises(ClientStateError):
        reader.poll(0)
    reader.assign([TopicPartition("t", 0)])
    assert polled(reader) == [b"0"]
    with failing(reader, "__consumer_offsets"), pytest.raises(StorageError):
        reader.assign([TopicPartition("t", 1)])
    put(process(shared), b"2", partition=0)
    assert polled(reader) == [b"2"]


def test_unsubscribe_that_fails_is_not_undone_by_the_next_poll() -> None:
    """The next poll joined the group again, though the group would have expelled the member."""
    shared = filled()
    reader = member(shared, enable_auto_commit=False)
    assert sorted(polled(reader)) == VALUES
    with failing(reader, "__consumer_offsets"), pytest.raises(StorageError):
        reader.unsubscribe()
    with pytest.raises(ClientStateError):
        reader.poll(0)
    assert reader.assignment() == []


def test_callback_that_raises_does_not_keep_a_lost_consumer_from_rejoining() -> None:
    """A consumer whose commit was refused stayed without partitions until its next heartbeat."""
    shared = filled()

    def on_lost(*_: object) -> None:
        raise ValueError("of the application")

    reader = member(shared, on_lost=on_lost)
    assert sorted(polled(reader)) == VALUES
    process(shared).groups.reset("g", {"t": {0: 0, 1: 0}})
    reader.commit()
    with pytest.raises(ValueError, match="application"):
        reader.poll(0)
    # No heartbeat in between.
    found = [message.value() for _ in range(6) if (message := reader.poll(0))]
    assert set(found) == set(VALUES)
    assert len(found) == 2


def test_interrupted_look_for_missing_topics_delays_on_assign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was never called, and with it no assign() of an application that keeps its offsets."""
    told: list[TopicPartition] = []
    reader = member(filled(), ("t", "none"), on_assign=lambda _, added: told.extend(added))

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(rebalances, "missing_topics", interrupted)
    with pytest.raises(KeyboardInterrupt):
        polled(reader)
    with pytest.raises(UnknownTopicOrPartitionError):
        polled(reader)
    assert [partition.partition for partition in told] == [0, 1]


def test_failed_look_for_topics_of_a_pattern_is_repeated_at_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new topic had to wait another metadata.max.age.ms (R48)."""
    shared = filled()
    reader = member(shared, ["^t.*"], metadata_max_age_ms=DAY_MS, max_poll_interval_ms=2 * DAY_MS)
    polled(reader)
    process(shared).create_topic("t2", partitions=1)
    heartbeat = reader._consumption().require_session().heartbeat
    shared.clock.advance_ms(DAY_MS)

    def no_names() -> list[str]:
        raise StorageError("no listing")

    with monkeypatch.context() as patch:
        patch.setattr(heartbeat._cluster, "topic_names", no_names)
        with pytest.raises(StorageError, match="no listing"):
            heartbeat.send()
    polled(reader)
    assert TopicPartition("t2", 0) in reader.assignment()


# --- Damage ---------------------------------------------------------------------------------------


def two_topics() -> SharedMemory:
    shared = filled()
    cluster = process(shared)
    cluster.create_topic("bad", partitions=3)
    put(cluster, b"bad", topic="bad", partition=2)
    return shared


def damage(shared: SharedMemory) -> Callable[[], None]:
    """Damage topic `bad`; returns what repairs it."""
    store = process(shared).store
    path = commit_path("bad", 1)
    whole = store.get(path)
    store.put(path, b'{"add": {"pa')
    return lambda: store.put(path, whole)


def damaged_at_accept(
    shared: SharedMemory, monkeypatch: pytest.MonkeyPatch, reader: Consumer
) -> Callable[[], None]:
    """Damage topic `bad` between the join and the acceptance of the assignment."""
    repairs: list[Callable[[], None]] = []
    accept = Rebalances._accept_assignment

    def damaged(self: Rebalances, *given: object) -> None:
        if not repairs:
            repairs.append(damage(shared))
            # As a process that opens the log only now.
            self._cluster._topics.clear()
        accept(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Rebalances, "_accept_assignment", damaged)
    return lambda: repairs[0]()


def test_topic_damaged_before_its_partitions_are_accepted_stops_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of the topics was read (R66)."""
    shared = two_topics()
    told = Told()
    reader = member(shared, ["t", "bad"], **told.callbacks())
    repair = damaged_at_accept(shared, monkeypatch, reader)
    errors: list[Exception] = []
    found = polled(reader, 10, errors)
    assert sorted(found) == VALUES
    assert errors
    assert all(isinstance(error, CorruptLogError) and "bad" in str(error) for error in errors)
    assert [(name, len(keys)) for name, keys in told.calls] == [("on_assign", 5)]
    put(process(shared), b"2")
    assert polled(reader, 10) == [b"2"]
    repair()
    assert polled(reader) == [b"bad"]


@pytest.mark.parametrize("assigned", [False, True])
def test_topic_damaged_while_it_is_read_stops_only_itself(assigned: bool) -> None:
    """The other topics were read no further, and the member missed its group's changes (R66)."""
    shared = two_topics()
    cluster = process(shared)
    if assigned:
        reader = consumer(cluster)
        keys = [("t", 0), ("t", 1), ("bad", 0), ("bad", 1), ("bad", 2)]
        reader.assign([TopicPartition(*key) for key in keys])
    else:
        reader = member(shared, ["t", "bad"])
    assert sorted(polled(reader)) == [*VALUES, b"bad"]
    put(process(shared), b"later", topic="bad", partition=2)
    store = process(shared).store
    path = commit_path("bad", 2)
    whole = store.get(path)
    store.put(path, b'{"add": {"pa')
    errors: list[Exception] = []
    put(process(shared), b"2")
    put(process(shared), b"3", partition=1)
    assert sorted(polled(reader, 6, errors)) == [b"2", b"3"]
    assert {type(error) for error in errors} == {CorruptLogError}
    store.put(path, whole)
    assert polled(reader) == [b"later"]


def test_member_with_a_damaged_topic_follows_its_group() -> None:
    """Its heartbeats failed before they told it that others want to join (R48, R66)."""
    shared = two_topics()
    reader = member(shared, ["t", "bad"])
    polled(reader)
    damage(shared)
    session = reader._consumption().require_session()
    session._background_cluster._topics.clear()
    heartbeat = session.heartbeat
    put(process(shared), b"2")
    assert reader.poll(0) is not None
    reader.commit(asynchronous=False)
    shared.clock.advance_ms(BEAT_MS)
    before = heartbeat.group
    heartbeat.send()
    assert heartbeat.group is not before
    assert not heartbeat.needs_rejoin


# --- Interrupts -----------------------------------------------------------------------------------


def join(reader: Consumer) -> None:
    for _ in range(3):
        reader._consumption().maintain()


def rejoin(reader: Consumer) -> None:
    reader.subscribe(["^t.*"])
    join(reader)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("steps", "strategy"),
    [
        pytest.param((join,), "cooperative-sticky", id="join-cooperative-sticky"),
        pytest.param((join, rejoin), "range", id="rejoin-range"),
        pytest.param((join,), "range", id="join-range", marks=pytest.mark.soak),
        pytest.param(
            (join, rejoin),
            "cooperative-sticky",
            id="rejoin-cooperative-sticky",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_interrupt_at_any_place_only_delays(
    steps: Sequence[Callable[[Consumer], None]], strategy: str, some: Some[int]
) -> None:
    """After Ctrl-C a consumer held partitions that it did not read (R48)."""
    number = 0
    for number in some(range(1, PLACES_MAX)):
        shared = filled()
        reader = member(shared, partition_assignment_strategy=strategy)
        for step in steps[:-1]:
            step(reader)
        place = interrupted_at(number, partial(steps[-1], reader), FILES)
        if place is None:
            break
        assert sorted(polled(reader)) == VALUES, place
        assert parts(reader) == [0, 1], place
        check_shared(shared, reader)
    assert 100 < number < PLACES_MAX - 1, "hardly anything was interrupted, or not all"
