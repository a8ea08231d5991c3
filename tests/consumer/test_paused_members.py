"""A member that is paused for longer than its session, at any call of the store, and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.cases import Some
from tests.consumer.records import BEAT_MS, SESSION_MS, beat, consumer, member, put, world
from tests.world import process
from txnlog.errors import TxnLogError
from txnlog.messages import OFFSET_BEGINNING, ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.producer_states import LifecycleState as S
from txnlog.testing.faults import FaultsAt, FaultyStore, SharedMemory
from txnlog.testing.invariants import check_cluster

PARTITIONS, RECORDS, ROUNDS = 3, 4, 8
OPEN_STEPS = 2
STRIDE = 4


class Copier:
    """Copies topic t to topic out. A transaction is open over several polls, and its offsets are
    sent with the group metadata of the poll that returned its records.

    In the next `busy_steps` steps it does not poll; its heartbeat thread goes on.
    """

    def __init__(self, shared: SharedMemory, name: str, strategy: str) -> None:
        config: dict[str, Any] = {
            "enable_auto_commit": False,
            "partition_assignment_strategy": strategy,
        }
        self.reader = member(shared, **config)
        settings = {"txnlog.root": "memory://", "transactional.id": name}
        self.made = Producer(settings, cluster=process(shared), background=False)
        self.made.init_transactions()
        self.ends: dict[int, int] = {}
        self.group: ConsumerGroupMetadata | None = None
        self.must_rewind = False
        self.open_steps = self.busy_steps = 0

    @property
    def stores(self) -> list[FaultyStore]:
        stores = (self.reader._consumption().cluster.store, self.made._outlet.cluster.store)
        return [store for store in stores if isinstance(store, FaultyStore)]

    def work(self) -> None:
        """A heartbeat, a poll, and a step of its transaction."""
        try:
            beat(self.reader)
            if self.busy_steps:
                self.busy_steps -= 1
            else:
                self._step()
        except TxnLogError:
            self.must_rewind = True

    def _step(self) -> None:
        self.reader._consumption().maintain()
        self.made.poll(0)
        state = self.made._lifecycle.state
        if state is S.READY:
            self._begin()
        elif state is S.COMMITTING:
            self.made.commit_transaction()
        elif self.must_rewind or state is not S.IN_TRANSACTION:
            self.made.abort_transaction()
            self.must_rewind = True
        elif self.open_steps:
            self.open_steps -= 1
        else:
            assert self.group is not None
            ends = [TopicPartition("t", number, end) for number, end in self.ends.items()]
            self.made.send_offsets_to_transaction(ends, self.group)
            self.made.commit_transaction()

    def _begin(self) -> None:
        if self.must_rewind:
            for at in self.reader.committed(self.reader.assignment(), 1):
                offset = at.offset if at.offset >= 0 else OFFSET_BEGINNING
                self.reader.seek(TopicPartition(at.topic, at.partition, offset))
            self.must_rewind = False
        found = self.reader.consume(2, 0)
        if found:
            self.must_rewind = True
            self.group = self.reader.consumer_group_metadata()
            self.made.begin_transaction()
            self.open_steps = OPEN_STEPS
            self.ends = {one.partition(): (one.offset() or 0) + 1 for one in found}
            for one in found:
                self.made.produce("out", one.value(), partition=0)
            self.must_rewind = False


class History:
    """Two copiers, of which the second one joins while the first one copies.

    `is_busy`: while one is paused, the other one only sends heartbeats. It expels the paused one,
    and polls again only after that one has woken up and rejoined.
    """

    def __init__(self, strategy: str, *, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.shared = world(PARTITIONS)
        process(self.shared).create_topic("out", partitions=1)
        for number in range(PARTITIONS):
            values = [b"%d.%d" % (number, at) for at in range(RECORDS)]
            put(process(self.shared), *values, partition=number)
        self.copiers = [Copier(self.shared, "a", strategy), Copier(self.shared, "b", strategy)]

    def go_on(self, rounds: int, *copiers: Copier) -> None:
        for _ in range(rounds):
            self.shared.clock.advance_ms(BEAT_MS)
            for one in copiers:
                one.work()

    def run(self, who: int, plan: Callable[[History], FaultsAt]) -> FaultsAt:
        made = plan(self)
        for store in self.copiers[who].stores:
            store.plan = made
        self.go_on(2, self.copiers[0])
        self.go_on(ROUNDS, *self.copiers)
        return made

    def pause(self, who: int) -> None:
        other, rounds = self.copiers[1 - who], 2 * SESSION_MS // BEAT_MS
        if self.is_busy:
            other.busy_steps = rounds + 1
        self.go_on(rounds, other)

    def check(self, where: str) -> None:
        self.go_on(40, *self.copiers)
        after = process(self.shared)
        group = after.groups.fetch("g")
        assert group["t"] == dict.fromkeys(range(PARTITIONS), RECORDS), where
        reader = consumer(after)
        reader.assign([TopicPartition("out", 0)])
        copies = Counter(message.value() for message in reader.consume(1_000, 0))
        assert len(copies) == PARTITIONS * RECORDS, where
        assert max(copies.values()) == 1, f"{where}: {copies}"
        check_cluster(after)


@pytest.mark.parametrize(
    ("strategy", "is_busy"),
    [("cooperative-sticky", False), ("cooperative-sticky", True), ("range", False)],
)
@pytest.mark.parametrize("who", [0, 1])
def test_member_paused_at_any_call_copies_every_record_once(
    who: int, strategy: str, is_busy: bool, some: Some[int]
) -> None:
    """In each step of a hand-over, with a transaction under way (R46, R48)."""
    calls = History(strategy, is_busy=is_busy).run(who, lambda history: FaultsAt({})).calls
    for at in some(range(0, calls, STRIDE)):
        history = History(strategy, is_busy=is_busy)
        history.run(
            who,
            lambda history, at=at: FaultsAt(  # type: ignore[misc]
                {}, interlude=lambda: history.pause(who), interlude_at=at
            ),
        )
        history.check(f"paused at call {at} of {calls}")
