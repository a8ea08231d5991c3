"""One consumer, several threads: each record goes to one of them, and no call waits in vain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.consumer.records import (
    at,
    committed,
    consumer,
    member,
    messages,
    put,
    read,
    reader_of,
    turn,
    world,
)
from tests.threads import WAIT_S, Thread, in_threads
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.consuming.record_stream import Before
from txnlog.errors import ClientStateError, UnstableOffsetCommitError
from txnlog.messages import OFFSET_INVALID, Message, TopicPartition
from txnlog.testing.faults import SharedMemory

COUNT = 240
"""Records of each of two partitions."""

Read = Callable[[Consumer], list[tuple[int, int]]]


def filled(partitions: int = 2, count: int = COUNT, files: int = 8) -> SharedMemory:
    """Records whose value is `partition:offset`, in several files."""
    shared = world(partitions)
    for first in range(0, count, count // files):
        for partition in range(partitions):
            numbers = range(first, first + count // files)
            put(process(shared), *(b"%d:%d" % (partition, n) for n in numbers), partition=partition)
    return shared


def poll(reader: Consumer) -> list[tuple[int, int]]:
    message = reader.poll(0)
    return [] if message is None else [checked(message)]


def consume(reader: Consumer) -> list[tuple[int, int]]:
    return [checked(message) for message in reader.consume(7, 0)]


def consume_more(reader: Consumer) -> list[tuple[int, int]]:
    """It waits for more than there are, as it is behind."""
    return [checked(message) for message in reader.consume(50, 0.001)]


def consume_batch(reader: Consumer) -> list[tuple[int, int]]:
    table = reader.consume_batch(7, 0)
    at = zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
    found = list(at)
    assert [b"%d:%d" % key for key in found] == table.column("value").to_pylist()
    return found


def checked(message: Message) -> tuple[int, int]:
    """Partition and offset, which the value must name, too."""
    key = message.partition(), message.offset()
    assert message.value() == b"%d:%d" % key  # type: ignore[str-format]
    return key  # type: ignore[return-value]


EVERYTHING = sorted((partition, offset) for partition in range(2) for offset in range(COUNT))


@pytest.mark.parametrize(
    "reads",
    [[poll] * 3, [consume] * 3, [consume_more] * 3, [consume_batch] * 3,
     [poll, consume, consume_more, consume_batch]],
    ids=lambda reads: "-".join(sorted({read.__name__ for read in reads})),
)  # fmt: skip
def test_each_record_is_returned_to_one_thread_with_its_own_offset(reads: list[Read]) -> None:
    """Four threads got records twice, with offsets of others, and committed past the end."""
    shared = filled()
    for _ in range(4):
        reader = reader_of(process(shared), 2, group_id="g", auto_offset_reset="earliest")
        reader.assign([TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)])
        found: list[list[tuple[int, int]]] = [[] for _ in reads]

        def work(mine: list[tuple[int, int]], way: Read, reader: Consumer = reader) -> None:
            while sum(map(len, found)) < 2 * COUNT:  # noqa: B023
                mine.extend(way(reader))

        in_threads(*(lambda m=m, w=w: work(m, w) for m, w in zip(found, reads, strict=True)))
        assert sorted(key for mine in found for key in mine) == EVERYTHING
        for mine in found:
            for partition in range(2):
                # Positions move on: what a thread gets of a partition is in order.
                offsets = [offset for number, offset in mine if number == partition]
                assert offsets == sorted(offsets)
        reader.close()
        assert [committed(consumer(process(shared), group_id="g"), n) for n in (0, 1)] == [
            COUNT
        ] * 2


def test_other_calls_beside_polls_neither_lose_nor_repeat_records() -> None:
    """Each call of a consumer, in threads of its own, while two others read."""
    shared = filled()
    reader = reader_of(process(shared), 2, group_id="g")
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    found: list[tuple[int, int]] = []
    is_over = threading.Event()

    def reads(way: Read) -> None:
        try:
            while len(found) < 2 * COUNT:
                found.extend(way(reader))
        finally:
            is_over.set()

    def others() -> None:
        last = [OFFSET_INVALID] * 2
        while not is_over.is_set():
            reader.pause(both)
            with suppress(ClientStateError):
                reader.commit(asynchronous=False)
            reader.resume(both)
            assert len(reader.assignment()) == 2
            reader.get_watermark_offsets(both[0])
            reader.offsets_for_times(both)
            reader.list_topics()
            positions = [p.offset for p in reader.position(both)]
            assert all(now >= before for now, before in zip(positions, last, strict=True))
            last = positions
            for p, position in zip(reader.committed(both), reader.position(both), strict=True):
                assert p.offset <= position.offset
            reader.consumer_group_metadata()

    in_threads(lambda: reads(consume), lambda: reads(consume_batch), others)
    assert sorted(found) == EVERYTHING
    reader.close()


def test_changes_of_the_assignment_beside_polls_leave_a_working_consumer() -> None:
    """What is read after the last change is complete, from where that says."""
    shared = filled()
    reader = reader_of(process(shared), 2)
    is_over = threading.Event()
    both = [TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)]

    def reads(way: Read) -> None:
        while not is_over.is_set():
            # Between unassign() and assign().
            with suppress(ClientStateError):
                way(reader)

    def changes() -> None:
        for number in range(40):
            reader.unassign()
            reader.assign(both)
            reader.seek(TopicPartition("t", number % 2, 5))
            reader.incremental_unassign(both[:1])
            reader.incremental_assign(both[:1])
        is_over.set()

    in_threads(lambda: reads(poll), lambda: reads(consume_more), changes)
    reader.assign(both)
    found: list[tuple[int, int]] = []
    while more := consume(reader):
        found += more
    assert sorted(found) == EVERYTHING
    reader.close()


def test_several_threads_open_and_close_one_consumer() -> None:
    shared = filled(count=8)
    opened: list[int] = []
    for _ in range(10):
        reader = consumer(process(shared), group_id="g")
        in_threads(*(lambda: reader._call(lambda made: opened.append(id(made))) for _ in range(4)))  # noqa: B023
        assert len(set(opened)) == 1
        opened.clear()
        reader.subscribe(["t"])
        reader.poll(0)
        in_threads(reader.close, reader.close, reader.close)
        assert not process(shared).groups.describe("g").members  # type: ignore[union-attr]


# --- What happens between two threads, in a given order -------------------------------------------


class Napping:
    """The clock of a consumer whose calls stop where they would wait, until they may go on."""

    def __init__(self, reader: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.naps = threading.Semaphore(0)
        self.may_go_on = threading.Event()

        def nap(duration_ms: float) -> None:
            self.naps.release()
            assert self.may_go_on.wait(WAIT_S)

        monkeypatch.setattr(reader._consumption().clock, "sleep_ms", nap)

    def reached(self) -> None:
        assert self.naps.acquire(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda reader: reader.poll(3_600), None),
        (lambda reader: reader.poll(), None),
        (lambda reader: reader.consume(5), []),
        (lambda reader: reader.consume(timeout=3_600), []),
        (lambda reader: reader.consume_batch(timeout=3_600).num_rows, 0),
    ],
)
def test_close_ends_a_poll_of_another_thread(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Consumer], Any], result: object
) -> None:
    """It need not wait for the time-out; the poll returns nothing, and the next one raises."""
    shared = world(1)
    reader = member(shared)
    reader.poll(0)
    napping = Napping(reader, monkeypatch)
    polling = Thread(lambda: call(reader))
    napping.reached()
    reader.close()
    assert not process(shared).groups.describe("g").members  # type: ignore[union-attr]
    napping.may_go_on.set()
    assert polling.result() == result
    with pytest.raises(ClientStateError, match="closed"):
        call(reader)


def test_records_that_a_consume_holds_are_not_committed_before_it_returns_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its program may die before it has them: they would be lost."""
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = member(shared)
    assert [message.value() for message in reader.consume(1, 0)] == [b"a"]
    napping = Napping(reader, monkeypatch)
    consuming = Thread(lambda: [message.value() for message in reader.consume(9, 3_600)])
    napping.reached()
    assert at(reader) == 1
    reader.commit(asynchronous=False)
    assert committed(reader) == 1
    # Nor do others get what follows, before this call can no longer put them back.
    put(process(shared), b"d")
    assert reader.poll(0) is None
    closing = Thread(reader.close)
    napping.may_go_on.set()
    assert consuming.result() == [b"b", b"c"]
    assert closing.result() is None
    assert committed(consumer(process(shared), group_id="g")) == 3


