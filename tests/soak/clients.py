"""The processes of the bounce test: producers, copiers, and a checker that reads all the while.

A record's value is `<producer>.<life>.<transaction>.<record>.<fate>`; fate `no` is a transaction
that its producer aborts, which no reader may ever see. What was acknowledged is written to a file
after the commit returned, so a killed process has recorded each acknowledged commit but one.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    IllegalGenerationError,
    OperationTimedOutError,
    OutcomeLostError,
    ProducerFencedError,
    TxnLogError,
)
from txnlog.messages import OFFSET_BEGINNING, ConsumerGroupMetadata, Message, TopicPartition
from txnlog.producer import Producer

PARTITIONS = 4
SOURCES = ("orders", "stock")
COPIES = "copies"
COUNTED = "counted"
GROUP = "copiers"
RECORDS = 6
ABORTED_EVERY = 3
FENCED = 3
PAUSE_S_MAX = 0.04

T = TypeVar("T")


@dataclass(frozen=True)
class Home:
    """A folder for notes of the processes, and the cluster: its root and options of its store.

    `is_faulty`: calls of the store may fail, and clients repeat what is retriable.
    """

    folder: Path
    root: str
    storage: dict[str, str] = field(default_factory=dict)
    is_faulty: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that each client has."""
        options = {f"storage.{name}": value for name, value in self.storage.items()}
        return {"txnlog.root": self.root, **options}

    @property
    def session_ms(self) -> int:
        """How long a member may be silent: a call of a faulty store takes seconds."""
        return 20_000 if self.is_faulty else 3_000

    def open(self, *, create: bool = False) -> Cluster:
        """The cluster."""
        return Cluster.open(self.root, self.storage, create=create)

    def persist(self, call: Callable[[], T]) -> T:
        """Make the call, again while it fails with what a faulty store explains."""
        while True:
            try:
                return call()
            except TxnLogError as error:
                if not (self.is_faulty and error.retriable):
                    raise
                time.sleep(0.05)


@dataclass(frozen=True)
class Habit:
    """How a client publishes, and where. With a group a producer counts its transactions there:
    its position in a topic `counted`, which nobody reads. At the fail point it dies.
    """

    publish: str = "deferred"
    topics: tuple[str, ...] = SOURCES
    group: str = ""
    failpoint: str = ""


def guarded(role: Callable[..., None], home: Home, name: str, life: int, *more: Habit) -> None:
    """Run a role; exit code 0 at its end, FENCED when another life took over, else 1.

    What a thread of a client had to log as an error is a failure, too.
    """
    failed = home.folder / f"failed-{name}-{life}"
    handler = logging.FileHandler(failed, delay=True)
    handler.setLevel(logging.ERROR)
    logging.getLogger("txnlog").addHandler(handler)
    try:
        role(home, name, life, *more)
    except BaseException as error:
        if _is_fence(error):
            sys.exit(FENCED)
        failed.write_text(traceback.format_exc())
        sys.exit(1)


def _is_fence(error: BaseException) -> bool:
    """Whether a successor took over, perhaps before the last commit's outcome could be learned."""
    cause = error.__cause__ if isinstance(error, OutcomeLostError) else error
    return isinstance(cause, (ProducerFencedError, IllegalGenerationError))


def produce(home: Home, name: str, life: int, habit: Habit) -> None:
    """Transactions over the topics, every third one aborted, until the file `stop` exists."""
    os.environ["TXNLOG_FAILPOINT"] = habit.failpoint
    chosen = random.Random(f"{name} {life}")
    counted = _Counted(home, habit.group) if habit.group else None
    producer = _producer(home, name, life, habit)
    number = 0
    with (home.folder / f"done-{name}-{life}").open("a") as done:
        while not (home.folder / "stop").exists():
            is_kept = number % ABORTED_EVERY != ABORTED_EVERY - 1
            home.persist(producer.begin_transaction)
            values = [
                f"{name}.{life}.{number}.{record}.{'yes' if is_kept else 'no'}"
                for record in range(RECORDS)
            ]
            is_sent = _send(home, producer, chosen, values, habit.topics, counted)
            if _end(home, producer, commit=is_kept and is_sent):
                done.write(f"{number}\n")
                done.flush()
                if counted is not None:
                    counted.position += 1
            number += 1
            time.sleep(chosen.random() * PAUSE_S_MAX)
    home.persist(producer.close)


class _Counted:
    """How many transactions a producer and its former lives have committed, by their group."""

    def __init__(self, home: Home, group_id: str) -> None:
        groups = home.persist(home.open).groups
        generation = home.persist(lambda: groups.start(group_id))
        self.group = ConsumerGroupMetadata(group_id, generation)
        found = home.persist(lambda: groups.fetch(group_id, generation))
        self.position = found.get(COUNTED, {}).get(0, 0)


