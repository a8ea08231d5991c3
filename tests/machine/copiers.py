"""Clients that read: members of a group, and copiers that commit positions in transactions."""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine.actors import ENDS, Actor, Kind, S, Writer
from tests.machine.world import (
    BUGS,
    COPIERS,
    COPIES,
    JOBS,
    READERS,
    SOURCE,
    TOPICS,
    Process,
    World,
)
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.messages import OFFSET_BEGINNING, Message, TopicPartition

EVERYTHING = [TopicPartition(SOURCE, number) for number in range(TOPICS[SOURCE])]


class Copier(Writer):
    """Consume, copy, and commit the positions with the copies (KIP-447).

    A job has no subscription: its partitions are assigned manually.
    """

    def __init__(self, world: World, kind: Kind, number: int, *, keep: bool = False) -> None:
        super().__init__(world, kind, number, keep=keep)
        self.is_job = kind.role == "job"
        self.group = JOBS if self.is_job else COPIERS
        self.reader = consumer(self.process, self.group, "read_committed")
        self._must_rewind = False

    def start(self) -> None:
        super().start()
        self.call(self._subscribe)

    def _subscribe(self) -> None:
        if self.is_job:
            self.reader.assign(EVERYTHING)
        else:
            self.reader.subscribe([SOURCE])

    def beat(self) -> None:
        super().beat()
        self.call(lambda: beat(self.reader))

    def work(self, places: Sequence[tuple[str, int]], end: str) -> None:
        """One transaction: the records read since the last one."""
        if self.is_dead:
            return
        if self.made._lifecycle.state not in (S.READY, S.IN_TRANSACTION):
            self.end(end)
            self._must_rewind = True
            return
        self.beat()
        if self._must_rewind and self.call(self._rewind) != "done":
            return
        found: list[Message] = []
        self.call(lambda: found.extend(self.reader.consume(1 + len(places), 0)))
        if found:
            self._copy(found, end)

    def _copy(self, found: list[Message], end: str) -> None:
        self.begin()
        ends: dict[int, int] = {}
        for message in found:
            offset, source = message.offset() or 0, (SOURCE, message.partition())
            self.produce(COPIES, message.partition(), (self.group, source, offset))
            ends[message.partition()] = offset + 1
        if end.startswith("flush"):
            self.flush()
        positions = [TopicPartition(SOURCE, number, offset) for number, offset in ends.items()]
        sent = self.call(lambda: self._send_mine(positions))
        how = end.rpartition(" ")[2]
        if sent != "done" or not self.is_open or how not in ENDS:
            # Nothing else may be copied in it: the next poll continues after these records.
            how = "abort"
        if self.end(how) != "done" or how != "commit":
            self._must_rewind = True
        else:
            self.world.tell(self.group, {(SOURCE, n): offset for n, offset in ends.items()})

    def _send_mine(self, positions: list[TopicPartition]) -> None:
        who = self.reader.consumer_group_metadata()
        self.made.send_offsets_to_transaction(positions, who, 10)

    def _rewind(self) -> None:
        """Seek to the committed positions (R49), or subscribe again if they cannot be read."""
        if self.is_job:
            self._subscribe()
        else:
            self._seek_committed()
        self._must_rewind = False

    def _seek_committed(self) -> None:
        try:
            for at in self.reader.committed(self.reader.assignment(), 10):
                offset = at.offset if at.offset >= 0 else OFFSET_BEGINNING
                self.reader.seek(TopicPartition(at.topic, at.partition, offset))
        except BUGS:
            raise
        except TxnLogError:
            try:
                self.reader.unsubscribe()
            finally:
                self._subscribe()


class Reader(Actor):
    """A member of a group with plain commits: at least once, nothing skipped."""

    def __init__(self, world: World, kind: Kind, number: int, *, keep: bool = False) -> None:
        super().__init__(world, kind, number)
        self.reader = consumer(self.process, READERS, kind.how)

    def start(self) -> None:
        self.reader.subscribe([SOURCE, COPIES])

    def beat(self) -> None:
        self.call(lambda: beat(self.reader))

    def work(self, places: Sequence[tuple[str, int]], end: str) -> None:
        """Read some, and commit."""
        self.beat()
        self.call(lambda: self._read(1 + 3 * len(places)))
        if not self.is_dead and end.endswith("commit") and self.reader.assignment():
            self.call(lambda: self.reader.commit(asynchronous=False))

    def _read(self, count: int) -> None:
        for message in self.reader.consume(count, 0):
            key = (message.topic(), message.partition())
            self.world.handed_out.setdefault(key, set()).add(message.offset() or 0)


def consumer(process: Process, group: str, isolation: str) -> Consumer:
    """A consumer without a thread."""
    config = {
        "group.id": group,
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
        "max.poll.interval.ms": 120_000,
        "partition.assignment.strategy": "cooperative-sticky" if group == COPIERS else "range",
    }
    return Consumer(config, cluster=process.open(), background=False)


def beat(reader: Consumer) -> None:
    """A heartbeat, as the consumer's thread would do it."""
    reader._consumption().require_session().heartbeat.send()
