"""`txnlog consume`: write records as lines to stdout."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from txnlog.cli.record_lines import to_json
from txnlog.cli.session import (
    format_time,
    parse_numbers,
    pipe_closed,
    session_of,
    stopped_by_signals,
)
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, OFFSET_END, Message, TopicPartition

POLL_S = 0.2
"""Maximum delay until Ctrl-C takes effect."""

BATCH_RECORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """The fields of a line before the value, in the order of Kafka's console consumer."""

    key_separator: str | None
    timestamp: bool
    partition: bool
    offset: bool
    headers: bool

    def __call__(self, message: Message) -> bytes:
        parts = []
        if self.timestamp:
            kind, timestamp_ms = message.timestamp()
            parts.append(format_time(timestamp_ms if kind else -1).encode())
        if self.partition:
            parts.append(f"Partition:{message.partition()}".encode())
        if self.offset:
            parts.append(f"Offset:{message.offset()}".encode())
        if self.headers:
            named = (b"%s:%s" % (k.encode(), _shown(v)) for k, v in message.headers() or ())
            parts.append(b",".join(named) or b"NO_HEADERS")
        line = _shown(message.value())
        if self.key_separator is not None:
            line = _shown(message.key()) + self.key_separator.encode() + line
        return b"\t".join([*parts, line])


def _shown(data: bytes | None) -> bytes:
    return b"null" if data is None else data


def consume(
    context: typer.Context,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="May be repeated.")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Consume as a member of this group.")
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Without a committed offset start at the beginning, not the end.",
        ),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", help="Only these partitions, as in 0,1; no --group."),
    ] = None,
    offset: Annotated[int | None, typer.Option(help="Start offset; no --group.", min=0)] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", help="Maximum number of records.", min=1)
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(help="Exit if no record arrives for this interval.", min=0)
    ] = None,
    isolation_level: Annotated[
        str, typer.Option(help="read_committed or read_uncommitted.")
    ] = "read_committed",
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Print keys, followed by this separator."),
    ] = None,
    print_headers: Annotated[bool, typer.Option("--print-headers")] = False,
    print_timestamp: Annotated[bool, typer.Option("--print-timestamp")] = False,
    print_partition: Annotated[bool, typer.Option("--print-partition")] = False,
    print_offset: Annotated[bool, typer.Option("--print-offset")] = False,
) -> None:
    """Write records as lines until Ctrl-C, a closed pipe, -n records, or --timeout-ms.

    With a group, offsets are committed after their records are written. After a broken pipe,
    records that were not written are not committed.
    """
    session = session_of(context)
    if group is not None and (partition is not None or offset is not None):
        raise typer.BadParameter("--partition and --offset cannot be used with --group.")
    config = {
        **session.config(),
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.auto.commit": False,
        "max.poll.records": min(BATCH_RECORDS, max_messages or BATCH_RECORDS),
    }
    to_line: Callable[[Message], bytes] = to_json
    if not session.is_json:
        to_line = LineFormat(
            key_separator=None if key_separator is None else key_separator.replace("\\t", "\t"),
            timestamp=print_timestamp,
            partition=print_partition,
            offset=print_offset,
            headers=print_headers,
        )
    if group is not None:
        config["group.id"] = group
    with stopped_by_signals() as stop, Consumer(config) as consumer:
        if group is None:
            start = offset if offset is not None else _start(from_beginning)
            consumer.assign(_partitions(consumer, topic, partition, start))
        else:
            consumer.subscribe(topic)
        for batch in _batches(consumer, stop, max_messages, timeout_ms):
            try:
                sys.stdout.buffer.write(b"".join(to_line(message) + b"\n" for message in batch))
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                pipe_closed()
                return
            if group is not None:
                consumer.commit(offsets=_after(batch), asynchronous=False)


def _start(from_beginning: bool) -> int:
    return OFFSET_BEGINNING if from_beginning else OFFSET_END


def _partitions(
    consumer: Consumer, topics: list[str], partitions: str | None, start: int
) -> list[TopicPartition]:
    assigned: list[TopicPartition] = []
    for topic in topics:
        described = consumer.list_topics(topic).topics[topic]
        if described.error is not None:
            raise described.error
        numbers = parse_numbers("--partition", partitions) if partitions else described.partitions
        assigned += [TopicPartition(topic, number, start) for number in numbers]
    return assigned


def _batches(
    consumer: Consumer, stop: threading.Event, count_max: int | None, timeout_ms: int | None
) -> Iterator[list[Message]]:
    left = count_max
    idle_since = time.monotonic()
    while not stop.is_set() and left != 0:
        # A message with an error is no record: a topic that does not exist, which is logged.
        batch = [each for each in consumer.consume(timeout=POLL_S) if each.error() is None]
        if batch:
            batch = batch[:left]
            left = None if left is None else left - len(batch)
            yield batch
            idle_since = time.monotonic()
        elif timeout_ms is not None and time.monotonic() - idle_since >= timeout_ms / 1000:
            return


def _after(batch: list[Message]) -> list[TopicPartition]:
    """The positions after these messages."""
    ends = {(m.topic(), m.partition()): m.offset() for m in batch}
    return [
        TopicPartition(topic, partition, offset + 1)
        for (topic, partition), offset in ends.items()
        if offset is not None
    ]