def copy(home: Home, name: str, life: int, habit: Habit) -> None:
    """Copy orders, partition by partition, with the offsets in the transaction, as a group."""
    producer = _producer(home, name, life, habit)
    config = {
        **home.settings,
        "group.id": GROUP,
        "client.id": f"{name}.{life}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": home.session_ms,
        "heartbeat.interval.ms": home.session_ms // 10,
        "partition.assignment.strategy": "sticky",
    }
    reader = home.persist(lambda: Consumer(config))
    home.persist(lambda: reader.subscribe([SOURCES[0]]))
    number = 0
    while not (home.folder / "stop-copiers").exists():
        found = home.persist(lambda: reader.consume(100, 0.1))
        if not found:
            continue
        is_kept = number % ABORTED_EVERY != ABORTED_EVERY - 1
        if not _copy(home, producer, reader, found, commit=is_kept):
            _rewind(home, reader)
        number += 1
    home.persist(reader.close)
    home.persist(producer.close)


def check(home: Home, name: str, life: int) -> None:
    """Read everything as it appears; at the end write down what was read."""
    topics = (*SOURCES, COPIES)
    reader = home.persist(lambda: Consumer({**home.settings, "auto.offset.reset": "earliest"}))
    every = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in range(PARTITIONS)]
    home.persist(lambda: reader.assign(every))
    read: dict[str, list[list[tuple[int, str]]]] = {
        t: [[] for _ in range(PARTITIONS)] for t in topics
    }
    seen: dict[str, set[str]] = {t: set() for t in topics}
    while True:
        is_last = (home.folder / "stop-checker").exists()
        found = home.persist(lambda: reader.consume(10_000, 0.5))
        for message in found:
            value, offset = (message.value() or b"").decode(), message.offset() or 0
            topic, records = message.topic(), read[message.topic()][message.partition()]
            assert not value.endswith(".no"), f"{value} was aborted; {message}"
            assert value not in seen[topic], f"{value} is there twice; {message}"
            assert not records or records[-1][0] < offset, f"{message} after {records[-1]}"
            seen[topic].add(value)
            records.append((offset, value))
        for partition in range(PARTITIONS):
            copies, orders = read[COPIES][partition], read[SOURCES[0]][partition]
            both = zip(copies[-200:], orders[len(copies) - len(copies[-200:]) :], strict=False)
            for (_, copied), (_, order) in both:
                assert copied == order, f"partition {partition}: {copied} in place of {order}"
        if is_last and not found:
            break
    (home.folder / "checked.json").write_text(json.dumps(read))
    reader.close()


def _producer(home: Home, name: str, life: int, habit: Habit) -> Producer:
    """The owner of its id from now on, as the file `owner-...` records."""
    config = {
        **home.settings,
        "transactional.id": name,
        "transaction.publish": habit.publish,
        "linger.ms": 1,
    }
    producer = home.persist(lambda: Producer(config))
    home.persist(producer.init_transactions)
    (home.folder / f"owner-{name}-{life}").touch()
    return producer


def _send(
    home: Home,
    producer: Producer,
    chosen: random.Random,
    values: list[str],
    topics: Sequence[str],
    counted: _Counted | None,
) -> bool:
    """Produce to all topics; False if the store has failed and the transaction must abort."""
    try:
        for record, value in enumerate(values):
            topic = topics[record % len(topics)]
            producer.produce(topic, value, partition=chosen.randrange(PARTITIONS))
        if counted is not None:
            position = TopicPartition(COUNTED, 0, counted.position + 1)
            producer.send_offsets_to_transaction([position], counted.group)
        if chosen.random() < 0.5:
            producer.flush()
    except IllegalGenerationError:
        # Of a zombie: its successor's generation counts. Deferred transactions meet no other fence.
        raise
    except TxnLogError as error:
        if error.fatal or not home.is_faulty:
            raise
        return False
    return True


def _end(home: Home, producer: Producer, *, commit: bool) -> bool:
    """End the transaction; whether it was committed."""
    while commit:
        try:
            producer.commit_transaction()
            return True
        except OperationTimedOutError:
            continue
        except TxnLogError as error:
            if error.fatal:
                raise
            if home.is_faulty and error.retriable:
                continue
            break
    while True:
        try:
            home.persist(producer.abort_transaction)
            return False
        except OperationTimedOutError:
            continue


def _copy(
    home: Home, producer: Producer, reader: Consumer, found: list[Message], *, commit: bool
) -> bool:
    """One transaction; whether it was committed."""
    home.persist(producer.begin_transaction)
    try:
        ends: dict[int, int] = {}
        for message in found:
            producer.produce(COPIES, message.value(), partition=message.partition())
            ends[message.partition()] = (message.offset() or 0) + 1
        positions = [TopicPartition(SOURCES[0], p, offset) for p, offset in ends.items()]
        if os.getpid() % 2:
            # Of all partitions, as applications often do.
            known = reader.position(reader.assignment())
            positions = [position for position in known if position.offset >= 0]
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
    except TxnLogError as error:
        if error.fatal:
            raise
        commit = False
    return _end(home, producer, commit=commit)


def _rewind(home: Home, reader: Consumer) -> None:
    """Seek to the committed positions (R49); if another member has them now, join again."""
    try:
        for at in home.persist(lambda: reader.committed(reader.assignment(), 10)):
            offset = at.offset if at.offset >= 0 else OFFSET_BEGINNING
            reader.seek(TopicPartition(at.topic, at.partition, offset))
    except TxnLogError:
        reader.unsubscribe()
        reader.subscribe([SOURCES[0]])
