"""Random histories of several processes on a failing store, against a model a few lines long.

Every operation runs under a plan of faults (before, after, in place of the reply, landing late,
death), and may be met at any of its storage calls by another process that acts meanwhile. The
model knows of each transaction whether it was acknowledged, refused, or may be either; the store
must agree at every audit, and never change its mind.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.coordinator.processes import GROUP, TOPICS, consumed, faults, process, world
from tests.coordinator.sessions import Holder, Txn, check_positions, shown
from txnlog.cluster import Cluster
from txnlog.errors import StorageError, TxnLogError
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.storage.checkpoints import clean_up, create_checkpoint
from txnlog.storage.delta_log import LogSettings
from txnlog.sweeper import Sweeper
from txnlog.testing.faults import SharedMemory, SimulatedCrash, SkewedClock
from txnlog.testing.invariants import Witness, check_cluster
from txnlog.testing.strategies import Schedule, schedules

IDS = ("copy", "move")
PROCESSES = 3
DAY_MS = 86_400_000
SETTINGS = LogSettings(checkpoint_interval=7, checkpoint_mode="inline")


class CoordinatorMachine(RuleBasedStateMachine):
    """Producers, zombies, helpers, readers and clean-up, in any order."""

    @initialize(skews=st.lists(st.sampled_from([0, -DAY_MS, 400 * DAY_MS]), min_size=3, max_size=3))
    def start(self, skews: list[int]) -> None:
        # A batch write's id, and so its shard and the number of calls, would differ at each replay.
        numbers = count(1)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) * 0x9E3779B97F4A7C15))
        self.shared: SharedMemory = world(settings=SETTINGS)
        self.clocks = [SkewedClock(self.shared.clock, skew) for skew in skews]
        self.processes = [self.spawn(number) for number in range(PROCESSES)]
        self.sweepers = [Sweeper(cluster) for cluster in self.processes]
        self.stager = process(self.shared, settings=SETTINGS)
        self.holders: list[Holder] = []
        self.txns: dict[str, Txn] = {}
        self.given: dict[tuple[int, int], str] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.witness = Witness()
        self.names = 0
        self.busy = False

    def spawn(self, number: int) -> Cluster:
        return process(self.shared, settings=SETTINGS, clock=self.clocks[number])

    # --- Running one operation under faults -----------------------------------------------------

    def run(self, number: int, schedule: Schedule, act: Callable[[Cluster], object]) -> object:
        """What `act` returned, or the error it ended with; a crash replaces the process."""
        cluster = self.processes[number]
        store = faults(cluster)
        if not self.busy:
            store.plan = schedule.plan(lambda: self.meanwhile(number, schedule))
        try:
            return act(cluster)
        except SimulatedCrash as crash:
            self.processes[number] = self.spawn(number)
            self.sweepers[number] = Sweeper(self.processes[number])
            self.holders = [h for h in self.holders if h.process != number]
            return crash
        except TxnLogError as error:
            return error
        finally:
            store.plan = lambda verb, path: schedule.NO_FAULT

    def meanwhile(self, number: int, schedule: Schedule) -> None:
        """Another process acts while this one stands still."""
        if self.busy:
            return
        self.busy = True
        other = (number + 1) % PROCESSES
        try:
            match schedule.meanwhile:
                case "sweep":
                    self.sweep(other, schedule)
                case "take over":
                    self.take_over(other, IDS[schedule.salt % 2], schedule)
                case "commit":
                    self.commit(schedule.salt, True, schedule, avoid=number)
                case "read":
                    self.restart_group(schedule.salt, schedule, avoid=number)
                case "recreate":
                    self.recreate(other, TOPICS[schedule.salt % 2], schedule)
                case "day":
                    self.shared.clock.advance_ms(DAY_MS + 3_600_000)
                    self.tidy(other, schedule.salt, schedule)
                case "land":
                    self.shared.land_late()
        finally:
            self.busy = False

    def choose(self, index: int, avoid: int | None = None) -> Holder | None:
        fit = [h for h in self.holders if h.process != avoid]
        return fit[index % len(fit)] if fit else None

    def stage(self) -> Txn:
        """A transaction of one batch in each topic, not yet begun."""
        self.names += 1
        name = f"t{self.names}"
        batches = []
        for topic in TOPICS:
            log = self.stager.topic_log(topic)
            log.refresh()
            partition = self.names % 2
            batches.append(
                StagedBatch(
                    topic=topic,
                    topic_id=log.topic_id,
                    partition=partition,
                    path=f"part-{partition}-{name}.parquet",
                    size_bytes=9,
                    num_records=1 + self.names % 3,
                    timestamp_min_us=0,
                    timestamp_max_us=9,
                    staged_ms=self.stager.store.now_ms(),
                )
            )
        txn = Txn(name, batches, committed=None)
        self.txns[name] = txn
        return txn

    def learn(self, holder: Holder, txn: Txn, result: object) -> None:
        """Take note of how a commit ended."""
        holder.again = None
        holder.unknown = None
        if isinstance(result, TransactionMetadata):
            txn.settle(True)
            holder.row = result
            self.give(result, holder.run_id)
            if txn.span is not None:
                holder.position = txn.span[1]
        elif isinstance(result, (SimulatedCrash, StorageError)):
            holder.unknown = txn
            if txn.span is not None:
                holder.generation = None
        elif txn.committed is None:
            txn.settle(False)

    def give(self, row: TransactionMetadata, run_id: str) -> None:
        """No two sessions ever hold the same (producer id, epoch) (R10)."""
        if row.state.is_idle and row.owner.run_id == run_id:
            key = (row.producer_id, row.producer_epoch)
            assert self.given.setdefault(key, run_id) == run_id, f"{key} was given twice"

    # --- Producers ------------------------------------------------------------------------------

    @rule(number=st.integers(0, PROCESSES - 1), tid=st.sampled_from(IDS), schedule=schedules())
    def take_over(self, number: int, tid: str, schedule: Schedule) -> None:
        """A new session of an id; whoever had it before is a zombie from now on."""
        self.names += 1
        owner = Owner(run_id=f"run{self.names}")
        result = self.run(
            number,
            schedule,
            lambda c: c.coordinator.init_producer_id(tid, owner, timeout_ms=60_000),
        )
        if isinstance(result, TransactionMetadata):
            self.give(result, owner.run_id)
            self.holders = [*self.holders[-5:], Holder(number, owner.run_id, result)]

    @precondition(lambda self: self.holders)
    @rule(index=st.integers(0, 9), offsets=st.booleans(), schedule=schedules())
    def commit(
        self, index: int, offsets: bool, schedule: Schedule, avoid: int | None = None
    ) -> None:
        """Commit staged batches or what is open, with the input read so far."""
        holder = self.choose(index, avoid)
        if holder is None or holder.again is not None:
            return
        txn, batches = holder.open, []
        if txn is None:
            txn = self.stage()
            batches = txn.batches
        requests = []
        if offsets and holder.generation is None:
            self.begin_reading(holder, Schedule(faults={}))
        if offsets and holder.generation is not None:
            txn.span = (holder.position, holder.position + 5)
            requests = [consumed(*txn.span, generation=holder.generation)]
        row = holder.row
        result = self.run(
            holder.process,
            schedule,
            lambda c: c.coordinator.commit(row, batches, offsets=requests),
        )
        self.learn(holder, txn, result)
        holder.open = None
        if isinstance(result, StorageError):
            holder.again = lambda: self.processes[holder.process].coordinator.commit(
                row, batches, offsets=requests
            )

    @precondition(lambda self: any(h.again for h in self.holders))
    @rule(schedule=schedules())
    def commit_again(self, schedule: Schedule) -> None:
        """After a commit that ended unknown, the same commit may be asked for again (R41)."""
        holder = next(h for h in self.holders if h.again)
        again, txn = holder.again, holder.unknown
        assert again is not None
        assert txn is not None
        result = self.run(holder.process, schedule, lambda _: again())
        if isinstance(result, TransactionMetadata):
            self.learn(holder, txn, result)
            holder.generation = None
        elif not isinstance(result, StorageError):
            # Fenced, say: still nobody told us what became of it. The session is over.
            self.holders = [h for h in self.holders if h is not holder]

    @precondition(lambda self: any(h.open is None and h.again is None for h in self.holders))
    @rule(index=st.integers(0, 9), group=st.booleans(), schedule=schedules())
    def append(self, index: int, group: bool, schedule: Schedule) -> None:
        """Open a transaction and append to both topics as `ongoing`."""
        fit = [h for h in self.holders if h.open is None and h.again is None]
        holder = fit[index % len(fit)]
        txn = self.stage()

        def act(cluster: Cluster) -> TransactionMetadata:
            partitions = [
                TopicPartitions(topic=b.topic, topic_id=b.topic_id, partitions=(b.partition,))
                for b in txn.batches
            ]
            groups = (GROUP,) if group else ()
            row = cluster.coordinator.add_partitions(holder.row, partitions, groups=groups)
            for batch in txn.batches:
                cluster.coordinator.append(row, [batch], {batch.partition: 0})
            return row

        result = self.run(holder.process, schedule, act)
        if isinstance(result, TransactionMetadata):
            holder.row, holder.open = result, txn
        else:
            # Whoever does not know what he has written must not commit it.
            txn.settle(False)
            self.holders = [h for h in self.holders if h is not holder]

    @precondition(lambda self: any(h.open for h in self.holders))
    @rule(index=st.integers(0, 9), schedule=schedules())
    def abort(self, index: int, schedule: Schedule) -> None:
        """Abort what is open."""
        fit = [h for h in self.holders if h.open]
        holder = fit[index % len(fit)]
        assert holder.open is not None
        holder.open.settle(False)
        holder.open = None
        row = holder.row
        result = self.run(holder.process, schedule, lambda c: c.coordinator.abort(row))
        if isinstance(result, TransactionMetadata):
            holder.row = result
            self.give(result, holder.run_id)
        else:
            self.holders = [h for h in self.holders if h is not holder]

    @rule(number=st.integers(0, PROCESSES - 1), schedule=schedules())
    def commit_one_off(self, number: int, schedule: Schedule) -> None:
        """A batch write."""
        txn = self.stage()
        result = self.run(
            number,
            schedule,
            lambda c: c.coordinator.commit_one_off(txn.batches, Owner(run_id=txn.name)),
        )
        if result is None:
            txn.settle(True)
        elif not isinstance(result, (SimulatedCrash, StorageError)):
            txn.settle(False)

    # --- Groups, topics, time -------------------------------------------------------------------

    @precondition(lambda self: self.holders)
    @rule(index=st.integers(0, 9), schedule=schedules())
    def restart_group(self, index: int, schedule: Schedule, avoid: int | None = None) -> None:
        """A session starts to read: it bumps the generation, then asks where the group stands."""
        holder = self.choose(index, avoid)
        if holder is not None:
            self.begin_reading(holder, schedule)

    def begin_reading(self, holder: Holder, schedule: Schedule) -> None:
        def act(cluster: Cluster) -> tuple[int, int]:
            generation = cluster.groups.start(GROUP)
            found = cluster.groups.fetch(GROUP, generation)
            return generation, found.get("input", {}).get(0, 0)

        result = self.run(holder.process, schedule, act)
        if isinstance(result, tuple):
            holder.generation, holder.position = result

    @rule(number=st.integers(0, PROCESSES - 1), topic=st.sampled_from(TOPICS), schedule=schedules())
    def recreate(self, number: int, topic: str, schedule: Schedule) -> None:
        """Delete a topic and create it again; what the old one held is gone for good (R71)."""
        self.run(number, schedule, lambda c: c.delete_topic(topic))
        self.stager.create_topic(topic, partitions=2, exist_ok=True)

    @rule(number=st.integers(0, PROCESSES - 1), schedule=schedules())
    def sweep(self, number: int, schedule: Schedule) -> None:
        self.run(number, schedule, lambda _: self.sweepers[number].sweep())

    @rule(number=st.integers(0, PROCESSES - 1), salt=st.integers(0, 9), schedule=schedules())
    def tidy(self, number: int, salt: int, schedule: Schedule) -> None:
        """Checkpoint a table and remove what has expired."""
        tables = [*TOPICS, "__consumer_offsets", "__transaction_state-0", "__transaction_state-1"]
        table = tables[salt % len(tables)]

        def act(cluster: Cluster) -> None:
            create_checkpoint(cluster.store, table, trust_ms=SETTINGS.trust_ms)
            clean_up(cluster.store, table, retention_ms=SETTINGS.log_retention_ms)

        self.run(number, schedule, act)

    @rule(duration_ms=st.sampled_from([1_000, 20_000, 90_000, 40 * 60_000, DAY_MS + 3_600_000]))
    def wait(self, duration_ms: int) -> None:
        self.shared.clock.advance_ms(duration_ms)

    @rule(step_ms=st.sampled_from([-DAY_MS, 5_000, 40 * DAY_MS]), number=st.integers(0, 2))
    def set_clock(self, step_ms: int, number: int) -> None:
        """Somebody corrects a machine's clock (R34)."""
        self.clocks[number].skew_ms += step_ms

    @rule(number=st.integers(0, PROCESSES - 1))
    def restart(self, number: int) -> None:
        """A process is replaced by one that knows nothing; its sessions are gone."""
        self.processes[number] = self.spawn(number)
        self.sweepers[number] = Sweeper(self.processes[number])
        self.holders = [h for h in self.holders if h.process != number]

    # --- What must hold -------------------------------------------------------------------------

    @invariant()
    def readers_see_only_what_may_be_seen(self) -> None:
        """Nothing refused or aborted is ever visible, nothing visible ever moves (R15, R45)."""
        cluster = process(self.shared)
        check_cluster(cluster)
        self.witness.look(cluster)
        for topic in TOPICS:
            log = cluster.topic_log(topic)
            log.refresh()
            for partition, state in enumerate(log.view.partitions):
                key = (topic, partition)
                assert state.end_offset >= self.ends.get(key, 0), f"{key} went back"
                self.ends[key] = state.end_offset
            for name in shown(cluster, topic):
                txn = self.txns[name]
                assert txn.committed is not False, f"{name} was refused and is visible in {topic}"
                mine = {batch.topic: batch.topic_id for batch in txn.batches}
                assert mine[topic] == log.topic_id, f"{name} is in another topic than it was for"

    @rule()
    def audit(self) -> None:
        """After a recovery by a fresh process, every transaction is all there or not at all."""
        self.shared.land_late()
        cluster = process(self.shared, settings=SETTINGS)
        sweeper = Sweeper(cluster)
        for _ in range(3):
            sweeper.sweep()
            self.shared.clock.advance_ms(120_000)
        check_cluster(cluster, settled=True)
        seen = {topic: set(shown(cluster, topic)) for topic in TOPICS}
        for txn in self.txns.values():
            topics = [
                b.topic for b in txn.batches if cluster.topic_log(b.topic).topic_id == b.topic_id
            ]
            found = {txn.name in seen[topic] for topic in topics}
            assert len(found) < 2, f"{txn.name} is torn: {[txn.name in seen[t] for t in topics]}"
            is_open = any(h.open is txn for h in self.holders)
            if found and not is_open:
                txn.settle(found.pop())
        check_positions(cluster, list(self.txns.values()))

    def teardown(self) -> None:
        if not hasattr(self, "shared"):
            return
        try:
            self.audit()
            before = {topic: shown(process(self.shared), topic) for topic in TOPICS}
            self.audit()
            assert before == {topic: shown(process(self.shared), topic) for topic in TOPICS}
        finally:
            self.patch.undo()


class TestCoordinator(CoordinatorMachine.TestCase):
    """Seeds and steps of a failure are printed; its blob replays it anywhere."""

    pytestmark = pytest.mark.slow
    settings = hypothesis_settings(max_examples=35, stateful_step_count=30)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(12))
def test_coordinator_for_long(part: int) -> None:
    """The same with new histories. In parts: a test of five minutes counts as one that hangs."""
    run_state_machine_as_test(
        CoordinatorMachine,
        settings=hypothesis_settings(max_examples=80, stateful_step_count=60, derandomize=False),
    )
