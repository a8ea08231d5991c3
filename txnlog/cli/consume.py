"""`txnlog consume`: write records as lines to stdout."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from txnlog.cli import completion
from txnlog.cli.record_lines import to_json
from txnlog.cli.session import parse_numbers, session_of, stopped_by_signals
from txnlog.cli.tail import POLL_S, tail
from txnlog.cli.times import format_time, parse_since_ms
from txnlog.consumer import Consumer
from txnlog.errors import UnknownTopicOrPartitionError
from txnlog.messages import OFFSET_BEGINNING, OFFSET_END, Message, TopicPartition
from txnlog.text import printable_bytes

app = typer.Typer(add_completion=False)

BATCH_RECORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """The fields of a line before the value, in the order of Kafka's console consumer.

    Files and programs get keys, values and headers as they are, as from Kafka's tool; a terminal
    would obey them.
    """

    key_separator: str | None
    timestamp: bool
    partition: bool
    offset: bool
    headers: bool
    for_people: bool

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
            named = (
                b"%s:%s" % (self._shown(name.encode()), self._shown(value))
                for name, value in message.headers() or ()
            )
            parts.append(b",".join(named) or b"NO_HEADERS")
        line = self._shown(message.value())
        if self.key_separator is not None:
            line = self._shown(message.key()) + self.key_separator.encode() + line
        return b"\t".join([*parts, line])

    def _shown(self, data: bytes | None) -> bytes:
        if data is None:
            return b"null"
        return printable_bytes(data).encode() if self.for_people else data


@dataclass(frozen=True, slots=True)
class Filter:
    """Regular expressions to find in key and value; a null is not found by any."""

    key: re.Pattern[str] | None
    value: re.Pattern[str] | None

    def __call__(self, message: Message) -> bool:
        return _is_found(self.key, message.key()) and _is_found(self.value, message.value())


def _is_found(pattern: re.Pattern[str] | None, data: bytes | None) -> bool:
    if pattern is None:
        return True
    return data is not None and pattern.search(data.decode(errors="replace")) is not None


def _pattern(option: str, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise typer.BadParameter(
            f"{option}: {value!r} is not a regular expression: {error}."
        ) from None


@app.command()
def consume(
    context: typer.Context,
    topic: Annotated[
        list[str],
        typer.Option("--topic", "-t", help="May be repeated.", autocompletion=completion.topics),
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Consume as a member of this group.",
            autocompletion=completion.groups,
        ),
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
    tail_count: Annotated[
        int | None,
        typer.Option(
            "--tail", help="Start with the last N records, by timestamp; no --group.", min=1
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Start at the first record at or after this time, or this duration ago, as in "
            "15m; no --group."
        ),
    ] = None,
    key_filter: Annotated[
        str | None, typer.Option(help="Only records with this regular expression in their key.")
    ] = None,
    value_filter: Annotated[
        str | None, typer.Option(help="Only records with this regular expression in their value.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", help="Maximum number of records.", min=1)
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(help="Exit if no record arrives for this interval.", min=0)
    ] = None,
    isolation_level: Annotated[
        str,
        typer.Option(
            help="read_committed or read_uncommitted.", autocompletion=completion.isolation_levels
        ),
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

    A file or a pipe gets keys, values and headers as they are; on a terminal their control
    characters are shown as \\xNN.

    With a group, offsets are committed after their records are written. After a broken pipe,
    records that were not written are not committed.
    """
    session = session_of(context)
    starts = {
        "--from-beginning": from_beginning and offset is None,
        "--offset": offset is not None,
        "--tail": tail_count is not None,
        "--since": since is not None,
    }
    given = [name for name, is_given in starts.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other.")
    if group is not None and (partition is not None or given not in ([], ["--from-beginning"])):
        raise typer.BadParameter(
            "--partition, --offset, --tail and --since cannot be used with --group."
        )
    matches = Filter(_pattern("--key-filter", key_filter), _pattern("--value-filter", value_filter))
    since_ms = None if since is None else parse_since_ms("--since", since)
    at_most = max_messages or BATCH_RECORDS
    has_filter = key_filter is not None or value_filter is not None
    config = {
        **session.config(),
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.auto.commit": False,
        "max.poll.records": BATCH_RECORDS if has_filter else min(BATCH_RECORDS, at_most),
    }
    to_line: Callable[[Message], bytes] = to_json
    if not session.is_json:
        to_line = LineFormat(
            key_separator=None if key_separator is None else key_separator.replace("\\t", "\t"),
            timestamp=print_timestamp,
            partition=print_partition,
            offset=print_offset,
            headers=print_headers,
            for_people=sys.stdout.isatty(),
        )
    if group is not None:
        config["group.id"] = group
    with stopped_by_signals() as stop, Consumer(config) as consumer:
        newest: list[Message] = []
        if group is not None:
            consumer.subscribe(topic)
        else:
            start = offset if offset is not None else _start(from_beginning)
            partitions = _partitions(consumer, topic, partition, start)
            if tail_count is not None:
                newest = tail(consumer, partitions, tail_count, matches, stop)
            elif since_ms is not None:
                consumer.assign(_at(consumer, partitions, since_ms))
            else:
                consumer.assign(partitions)
        for batch, shown in _batches(consumer, newest, matches, stop, max_messages, timeout_ms):
            sys.stdout.buffer.write(b"".join(to_line(message) + b"\n" for message in shown))
            sys.stdout.buffer.flush()
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


def _at(consumer: Consumer, partitions: list[TopicPartition], time_ms: int) -> list[TopicPartition]:
    """The partitions, at their first record at or after the time."""
    asked = [TopicPartition(p.topic, p.partition, time_ms) for p in partitions]
    return consumer.offsets_for_times(asked)


def _batches(
    consumer: Consumer,
    newest: list[Message],
    matches: Callable[[Message], bool],
    stop: threading.Event,
    count_max: int | None,
    timeout_ms: int | None,
) -> Iterator[tuple[list[Message], list[Message]]]:
    """Records that were read, and those of them that match; `newest` come first."""
    left = count_max
    idle_since = time.monotonic()
    batch = newest
    while not stop.is_set():
        if batch:
            shown, batch = _first(batch, matches, left)
            left = None if left is None else left - len(shown)
            yield batch, shown
            idle_since = time.monotonic()
        elif timeout_ms is not None and time.monotonic() - idle_since >= timeout_ms / 1000:
            return
        if left == 0:
            return
        batch = []
        # A subscribed topic that does not exist is logged, and may appear.
        with suppress(UnknownTopicOrPartitionError):
            batch = consumer.consume(timeout=POLL_S)


def _first(
    batch: list[Message], matches: Callable[[Message], bool], count: int | None
) -> tuple[list[Message], list[Message]]:
    """The first `count` records that match, and the batch up to the last of them."""
    shown: list[Message] = []
    for read, message in enumerate(batch, start=1):
        if matches(message):
            shown.append(message)
            if len(shown) == count:
                return shown, batch[:read]
    return shown, batch


def _after(batch: list[Message]) -> list[TopicPartition]:
    """The positions after these messages."""
    ends = {(m.topic(), m.partition()): m.offset() for m in batch}
    return [
        TopicPartition(topic, partition, offset + 1)
        for (topic, partition), offset in ends.items()
        if offset is not None
    ]
