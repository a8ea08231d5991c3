"""Random histories of producers of every kind, against a model of what readers may see.

Producers are started, die, sleep and wake up as zombies; replies are lost, puts land late, the
clock runs, sweepers sweep. The model knows of every transaction only what its producer was told.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.coordinator.processes import process, recover
from tests.producer.worlds import GROUP, TOPICS, cluster_of, group, producer, read, values, world
from txnlog.errors import (
    OutcomeLostError,
    TxnLogError,
    UnstableOffsetCommitError,
)
from txnlog.messages import Message, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.producer_states import ProducerState
from txnlog.sweeper import Sweeper
from txnlog.testing.faults import Fault, FaultsAt, SimulatedCrash
from txnlog.testing.invariants import Witness, check_cluster

KINDS = [("deferred", "a"), ("deferred", "b"), ("eager", "a"), ("eager", "b"), ("plain", "")]
FAULTS = [
    Fault.LOSE_REPLY,
    Fault.FAIL_BEFORE,
    Fault.SAY_EXISTS,
    Fault.LAND_LATE,
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
]


@dataclass
class Txn:
    """A transaction: its records, its position, and how it ended (None: not known)."""

    values: list[str] = field(default_factory=list)
    position: int | None = None
    committed: bool | None = None

    def settle(self, committed: bool) -> None:
        assert self.committed in (None, committed), f"{self} ended twice, now {committed}"
        self.committed = committed


@dataclass
class Actor:
    """A producer and what it was told."""

    number: int
    made: Producer
    is_plain: bool
    txn: Txn | None = None
    state: str | None = None
    is_dead: bool = False

    @property
    def is_open(self) -> bool:
        if self.is_dead:
            return False
        return self.made._state in (ProducerState.IN_TRANSACTION, ProducerState.IDLE)


ALIVE_MAX = 3
ACTORS = st.integers(min_value=0, max_value=ALIVE_MAX - 1)
CALLS = st.integers(min_value=0, max_value=14)


class Producers(RuleBasedStateMachine):
    """Every rule is one call of one producer, or of the world around them."""

    @initialize()
    def begin(self) -> None:
        self.shared = world()
        self.actors: list[Actor] = []
        self.txns: list[Txn] = []
        self.delivered: dict[str, tuple[str, int, int | None]] = {}
        self.failed: set[str] = set()
        self.witness = Witness()
        self.count = 0

    def actor(self, at: int) -> Actor | None:
        alive = [actor for actor in self.actors if not actor.is_dead]
        return alive[at % len(alive)] if alive else None

    def call(self, actor: Actor, act: Callable[[], object], *, ends: bool = False) -> str:
        """Do it; what became of the transaction, by what the producer says."""
        try:
            act()
            return "done"
        except SimulatedCrash:
            actor.is_dead = True
            return "crashed"
        except TxnLogError as error:
            lost = isinstance(error, OutcomeLostError)
            over = actor.made._state in (ProducerState.FATAL_ERROR, ProducerState.ABORTABLE_ERROR)
            if actor.txn is not None and over and not lost:
                actor.txn.settle(False)
            if actor.made._state is ProducerState.FATAL_ERROR:
                actor.is_dead = True
            return type(error).__name__

    # -- producers -------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), keep=st.booleans())
    def start(self, kind: tuple[str, str], keep: bool) -> None:
        if sum(not actor.is_dead for actor in self.actors) < ALIVE_MAX:
            self.start_any(kind, keep)

    def start_any(self, kind: tuple[str, str], keep: bool) -> None:
        publish, name = kind
        number = len(self.actors)
        if publish == "plain":
            made = producer(self.shared, delivery_timeout_ms=20_000)
            self.actors.append(Actor(number, made, True))
            return
        made = producer(self.shared, name, publish, delivery_timeout_ms=20_000)
        actor = Actor(number, made, False)
        self.actors.append(actor)
        assert self.call(actor, lambda: made.init_transactions(keep_prepared=keep)) == "done"
        if made.prepared_state is not None:
            owners = [a for a in self.actors if a.state == made.prepared_state]
            assert owners, "a prepared transaction that nobody has prepared"
            actor.txn, actor.state = owners[-1].txn, made.prepared_state

    @rule(at=ACTORS, topic=st.sampled_from(TOPICS), partition=st.sampled_from([-1, 0, 1]))
    def produce(self, at: int, topic: str, partition: int) -> None:
        actor = self.actor(at)
        if actor is None:
            return
        if not actor.is_plain and actor.made._state is ProducerState.READY:
            actor.txn = Txn()
            self.txns.append(actor.txn)
            actor.made.begin_transaction()
        if not actor.is_open:
            return
        self.count += 1
        value = f"{actor.number:03}:{self.count:06}"

        def told(error: Exception | None, message: Message) -> None:
            if error is not None:
                self.failed.add(value)
            else:
                assert value not in self.delivered
                place = (message.topic(), message.partition(), message.offset())
                self.delivered[value] = place

        if (
            self.call(actor, lambda: actor.made.produce(topic, value, None, partition, told))
            == "done"
            and actor.txn is not None
        ):
            actor.txn.values.append(value)

    @rule(at=ACTORS)
    def flush(self, at: int) -> None:
        actor = self.actor(at)
        if actor is not None:
            self.call(actor, lambda: actor.made.flush(5))

    @rule(at=ACTORS)
    def send_offsets(self, at: int) -> None:
        actor = self.actor(at)
        if actor is None or actor.txn is None or not actor.is_open:
            return
        self.count += 1
        position = [TopicPartition("input", 0, self.count)]
        made = actor.made
        if self.call(actor, lambda: made.send_offsets_to_transaction(position, group())) == "done":
            actor.txn.position = self.count

    @rule(at=ACTORS)
    def commit(self, at: int) -> None:
        actor = self.actor(at)
        if actor is None or actor.txn is None:
            return
        states = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING, ProducerState.PREPARED)
        if actor.made._state in states:
            txn = actor.txn
            if self.call(actor, lambda: actor.made.commit_transaction(10)) == "done":
                txn.settle(True)
                actor.txn = actor.state = None

    @rule(at=ACTORS)
    def abort(self, at: int) -> None:
        actor = self.actor(at)
        if actor is None or actor.txn is None:
            return
        states = (
            ProducerState.IN_TRANSACTION,
            ProducerState.ABORTING,
            ProducerState.PREPARING,
            ProducerState.PREPARED,
            ProducerState.ABORTABLE_ERROR,
        )
        if actor.made._state in states:
            txn = actor.txn
            if self.call(actor, lambda: actor.made.abort_transaction(10)) == "done":
                txn.settle(False)
                actor.txn = actor.state = None

    @rule(at=ACTORS)
    def prepare(self, at: int) -> None:
        actor = self.actor(at)
        if actor is None or actor.made._state is not ProducerState.IN_TRANSACTION:
            return

        def act() -> None:
            row = actor.made._own().row
            # As the outside database would hold it, also when the process dies now.
            actor.state = f"{row.producer_id}:{row.producer_epoch}"
            assert actor.made.prepare_transaction(10) == actor.state

        self.call(actor, act)

    @rule(
        at=ACTORS,
        places=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.sampled_from([-1, 0, 1])), max_size=5
        ),
        flushes=st.booleans(),
        offsets=st.booleans(),
        trouble=st.none() | st.tuples(st.sampled_from([*FAULTS, "heir", "sweep"]), CALLS),
        burst=st.sampled_from([1, 1, 3, 40]),
        end=st.sampled_from(["commit", "commit", "abort", "prepare", "none"]),
    )
    def transact(
        self,
        at: int,
        places: list[tuple[str, int]],
        flushes: bool,
        offsets: bool,
        trouble: tuple[Fault | str, int] | None,
        burst: int,
        end: str,
    ) -> None:
        """A whole transaction, with trouble at one of its storage calls."""
        actor = self.actor(at)
        if actor is None:
            return
        for topic, partition in places:
            self.produce(at, topic, partition)
        if trouble is not None:
            self.plan(actor, trouble[0], trouble[1], burst)
        if flushes:
            self.flush(at)
        if offsets:
            self.send_offsets(at)
        if self.actor(at) is actor and end != "none":
            getattr(self, end)(at)
        if self.actor(at) is actor and end == "prepare":
            self.commit(at)

    def plan(self, actor: Actor, trouble: Fault | str, call: int, burst: int) -> None:
        store = cluster_of(actor.made).store
        if isinstance(trouble, Fault):
            calls = range(call, call + burst)
            store.plan = FaultsAt(dict.fromkeys(calls, trouble))  # type: ignore[attr-defined]
            return
        row = None if actor.is_plain else actor.made._own().row

        def interlude() -> None:
            if trouble == "sweep" or row is None:
                self.sweep()
            else:
                publish = "eager" if actor.made._is_eager else "deferred"
                self.start_any((publish, row.transactional_id), False)

        store.plan = FaultsAt(  # type: ignore[attr-defined]
            {}, interlude=interlude, interlude_at=call
        )

    # -- the world -------------------------------------------------------------------------------

    @rule(at=ACTORS)
    def heal(self, at: int) -> None:
        actor = self.actor(at)
        if actor is not None:
            store = cluster_of(actor.made).store
            store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]

    @rule()
    def land_late(self) -> None:
        self.shared.land_late()

    @rule(seconds=st.sampled_from([1, 70, 4_000]))
    def sleep(self, seconds: int) -> None:
        self.shared.clock.advance_ms(seconds * 1000)

    @rule()
    def sweep(self) -> None:
        sweeper = Sweeper(process(self.shared))
        for _ in range(2):
            # It says so when it has to wait for a prepared transaction.
            with suppress(UnstableOffsetCommitError):
                sweeper.sweep()
            self.shared.clock.advance_ms(70_000)

    # -- what must hold ----------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "shared"))
    @invariant()
    def readers_see_what_they_may(self) -> None:
        cluster = process(self.shared)
        check_cluster(cluster)
        self.witness.look(cluster)
        self.check(is_final=False)

    def check(self, *, is_final: bool) -> None:
        cluster = process(self.shared)
        seen: dict[str, tuple[str, int, int]] = {}
        for topic in TOPICS:
            for partition, records in read(cluster, topic).items():
                upto: dict[str, str] = {}
                for offset, data in records:
                    value = (data or b"").decode()
                    assert value not in seen, f"{value} twice: R2"
                    seen[value] = (topic, partition, offset)
                    writer = value.partition(":")[0]
                    assert upto.get(writer, "") < value, f"{value} out of order"
                    upto[writer] = value
        written = {v for topic in TOPICS for v in values(cluster, topic, uncommitted=True)}
        for txn in self.txns:
            there = [value for value in txn.values if value in seen]
            if txn.committed:
                # Until the end an undecided transaction before it may hold it back (R12).
                found = there if is_final else [value for value in txn.values if value in written]
                assert found == txn.values, f"lost of {txn}: {there}"
            elif txn.committed is False:
                assert not there, f"aborted, and read: {there}"
            elif is_final:
                assert there in ([], txn.values), f"torn: {there} of {txn}"
        in_txns = {value for txn in self.txns for value in txn.values}
        for value, place in self.delivered.items():
            if value not in in_txns or place[2] is None:
                assert value in (seen if is_final else written), f"acknowledged and lost: {value}"
            if value in seen and place[2] is not None:
                assert seen[value] == place

    def teardown(self) -> None:
        if not hasattr(self, "shared"):
            return
        for actor in self.actors:
            cluster_of(actor.made).store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
        self.shared.land_late()
        for name in ("a", "b"):
            heir = producer(self.shared, name)
            heir.init_transactions()
        after = recover(self.shared)
        self.check(is_final=True)
        position = after.groups.fetch(GROUP).get("input", {}).get(0)
        may = {txn.position for txn in self.txns if txn.committed is not False}
        must = [txn for txn in self.txns if txn.committed and txn.position is not None]
        assert position in may if position is not None else not must


TestProducers = Producers.TestCase
