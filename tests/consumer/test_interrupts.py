"""Ctrl-C while a consumer reads: records that were not returned are read again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from tests import interrupting
from tests.consumer.records import consumer, messages, put, world
from tests.world import process
from txnlog import consumer as consumers
from txnlog.consumer import Consumer
from txnlog.consuming import fetching, record_stream
from txnlog.messages import TopicPartition
from txnlog.storage.batches import reader as parquet
from txnlog.storage.batches import small_batch_reader
from txnlog.testing.faults import SharedMemory

VALUES = [b"%d" % number for number in range(6)]
FILES = {
    str(Path(module.__file__ or ""))
    for module in (fetching, record_stream, parquet, small_batch_reader)
}
# The rollback itself is not interrupted: a second Ctrl-C within it is too unlikely to handle.
SPARED = {"take_back"}

STRIDE = 3

Read = Callable[[Consumer], list[bytes]]


def poll(reader: Consumer) -> list[bytes]:
    message = reader.poll(0)
    return [] if message is None else [message.value() or b""]


def consume(reader: Consumer) -> list[bytes]:
    return [message.value() or b"" for message in reader.consume(4, 0)]


def consume_batch(reader: Consumer) -> list[bytes]:
    return list(reader.consume_batch(4, 0).column("value").to_pylist())


def interrupted_at(number: int, call: Callable[[], list[bytes]]) -> tuple[list[bytes], bool]:
    """The result of `call`, if it is not interrupted at that line; and whether it was."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        code = frame.f_code
        if code.co_filename not in FILES or code.co_name in SPARED:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        return call(), False
    except KeyboardInterrupt:
        return [], True
    finally:
        sys.settrace(None)


def reader_of(shared: SharedMemory) -> Consumer:
    made = consumer(process(shared))
    made.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
    return made


@pytest.mark.parametrize("read", [poll, consume, consume_batch])
def test_interrupt_at_any_line_loses_and_repeats_no_record(read: Read, seed: int) -> None:
    """Two partitions of three files: some chunks are returned, some are read, some are not.

    Each run tries every third line, and the seed says which third.
    """
    shared = world(2)
    for number, value in enumerate(VALUES):
        put(process(shared), value, partition=number % 2)
    number, was_interrupted = seed % STRIDE, True
    while was_interrupted:
        number += STRIDE
        reader = reader_of(shared)
        first = read(reader)
        found, was_interrupted = interrupted_at(number, lambda reader=reader: read(reader))
        found = first + found
        while more := read(reader):
            found += more
        assert sorted(found) == VALUES, f"interrupted at line {number}"
        positions = reader.position([TopicPartition("t", 0), TopicPartition("t", 1)])
        assert [p.offset for p in positions] == [3, 3]
    assert number > 20, "hardly anything was interrupted"


@pytest.mark.parametrize("read", [consume, consume_batch])
def test_interrupt_on_the_way_out_of_the_call_loses_no_record(read: Read) -> None:
    """A call there returned when the records counted as returned, and the caller had none."""
    places = tuple(str(Path(module.__file__ or "")) for module in (consumers, record_stream))
    shared = world(1)
    put(process(shared), *VALUES)
    number, place = 0, ""
    while place is not None:
        number += 1
        reader = consumer(process(shared))
        reader.assign([TopicPartition("t", 0)])
        found: list[bytes] = []
        place = interrupting.interrupted_at(
            number, lambda found=found, reader=reader: found.extend(read(reader)), places
        )
        while more := read(reader):
            found += more
        assert found == VALUES, place
    assert number > 40, "hardly anything was interrupted"


def test_interrupt_while_waiting_puts_back_the_records_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The most likely moment: some records are taken, and the call waits for more."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    reader = consumer(process(shared))
    reader.assign([TopicPartition("t", 0)])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reader._consumption().clock, "sleep_ms", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.consume(5, 10)
    assert reader.position([TopicPartition("t", 0)])[0].offset == 0
    assert [message.value() for message in messages(reader)] == [b"0", b"1"]
