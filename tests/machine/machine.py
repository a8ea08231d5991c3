"""Everything at once: random histories of all kinds of clients on one failing store.

A step is one call of one client, or an event that affects all of them. During a call its storage
may fail, before or after, once or repeatedly, its process may die, and between any two of its
storage calls others may act: so every race of two is one step, and many of three. After each step
txnlog.testing.auditor checks the clients' results and the records that readers get.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from tests.consumer.records import staged
from tests.machine.actors import Actor, Kind, Writer
from tests.machine.copiers import Copier, Reader
from tests.machine.oracle import settle
from tests.machine.processes import CHORES, TABLES, Helper
from tests.machine.queries import Query
from tests.machine.world import (
    BUGS,
    COPIERS,
    DAY_MS,
    HOUR_MS,
    JOBS,
    MINUTE_MS,
    SOURCE,
    STOCK,
    TOPICS,
    Process,
    World,
    key_of,
    quiet,
    seen,
)
from txnlog.admin import ConsumerGroupTopicPartitions
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import Owner
from txnlog.testing.faults import Fault, SimulatedCrash
from txnlog.testing.strategies import Trouble, TroublePlan, troubles

ROLES: dict[str, Callable[..., Actor]] = {
    "producer": Writer,
    "plain": Writer,
    "copier": Copier,
    "job": Copier,
    "query": Query,
    "reader": Reader,
}
KINDS = (
    Kind("producer", "deferred", "a"),
    Kind("producer", "eager", "a"),
    Kind("producer", "deferred", "b"),
    Kind("producer", "eager", "b"),
    Kind("plain", "at once"),
    Kind("copier", "deferred", "c"),
    Kind("copier", "eager", "d"),
    Kind("copier", "deferred", "d"),
    Kind("job", "eager", "i"),
    Kind("job", "deferred", "i"),
    Kind("query", "batch by batch", "p"),
    Kind("query", "batch by batch", "q"),
    Kind("reader", "read_committed"),
    Kind("reader", "read_uncommitted"),
)
IDS = ("a", "b", "c", "d", "i", "p", "q")
JOB_ROLES = ("job", "query")
"""They read for one group, each of them all partitions."""
ALIVE_MAX = 6
DEEDS = (
    *("successor", "rival", "rival", "time out", "work", "admin") * 2,
    *("ask", "tidy", "tidy", "recreate", "night", "land"),
)

AT = st.integers(0, ALIVE_MAX - 1)
SALT = st.integers(0, 11)
PLACES = st.lists(
    st.sampled_from([(topic, n) for topic in (SOURCE, STOCK) for n in range(TOPICS[topic])]),
    min_size=1,
    max_size=4,
)
ENDS = st.sampled_from(
    ["commit"] * 4
    + ["flush, commit", "offsets, commit", "abort", "flush, abort", "prepare", "complete", "open"]
)
TROUBLES = troubles(DEEDS)
Troubles = Sequence[Trouble]
Places = list[tuple[str, int]]
WAITS_MS = (0, 0, 1_000, 15_000, 70_000)
KEPT_HOURS = 26
"""Longer than ids and producers take to expire."""
SLEEPS_MS = (40 * MINUTE_MS, DAY_MS + HOUR_MS, 8 * DAY_MS)
RARE = (
    "recreate", "kill", "kill", "land", "admin", "set a clock", "sleep long", "keep house",
    "open cold",
)  # fmt: skip


class Clients(RuleBasedStateMachine):
    """See the module."""

    kinds: ClassVar[Sequence[Kind]] = KINDS
    deeds: ClassVar[Sequence[str]] = DEEDS

    @initialize(
        skews_ms=st.lists(st.sampled_from([0, -DAY_MS, 400 * DAY_MS]), min_size=3, max_size=3)
    )
    def begin(self, skews_ms: list[int]) -> None:
        self.world = World(skews_ms)
        self.actors: list[Actor] = []
        self.number = 0
        self.depth = 0
        self.helpers = [Helper(self.world, number) for number in range(2)]
        first = self.start_one(self.kinds[0], False)
        first.work([(SOURCE, 0), (SOURCE, 1)] * 3, "commit")

    # -- actors and faults -------------------------------------------------------------------------

    @property
    def free(self) -> list[Actor]:
        """Actors that are alive and not in the middle of a call."""
        return [a for a in self.actors if not a.is_dead and not a.process.is_busy]

    def choose(self, at: int) -> Actor | None:
        alive = self.free
        return alive[at % len(alive)] if alive else None

    def meet(self, process: Process, trouble: Troubles, act: Callable[[], object]) -> None:
        """Let a process act under its faults; the caller handles errors."""
        if self.depth:
            act()
            return
        process.is_busy = True
        process.store.plan = TroublePlan(trouble, partial(self.do, process))
        try:
            act()
        finally:
            process.is_busy = False
            process.store.plan = quiet
            if any(one.what is Fault.LAND_LATE and one.salt % 2 for one in trouble):
                self.land()

    def do(self, busy: Process, what: str, salt: int, path: str) -> None:
        """What others do while a process is paused between two storage calls."""
        self.depth += 1
        if what not in self.deeds:
            what = self.deeds[salt % len(self.deeds)]
        table = path.split("/")[0]
        kinds = [actor.kind for actor in self.actors if actor.process is busy]
        kind = kinds[0] if kinds else self.kinds[salt % len(self.kinds)]
        try:
            match what:
                case "successor":
                    self.note_state(kind, "a takeover")
                    self.start_one(kind, salt % 2 == 1)
                case "rival":
                    self.rival(kind, salt)
                case "time out":
                    self.note_state(kind, "a time-out")
                    self.sweep_twice(salt % 2)
                case "work":
                    self.work_of(salt)
                case "admin":
                    name = kind.name or IDS[salt % len(IDS)]
                    self.administer(salt % 2, name, ("abort", "fence")[salt % 3 == 0])
                case "recreate":
                    self.renew_stock(salt % 2)
                case "night":
                    for more in range(3):
                        self.work_of(salt + more)
                    self.world.shared.clock.advance_ms(SLEEPS_MS[salt % 3])
                    self.chores(salt % 2, table, "checkpoint", "vacuum")
                case "tidy":
                    self.work_of(salt)
                    self.chores(salt % 2, table, "compact", "vacuum", CHORES[salt % len(CHORES)])
                case "ask":
                    self.ask_offsets(salt % 2, salt % 3 == 0)
                case "land":
                    self.land()
        finally:
            self.depth -= 1
        self.world.look()

    def note_state(self, kind: Kind, what: str) -> None:
        row = self.world.cluster.coordinator.describe(kind.name) if kind.name else None
        if row is not None:
            seen[f"{what} in the middle of a call, at {row.state.name}"] += 1

    def rival(self, kind: Kind, salt: int) -> None:
        """Another member of the group takes over the assignment of the paused one."""
        roles = JOB_ROLES if kind.role in JOB_ROLES else (kind.role,)
        rivals = [other for other in self.kinds if other.role in roles and other.name != kind.name]
        if not rivals:
            self.work_of(salt)
            return
        mine = [actor for actor in self.free if actor.kind in rivals]
        rival = mine[0] if mine else self.start_one(rivals[salt % len(rivals)], False)
        self.live(6)
        rival.work([(SOURCE, 0)] * 4, ("commit", "commit", "abort")[salt % 3])

    def work_of(self, salt: int) -> None:
        actor = self.choose(salt)
        if actor is not None:
            end = ("commit", "flush, commit", "abort")[salt % 3]
            actor.work([(SOURCE, salt % 2), (STOCK, 0)], end)

    # -- clients -----------------------------------------------------------------------------------

    @rule(kind=st.integers(0, len(KINDS) - 1), keep=st.booleans())
    def start(self, kind: int, keep: bool) -> None:
        self.start_one(self.kinds[kind % len(self.kinds)], keep)

    def start_one(self, kind: Kind, keep: bool) -> Actor:
        """Start an actor; its id's former owner becomes a zombie. Kill one if too many live."""
        alive = self.free
        if len(alive) >= ALIVE_MAX:
            alive[0].is_dead = True
        self.number += 1
        made = ROLES[kind.role](self.world, kind, self.number, keep=keep)
        made.start()
        self.actors.append(made)
        return made

    @rule(at=AT, places=PLACES, end=ENDS, trouble=TROUBLES)
    def transact(self, at: int, places: Places, end: str, trouble: Troubles) -> None:
        """A producer's transaction, or the rest of one."""
        roles = [kind.role for kind in self.kinds if kind.role in ("producer", "plain")]
        self.let_work(roles[at % len(roles)], at, places, end, trouble)

    @rule(at=AT, places=PLACES, end=ENDS, trouble=TROUBLES)
    def copy(self, at: int, places: Places, end: str, trouble: Troubles) -> None:
        """Some records, copied in a transaction that commits their positions, too."""
        self.let_work("copier", at, places, end, trouble)

    @rule(at=AT, places=PLACES, end=ENDS, trouble=TROUBLES)
    def run_job(self, at: int, places: Places, end: str, trouble: Troubles) -> None:
        """The same, with manually assigned partitions."""
        self.let_work(JOB_ROLES[at % 2], at, places, end, trouble)

    @rule(at=AT, places=PLACES, end=ENDS, trouble=TROUBLES)
    def read(self, at: int, places: Places, end: str, trouble: Troubles) -> None:
        self.let_work("reader", at, places, end, trouble)

    def let_work(self, role: str, at: int, places: Places, end: str, trouble: Troubles) -> None:
        """Let an actor of that role work."""
        actor = self.worker(role, at)
        self.meet(actor.process, trouble, lambda: actor.work(places, end))

    def worker(self, role: str, at: int) -> Actor:
        """An actor of that role; one is started if there is none."""
        fit = [actor for actor in self.free if actor.kind.role == role]
        if fit:
            return fit[at % len(fit)]
        kinds = [kind for kind in self.kinds if kind.role == role]
        return self.start_one(kinds[at % len(kinds)], False)

    @rule(rounds=st.integers(1, 5), duration_ms=st.sampled_from(WAITS_MS))
    def pass_time(self, rounds: int, duration_ms: int) -> None:
        """Either all actors continue for a while, or none does anything."""
        if duration_ms:
            self.world.shared.clock.advance_ms(duration_ms)
        else:
            self.live(rounds)

    def live(self, rounds: int) -> None:
        """Heartbeats and polls of all live actors, for a few seconds."""
        for _ in range(rounds):
            self.world.shared.clock.advance_ms(4_000)
            for actor in self.free:
                if isinstance(actor, (Copier, Reader)) and actor.kind.role != "job":
                    actor.beat()
                    actor.call(actor.reader._consumption().maintain)

    # -- operators and housekeeping ----------------------------------------------------------------

    @rule(number=st.integers(0, 1), places=PLACES, trouble=TROUBLES)
    def write_batch(self, number: int, places: Places, trouble: Troubles) -> None:
        """A batch write of Spark: one transaction, under an id used once."""
        self.number += 1
        name = f"batch {self.number}"
        txn = self.world.auditor.begin(is_whole=True)

        auditor = self.world.auditor

        def act(helper: Helper) -> None:
            cluster = helper.cluster
            ids = {topic: cluster.topic(topic).topic_id for topic, _ in places}
            batches = []
            for topic, partition in places:
                value = auditor.name_record(name, txn, topic)
                auditor.take(value)
                keys = [key_of(value).encode()] if topic == STOCK else None
                data = [value.encode()]
                batch = staged(cluster, data, topic=topic, partition=partition, keys=keys)
                batches.append(replace(batch, topic_id=ids[topic]))
            commit_one_off(cluster, batches, Owner(run_id=name))
            txn.settle(committed=True)

        self.by_helper(number, trouble, act)

    @rule(number=st.integers(0, 3), trouble=TROUBLES)
    def keep_house(self, number: int, trouble: Troubles) -> None:
        """A housekeeper's work that is due, or a client's sweep."""
        if number < 2:
            self.by_helper(number, trouble, lambda helper: helper.keeper.step())
        else:
            self.by_helper(number - 2, trouble, lambda helper: helper.sweeper.sweep())

    def sweep_twice(self, number: int) -> None:
        """Time out all open transactions."""
        self.by_helper(number, (), lambda helper: helper.sweeper.sweep())
        self.world.shared.clock.advance_ms(70_000)
        self.by_helper(number, (), lambda helper: helper.sweeper.sweep())

    def administer(self, number: int, name: str, how: str, trouble: Troubles = ()) -> None:
        """Abort the transaction of an id, or fence its owner (R43)."""

        def act(helper: Helper) -> None:
            if how == "fence":
                helper.admin.fence_producers([name])[name].result()
            else:
                helper.admin.abort_transaction(name).result()

        self.by_helper(number, trouble, act)

    def ask_offsets(self, number: int, is_stable: bool) -> None:
        """An operator asks where groups are: nowhere before what was said or acknowledged (R47)."""
        world = self.world

        def act(helper: Helper) -> None:
            for group_id in (COPIERS, JOBS):
                known = dict(world.told[group_id])
                asked = [ConsumerGroupTopicPartitions(group_id)]
                made = helper.admin.list_consumer_group_offsets(asked, require_stable=is_stable)
                places = made[group_id].result().topic_partitions or ()
                found = {(one.topic, one.partition): one.offset for one in places}
                for place, offset in known.items():
                    assert found.get(place, 0) >= offset, f"{group_id}: {found} after {known}"
                seen["offsets asked for"] += bool(found)
                world.tell(group_id, found)

        self.by_helper(number, (), act)

    @rule(
        number=st.integers(0, 1),
        chores=st.lists(st.sampled_from(CHORES), min_size=1, max_size=3),
        table=st.sampled_from(TABLES),
        trouble=TROUBLES,
    )
    def tidy(self, number: int, chores: list[str], table: str, trouble: Troubles) -> None:
        self.chores(number, table, *chores, trouble=trouble)

    def chores(self, number: int, table: str, *chores: str, trouble: Troubles = ()) -> None:
        def act(helper: Helper) -> None:
            for chore in chores:
                helper.tidy(chore, table)

        self.by_helper(number, trouble, act)

    def by_helper(self, number: int, trouble: Troubles, act: Callable[[Helper], object]) -> None:
        """Let a helper process work, and replace it if it dies."""
        helper = self.helpers[number]
        if helper.process.is_busy:
            return
        try:
            self.meet(helper.process, trouble, lambda: act(helper))
        except SimulatedCrash:
            self.helpers[number] = Helper(self.world, number)
        except BUGS:
            raise
        except TxnLogError:
            pass

    # -- the world ---------------------------------------------------------------------------------

    @rule(what=st.sampled_from(RARE), salt=SALT, trouble=TROUBLES)
    def be_odd(self, what: str, salt: int, trouble: Troubles) -> None:
        """Rare events, all under one rule, since rules are chosen evenly."""
        match what:
            case "recreate":
                self.renew_stock(salt % 2, trouble)
            case "land":
                self.land()
            case "kill":
                actor = self.choose(salt)
                if actor is not None:
                    actor.is_dead = True
            case "admin":
                how = ("abort", "fence")[salt % 2]
                self.administer(salt % 2, IDS[salt % len(IDS)], how, trouble)
            case "set a clock":
                # An operator corrects a machine's clock (R34).
                step_ms = (-DAY_MS, 5_000, 40 * DAY_MS)[salt % 3]
                self.world.clocks[salt % 3].skew_ms += step_ms
            case "open cold":
                seen["opened cold"] += 1
                self.world.look()
                self.world.check_cold()
            case "sleep long":
                self.world.shared.clock.advance_ms(SLEEPS_MS[salt % 3])
            case "keep house":
                # Ids expire by watched time: an hour without a check does not count (D61).
                for _ in range(KEPT_HOURS):
                    self.world.shared.clock.advance_ms(HOUR_MS)
                    self.by_helper(salt % 2, (), lambda helper: helper.keeper.step())

    def land(self) -> None:
        """Late puts arrive."""
        seen["landed late"] += sum(path.endswith(".json") for path in self.world.shared.land_late())

    def renew_stock(self, number: int, trouble: Troubles = ()) -> None:
        """Delete a topic and create it again: its records are gone (R71)."""
        self.by_helper(number, trouble, lambda helper: helper.cluster.delete_topic(STOCK))
        self.world.forgive(STOCK)
        # Actors never use a missing topic, or the example would be about that.
        self.world.create(STOCK)

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            self.world.look()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            # After an error, more checks would only hide it.
            if sys.exc_info()[0] is None:
                settle(self.world, IDS, self.helpers[0].cluster)
        finally:
            self.world.close()
