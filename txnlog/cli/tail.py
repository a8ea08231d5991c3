"""The last records of some partitions, for `consume --tail`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from txnlog.consumer import Consumer
from txnlog.messages import Message, TopicPartition

POLL_S = 0.2
"""Maximum delay until Ctrl-C takes effect."""

GROWTH = 4

Key = tuple[str, int]


def tail(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    count: int,
    matches: Callable[[Message], bool],
    stop: threading.Event,
) -> list[Message]:
    """The newest `count` records that match, by timestamp and oldest first.

    The consumer is then assigned the partitions, from where they ended. A range of offsets may have
    fewer records (compaction, aborted data, filters): it reads further back until it has enough.
    """
    keys: list[Key] = [(p.topic, p.partition) for p in partitions]
    bounds = {key: consumer.get_watermark_offsets(TopicPartition(*key)) for key in keys}
    starts = {key: end for key, (_, end) in bounds.items()}
    found: dict[Key, list[Message]] = {key: [] for key in keys}
    span = count
    while not stop.is_set():
        short = [key for key in keys if len(found[key]) < count and starts[key] > bounds[key][0]]
        if not short:
            break
        ranges = {key: (max(bounds[key][0], starts[key] - span), starts[key]) for key in short}
        read = _read(consumer, ranges, count, matches, stop)
        for key in short:
            found[key] = [*read[key], *found[key]][-count:]
            starts[key] = ranges[key][0]
        span *= GROWTH
    consumer.assign([TopicPartition(*key, bounds[key][1]) for key in keys])
    newest = sorted((message for key in keys for message in found[key]), key=_timestamp_ms)
    return newest[-count:]


def _read(
    consumer: Consumer,
    ranges: dict[Key, tuple[int, int]],
    count: int,
    matches: Callable[[Message], bool],
    stop: threading.Event,
) -> dict[Key, list[Message]]:
    """The last `count` records of each range of offsets that match."""
    found: dict[Key, list[Message]] = {key: [] for key in ranges}
    consumer.assign([TopicPartition(*key, start) for key, (start, _) in ranges.items()])
    asked = [TopicPartition(*key) for key in ranges]
    while not stop.is_set():
        batch = consumer.consume(timeout=POLL_S)
        for message in batch:
            key = (message.topic() or "", message.partition() or 0)
            if (message.offset() or 0) < ranges[key][1] and matches(message):
                found[key].append(message)
                del found[key][:-count]
        if all(p.offset >= ranges[p.topic, p.partition][1] for p in consumer.position(asked)):
            break
    return found


def _timestamp_ms(message: Message) -> int:
    return message.timestamp()[1]
