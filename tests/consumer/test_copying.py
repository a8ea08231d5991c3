"""Consume, transform, produce: each record is copied once, whatever happens to the members."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.consumer.records import BEAT_MS, SESSION_MS, beat, consumer, member, put, staged, world
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.consuming.group_session import SETTLE_PATIENCE_MS
from txnlog.errors import ClientStateError, TxnLogError
from txnlog.messages import TopicPartition
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch, TransactionMetadata
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster

PARTITIONS = 3


@dataclass
class Worker:
    """A process that copies t to out, one transaction at a time, with its own transactional.id."""

    name: str
    reader: Consumer
    cluster: Cluster
    row: TransactionMetadata
    open: tuple[list[StagedBatch], list[GroupOffsets]] | None = None
    must_rewind: bool = False
    lost: list[str] = field(default_factory=list)

    def copy(self, count: int) -> None:
        """Read some records, stage their copies, and send the offsets to the transaction."""
        if self.open is not None:
            return
        if self.must_rewind and not self.rewind():
            return
        found = self.reader.consume(count, 0)
        if not found:
            return
        values = [message.value() for message in found]
        who = self.reader.consumer_group_metadata()
        end: dict[str, dict[int, int]] = {"t": {}}
        for message in found:
            end["t"][message.partition()] = (message.offset() or 0) + 1
        offsets = GroupOffsets(
            group_id="g", generation=who.generation, member_id=who.member_id, start={}, end=end
        )
        self.open = ([staged(self.cluster, values, topic="out")], [offsets])

    def commit(self) -> None:
        if self.open is None:
            return
        batches, offsets = self.open
        self.open = None
        try:
            self.row = self.cluster.coordinator.commit(self.row, batches, offsets=offsets)
        except TxnLogError as error:
            self.lost.append(type(error).__name__)
            self.must_rewind = True
            self.row = self.cluster.coordinator.init_producer_id(
                self.name, Owner(run_id=str(uuid.uuid4()))
            )

    def rewind(self) -> bool:
        """Seek to the committed offsets, as after any abort (R49)."""
        try:
            held = self.reader.committed(self.reader.assignment(), 0)
            for p in held:
                self.reader.seek(TopicPartition(p.topic, p.partition, max(0, p.offset)))
        except (TxnLogError, ClientStateError):
            return False
        self.must_rewind = False
        return True


def new_worker(shared: SharedMemory, name: str, strategy: str = "range") -> Worker:
    reader = member(
        shared,
        enable_auto_commit=False,
        client_id=name,
        partition_assignment_strategy=strategy,
    )
    cluster = reader._consumption().cluster
    row = cluster.coordinator.init_producer_id(name, Owner(run_id=str(uuid.uuid4())))
    return Worker(name, reader, cluster, row)


def check_copied_once(shared: SharedMemory, produced: int) -> None:
    reader = consumer(process(shared))
    reader.assign([TopicPartition("out", 0)])
    copied = Counter(int(m.value() or b"-1") for m in reader.consume(10_000, 0))
    assert copied == Counter(range(produced))
    check_cluster(process(shared))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_worker_killed_at_any_call_of_its_transaction_loses_and_repeats_nothing(
    fault: Fault, strategy: str
) -> None:
    """The new owner continues at the committed offsets if none is pending (R36, R45, R46, R48)."""
    for number in range(20):
        shared = world(1)
        process(shared).create_topic("out", partitions=1)
        put(process(shared), b"0", b"1", b"2")
        worker = new_worker(shared, "dying", strategy)
        worker.copy(2)
        store = worker.cluster.store
        assert isinstance(store, FaultyStore)
        store.plan = FaultsAt({number: fault})
        with suppress(SimulatedCrash):
            worker.commit()
        is_dead = store.dead
        successor = new_worker(shared, "successor", strategy)
        successor.reader._consumption().require_session().join(("t",))
        successor.reader._consumption().require_session().membership.complete_join()
        for _ in range(SESSION_MS // BEAT_MS + 2):
            # No poll: its sweeper would settle everything before the new owner reads.
            shared.clock.advance_ms(BEAT_MS)
            successor.reader._consumption().is_due()
            beat(successor.reader)
        for _ in range(SETTLE_PATIENCE_MS // BEAT_MS + 2):
            successor.copy(10)
            successor.commit()
            shared.clock.advance_ms(BEAT_MS)
            beat(successor.reader)
        check_copied_once(shared, 3)
        if not is_dead:
            break
    else:
        raise AssertionError("a commit has more calls than are tried here")


class Copying(RuleBasedStateMachine):
    """Workers start, stop, die, sleep past their time-outs and wake up, in any order."""

    strategy = "range"

    @initialize()
    def begin(self) -> None:
        self.shared = world(PARTITIONS)
        process(self.shared).create_topic("out", partitions=1)
        self.produced = 0
        self.started = 0
        self.workers: list[Worker] = []
        for partition in range(PARTITIONS):
            self.produce(partition, 4)
        self.start()
        self.start()
        self.calm_down()

    @rule()
    def start(self) -> None:
        if len(self.workers) == 3:
            return
        self.workers.append(new_worker(self.shared, f"w{self.started}", self.strategy))
        self.started += 1

    def pick(self, number: int) -> Worker | None:
        return self.workers[number % len(self.workers)] if self.workers else None

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 4))
    def produce(self, partition: int, count: int) -> None:
        values = [b"%d" % (self.produced + number) for number in range(count)]
        self.produced += count
        put(process(self.shared), *values, partition=partition)

    @rule(number=st.integers(0, 2), count=st.integers(1, 5))
    def copy(self, number: int, count: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            worker.copy(count)

    @rule(number=st.integers(0, 2))
    def commit(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            worker.commit()

    @rule(number=st.integers(0, 2), count=st.integers(1, 5))
    def copy_and_commit(self, number: int, count: int) -> None:
        self.produce(number, 2)
        self.copy(number, count)
        self.commit(number)

    @rule(number=st.integers(0, 2))
    def beat(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            beat(worker.reader)

    @rule(number=st.integers(0, 2))
    def close(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            worker.reader.close()
            self.workers.remove(worker)

    @rule(number=st.integers(0, 2), call=st.integers(0, 14))
    def die_in_the_middle_of_a_commit(self, number: int, call: int) -> None:
        """After the offsets are pending, or decided, or some topics are written (R36, R46)."""
        worker = self.pick(number)
        if worker is None:
            return
        worker.copy(3)
        store = worker.cluster.store
        assert isinstance(store, FaultyStore)
        store.plan = FaultsAt({call: Fault.CRASH_AFTER})
        with suppress(SimulatedCrash):
            worker.commit()
        self.workers.remove(worker)

    @rule()
    def calm_down(self) -> None:
        """All workers poll and send heartbeats until the group is stable."""
        for _ in range(3):
            self.shared.clock.advance_ms(BEAT_MS)
            for worker in self.workers:
                beat(worker.reader)
                if worker.open is None:
                    worker.reader._consumption().maintain()

    @rule(number=st.integers(0, 2))
    def die(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            self.workers.remove(worker)

    @rule(beats=st.sampled_from([1, 1, 1, 8, 17]), but=st.integers(0, 3))
    def wait(self, beats: int, but: int) -> None:
        """Time passes; all but one worker send heartbeats."""
        for _ in range(beats):
            self.shared.clock.advance_ms(BEAT_MS)
            for number, worker in enumerate(self.workers):
                if number != but:
                    beat(worker.reader)
                    worker.reader._consumption().is_due()

    @rule()
    def reset_by_a_non_member(self) -> None:
        """A client outside the group begins a generation (a Spark query, a reader with assign)."""
        process(self.shared).groups.start("g")

    def teardown(self) -> None:
        if not hasattr(self, "shared"):
            return
        finisher = new_worker(self.shared, "last", self.strategy)
        for _ in range(25):
            self.shared.clock.advance_ms(BEAT_MS)
            finisher.copy(100)
            beat(finisher.reader)
            finisher.commit()
        for _ in range(4):
            finisher.copy(100)
            finisher.commit()
        for worker in self.workers:
            # Workers that are still alive wake up and find everything done.
            worker.commit()
        check_copied_once(self.shared, self.produced)


class CooperativeCopying(Copying):
    """The same; those that live keep their partitions while others come and go (R48)."""

    strategy = "cooperative-sticky"


class TestCopying(Copying.TestCase):
    settings = settings(max_examples=settings().max_examples // 3)


class TestCooperativeCopying(CooperativeCopying.TestCase):
    settings = settings(max_examples=settings().max_examples // 3)