def test_seek_while_a_consume_holds_records_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = reader_of(process(shared))
    napping = Napping(reader, monkeypatch)
    consuming = Thread(lambda: [message.value() for message in reader.consume(9, 3_600)])
    napping.reached()
    reader.seek(TopicPartition("t", 0, 2))
    assert at(reader) == 2
    reader._is_ending = True
    napping.may_go_on.set()
    assert consuming.result() == [b"a", b"b", b"c"]
    monkeypatch.undo()
    assert read(reader) == [b"c"]


def test_interrupt_puts_back_what_no_other_thread_has_followed_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the interrupt and the return another thread may read: it must get no record twice."""
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = reader_of(process(shared))
    stream = reader._consumption().stream

    def interrupted(between: Callable[[], object]) -> None:
        before = Before()
        stream.begin(before)
        between()
        stream.take_back(before)

    def other_reads() -> None:
        reader._consumption().maintain()
        assert [message.value() for message in stream.take(1)] == [b"a"]
        assert [m.value() for m in Thread(lambda: reader.consume(1, 0)).result()] == [b"b"]

    def none_reads() -> None:
        assert [message.value() for message in stream.take(1)] == [b"c"]

    for between in (other_reads, none_reads):
        interrupted(between)
    assert read(reader) == [b"c"]


def test_interrupt_puts_back_records_of_a_partition_that_another_thread_has_paused() -> None:
    """They were skipped, and the next commit counted them."""
    shared = world(1)
    put(process(shared), b"a", b"b")
    reader = reader_of(process(shared))
    made, paused = reader._consumption(), [TopicPartition("t", 0)]
    made.maintain()
    before = Before()
    made.stream.begin(before)
    assert len(made.stream.take(1)) == 1
    Thread(lambda: reader.pause(paused)).result()
    made.stream.take_back(before)
    assert at(reader) == 0
    reader.resume(paused)
    assert read(reader) == [b"a", b"b"]


def test_interrupt_after_the_lock_was_given_back_puts_the_message_back() -> None:
    """poll() has taken it, and its caller never gets it."""
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = reader_of(process(shared))
    assert [message.value() for message in reader.consume(1, 0)] == [b"a"]

    class Interrupted:
        def _is_owned(self) -> bool:
            return False

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            reader._turn.lock = lock
            raise KeyboardInterrupt

    lock = reader._turn.lock
    reader._turn.lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        reader.poll(0)
    assert at(reader) == 1
    assert read(reader) == [b"b", b"c"]


def test_committed_lets_other_calls_come_between_while_it_waits() -> None:
    """It waits for open transactions, up to a minute."""
    shared = world(1)
    reader = member(shared, ["t"])
    turn(shared, reader)
    assert messages(reader) == []
    asked = [TopicPartition("t", 0)]
    made = reader._consumption()
    inner, slices = made.committed, []

    def waits(partitions: list[TopicPartition], timeout_ms: int) -> list[TopicPartition]:
        slices.append(timeout_ms)
        if len(slices) < 4:
            assert not Thread(lambda: reader._turn.lock.acquire(blocking=False)).result()
            raise UnstableOffsetCommitError("pending")
        return inner(partitions, timeout_ms)

    made.committed = waits  # type: ignore[method-assign]
    assert reader.committed(asked, 10) == asked
    assert slices == [100] * 4
