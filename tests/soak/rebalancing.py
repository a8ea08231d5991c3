"""One random history of a group whose members stall, die, come back and copy in transactions.

A member is paused in the middle of any of its calls, while the others expel it, join, poll or only
send heartbeats, a sweeper works, or a successor takes its transactional id. Calls fail, lose their
replies, or land late. Everything is chosen by the seed, the names of members and files too.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from tests.consumer.records import beat, consumer, member, put
from tests.world import process
from txnlog.admin import AdminClient
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import CorruptLogError, FencedInstanceIdError, TxnLogError, UnexpectedError
from txnlog.messages import OFFSET_BEGINNING, ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.producer_states import LifecycleState as S
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory, no_faults
from txnlog.testing.invariants import check_cluster

SESSION_MS = 10_000
PARTITIONS = 4
MEMBERS_MAX, ALIVE_MAX = 6, 3
SETTLE_ROUNDS = 60
FAULTS = (Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.SAY_EXISTS, Fault.LAND_LATE)
DEEDS = (
    *["work"] * 8, "beat", "maintain", "live", "live", "sweep", "produce", "join", "kill", "bounce",
    "close", "expire", "land", "unsubscribe", "delete group",
)  # fmt: skip
ALONE = ("work", "beat", "maintain", "kill", "bounce", "close", "unsubscribe")
MEANWHILE = ("expire", "expire", "live", "join", "steps", "sweep", "succeed")


def numbered_ids() -> Callable[[], uuid.UUID]:
    """In place of uuid.uuid4: members are assigned partitions in the order of their ids."""
    numbers = iter(range(1, 1 << 60))
    return lambda: uuid.UUID(int=next(numbers) * 0x9E3779B97F4A7C15)


class Client:
    """A member, and its producer if it copies in transactions."""

    def __init__(self, history: History, name: str) -> None:
        self.history, self.name = history, name
        config: dict[str, Any] = {
            "enable.auto.commit": history.mode == "automatic",
            "auto.commit.interval.ms": 1_000,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 1_000,
            "max.poll.interval.ms": 30_000,
            "partition.assignment.strategy": history.strategy,
        }
        if history.is_static and history.chosen.random() < 0.7:
            config["group.instance.id"] = name
        callbacks = {"on_assign": self._forget, "on_revoke": self._revoke, "on_lost": self._forget}
        self.reader = member(history.shared, **config, **callbacks)
        self._cluster = self.reader._consumption().cluster
        self.made: Producer | None = None
        self.is_busy = self.is_dead = self.must_rewind = False
        self.ends: dict[int, int] = {}
        self.copied: list[tuple[int, int]] = []
        self.copying: dict[int, int] = {}
        self.group: ConsumerGroupMetadata | None = None
        self.former: list[ConsumerGroupMetadata] = []
        self.stale: list[TopicPartition] = []

    @property
    def stores(self) -> list[FaultyStore]:
        clusters = [self._cluster]
        if self.made is not None:
            clusters.append(self.made._outlet.cluster)
        return [one.store for one in clusters if isinstance(one.store, FaultyStore)]

    def _forget(self, _: object, given: list[TopicPartition]) -> None:
        for one in given:
            self.ends.pop(one.partition, None)

    def _revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        mine = [p.partition for p in partitions if p.partition in self.ends]
        if self.history.mode == "plain" and mine and self.history.chosen.random() < 0.7:
            try:
                self.reader.commit(offsets=self._at(mine), asynchronous=False)
            except TxnLogError as error:
                self.history.note(self, "commit in on_revoke", error)
        self._forget(_, partitions)

    def _at(self, partitions: list[int]) -> list[TopicPartition]:
        return [TopicPartition("t", number, self.ends[number]) for number in partitions]

    # -- work --------------------------------------------------------------------------------------

    def work(self) -> None:
        """One step of what its application does."""
        if self.history.mode == "transactions":
            self._copy()
        else:
            self._take()
            if self.history.mode == "plain":
                self._commit_plainly()

    def _take(self) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []

        def consume() -> None:
            for one in self.reader.consume(self.history.chosen.randrange(1, 6), 0):
                found.append((one.partition(), one.offset() or 0, one.value() or b""))

        self.history.call(self, "consume", consume)
        for partition, offset, value in found:
            assert value == b"%d.%d" % (partition, offset), value
            self.history.handed_out[partition].add(offset)
            self.ends[partition] = offset + 1
        return found

    def _commit_plainly(self) -> None:
        chance = self.history.chosen.random()
        wanted = self._at(list(self.ends))
        if chance < 0.2:
            self.stale = wanted
        elif chance > 0.85:
            # Of partitions that it may have lost since.
            wanted = self.stale
        if wanted:
            commit = lambda: self.reader.commit(offsets=wanted, asynchronous=False)  # noqa: E731
            self.history.call(self, f"commit {_shown(wanted)}", commit)

    def _copy(self) -> None:
        if self.made is None or self.made._lifecycle.state is S.FATAL_ERROR:
            self._succeed()
            return
        state = self.made._lifecycle.state
        if state is S.COMMITTING:
            self._end("commit")
        elif state is S.IN_TRANSACTION:
            self._go_on()
        elif state is not S.READY:
            self._end("abort")
        else:
            self._begin()

    def _succeed(self) -> None:
        chosen = self.history.chosen
        settings = {
            "txnlog.root": "memory://",
            "transactional.id": f"tx-{self.name}",
            "transaction.publish": chosen.choice(["deferred", "eager"]),
            "transaction.timeout.ms": 20_000,
        }
        made = Producer(settings, cluster=process(self.history.shared), background=False)
        is_done = self.history.call(self, "init", lambda: made.init_transactions(5))
        self.made, self.must_rewind = made if is_done else None, True

    def _begin(self) -> None:
        assert self.made is not None
        if self.must_rewind and not self.history.call(self, "rewind", self._rewind):
            return
        self.must_rewind = False
        found = self._take()
        if not found:
            return
        self.must_rewind = True
        try:
            self.group = self.reader.consumer_group_metadata()
        except TxnLogError:
            return
        self.former.append(self.group)
        if self.history.chosen.random() < 0.15:
            self.group = self.history.chosen.choice(self.former)
        if self.history.call(self, "begin", self.made.begin_transaction):
            self.must_rewind = False
            self.copied = [(partition, offset) for partition, offset, _ in found]
            self.copying = {partition: offset + 1 for partition, offset in self.copied}
            if self.history.chosen.random() < 0.5:
                self._go_on()

    def _rewind(self) -> None:
        for one in self.reader.committed(self.reader.assignment(), 5):
            offset = one.offset if one.offset >= 0 else OFFSET_BEGINNING
            self.reader.seek(TopicPartition(one.topic, one.partition, offset))
            self.ends.pop(one.partition, None)

    def _go_on(self) -> None:
        """Produce, send the offsets with the group as it was when they were read, and commit."""
        made, group = self.made, self.group
        assert made is not None
        assert group is not None
        while self.copied:
            value = "{}.{}".format(*self.copied[0])
            if not self.history.call(
                self, f"copy {value}", lambda value=value: made.produce("out", value, partition=0)
            ):
                self._end("abort")
                return
            self.copied.pop(0)
        if self.history.chosen.random() < 0.3:
            return
        ends = [TopicPartition("t", number, end) for number, end in self.copying.items()]
        what = f"send {_shown(ends)} of generation {group.generation}"
        is_sent = self.history.call(
            self, what, lambda: made.send_offsets_to_transaction(ends, group, 5)
        )
        self._end(self.history.chosen.choice(["commit"] * 6 + ["abort"]) if is_sent else "abort")

    def _end(self, how: str) -> None:
        assert self.made is not None
        end = self.made.commit_transaction if how == "commit" else self.made.abort_transaction
        is_done = self.history.call(self, how, lambda: end(5))
        self.must_rewind = self.must_rewind or how == "abort" or not is_done


class History:
    """`log` tells what has happened. `run` raises AssertionError, or what no client may raise."""

    def __init__(self, seed: int, *, mode: str = "") -> None:
        self.chosen = chosen = random.Random(seed)
        self.is_static = chosen.random() < 0.35
        self.strategy = chosen.choice(["cooperative-sticky"] * 4 + ["range"])
        self.mode = mode or chosen.choice(["transactions", "transactions", "plain", "automatic"])
        self.log = [f"seed {seed}: {self.mode}, {self.strategy}, static={self.is_static}"]
        self.shared = SharedMemory()
        self.cluster = process(self.shared)
        self.cluster.create_topic("t", partitions=PARTITIONS)
        self.cluster.create_topic("out", partitions=1)
        self.sweeper = Sweeper(process(self.shared), interval_ms=5_000)
        self.ends: Counter[int] = Counter()
        self.handed_out: defaultdict[int, set[int]] = defaultdict(set)
        self.positions: dict[int, int] = {}
        self.depth = self.names = 0
        self.is_deleted = False
        self.clients: list[Client] = []
        self.produce(3)
        for _ in range(chosen.randrange(1, 3)):
            self.join()

    def note(self, who: Client | None, what: str, result: object = "") -> None:
        named = f"{type(result).__name__}: {result}" if isinstance(result, Exception) else result
        self.log.append(f"{'  ' * self.depth}{f'{who.name} ' if who else ''}{what} {named}")

    def call(self, who: Client, what: str, call: Callable[[], object]) -> bool:
        """Whether it was done. Half of the calls are paused, or meet a fault, somewhere within."""
        if self.depth == 0 and self.chosen.random() < 0.5:
            plan = self._plan(who)
            for store in who.stores:
                store.plan = plan
        was_busy, who.is_busy = who.is_busy, True
        try:
            call()
        except (CorruptLogError, UnexpectedError):
            raise
        except TxnLogError as error:
            self.note(who, what, error)
            who.is_dead = who.is_dead or isinstance(error, FencedInstanceIdError)
            return False
        finally:
            who.is_busy = was_busy
            for store in who.stores:
                store.plan = no_faults
        self.note(who, what, "done")
        self.check_positions()
        return True

    def _plan(self, who: Client) -> FaultsAt:
        at = int(2 ** (self.chosen.random() * 5.5)) - 1
        if self.chosen.random() < 0.65:
            return FaultsAt({}, interlude=lambda: self._meanwhile(who), interlude_at=at)
        fault, count = self.chosen.choice(FAULTS), self.chosen.choice([1, 1, 3, 100_000])
        return FaultsAt(dict.fromkeys(range(at, at + count), fault))

    # -- what happens ------------------------------------------------------------------------------

    def alive(self) -> list[Client]:
        return [one for one in self.clients if not (one.is_dead or one.is_busy)]

    def join(self) -> None:
        self.names += 1
        self.clients.append(Client(self, f"m{self.names}"))
        self.note(None, f"m{self.names} is there")

    def produce(self, count: int) -> None:
        for partition in range(PARTITIONS):
            offsets = range(self.ends[partition], self.ends[partition] + count)
            values = [b"%d.%d" % (partition, offset) for offset in offsets]
            put(process(self.shared), *values, partition=partition)
            self.ends[partition] += count

    def _meanwhile(self, who: Client) -> None:
        self.depth += 1
        how = self.chosen.choice(MEANWHILE)
        self.note(None, f"-- {who.name} is paused: {how}")
        if how == "expire":
            polls = self.chosen.random() < 0.5
            for _ in range(6):
                self.live(1, step_ms=SESSION_MS // 4, polls=polls)
            if polls:
                self.each(Client.work)
        elif how == "join" and len(self.alive()) < ALIVE_MAX:
            self.join()
            self.live(self.chosen.randrange(1, 5))
        elif how == "succeed" and who.made is not None:
            settings = {"txnlog.root": "memory://", "transactional.id": f"tx-{who.name}"}
            made = Producer(settings, cluster=process(self.shared), background=False)
            self.call(who, "is succeeded", lambda: made.init_transactions(5))
        elif how == "steps":
            for _ in range(self.chosen.randrange(1, 5)):
                self.step()
        elif how == "sweep":
            self.sweep()
        else:
            self.live(self.chosen.randrange(1, 6))
        self.note(None, f"-- {who.name} goes on")
        self.depth -= 1

    def each(self, deed: Callable[[Client], object]) -> None:
        for one in self.alive():
            deed(one)

    def live(self, rounds: int, *, step_ms: int = 2_000, polls: bool = True) -> None:
        """Heartbeats, and polls without records."""
        for _ in range(rounds):
            self.shared.clock.advance_ms(step_ms)
            self.each(self.beat)
            if polls:
                self.each(self.maintain)

    def beat(self, who: Client) -> None:
        self.call(who, "beat", lambda: beat(who.reader))

    def maintain(self, who: Client) -> None:
        if not who.is_dead:
            self.call(who, "poll", lambda: who.reader._consumption().maintain())
        if (made := who.made) is not None and self.chosen.random() < 0.6:
            self.call(who, "publish", lambda: made.poll(0))

    def sweep(self) -> None:
        for _ in range(2):
            self.sweeper.sweep()
            self.shared.clock.advance_ms(self.chosen.choice([6_000, 6_000, 25_000]))

    def step(self) -> None:
        """One deed of anybody."""
        deed, alive = self.chosen.choice(DEEDS), self.alive()
        if deed in ALONE and alive:
            self._act(deed, self.chosen.choice(alive))
        elif deed in ALONE:
            if self.depth == 0 and len(self.clients) < MEMBERS_MAX:
                self.join()
        elif deed == "live":
            self.live(self.chosen.randrange(1, 4))
        elif deed == "sweep":
            self.sweep()
        elif deed == "produce":
            self.produce(1)
        elif deed == "join":
            if len(alive) < ALIVE_MAX and len(self.clients) < MEMBERS_MAX:
                self.join()
        elif deed == "expire":
            self.shared.clock.advance_ms(self.chosen.choice([2 * SESSION_MS, 40_000]))
        elif deed == "land":
            self.shared.land_late()
        elif self.mode != "automatic":
            self._delete_group()

    def _act(self, deed: str, who: Client) -> None:
        if deed == "work":
            who.work()
        elif deed == "beat":
            self.beat(who)
        elif deed == "maintain":
            self.maintain(who)
        elif deed == "unsubscribe":
            self.call(who, "unsubscribe", who.reader.unsubscribe)
            calls = {"on_assign": who._forget, "on_revoke": who._revoke, "on_lost": who._forget}
            self.call(who, "subscribe", lambda: who.reader.subscribe(["t"], **calls))
        elif deed == "close":
            self.call(who, "close", who.reader.close)
            who.is_dead = True
        else:
            # The former life of a bounced member may go on.
            who.is_dead = deed == "kill" or self.chosen.random() < 0.6
            self.note(who, deed, f"is_dead={who.is_dead}")
            if deed == "bounce":
                self.clients.append(Client(self, who.name))

    def _delete_group(self) -> None:
        try:
            admin = AdminClient({}, cluster=process(self.shared))
            admin.delete_consumer_groups(["g"])["g"].result()
        except TxnLogError as error:
            self.note(None, "delete group", error)
        else:
            self.note(None, "delete group", "done")
            self.positions, self.is_deleted = {}, True

    # -- what must hold ----------------------------------------------------------------------------

    def check_positions(self) -> None:
        """They skip nothing that was not handed out; only a plain commit sets them back."""
        group = self.cluster.groups.describe("g")
        if group is None or self.is_deleted:
            return
        for number, at in group.positions().get("t", {}).items():
            before = 0 if self.mode == "plain" else self.positions.get(number, 0)
            assert at >= before, f"the position of {number} went back from {before} to {at}"
            missing = set(range(at)) - self.handed_out[number]
            assert not missing, f"the position of {number} is {at}; {missing} was never delivered"
            self.positions[number] = at

    def run(self) -> None:
        """Some deeds; then all faults end, and the living come to rest."""
        for _ in range(self.chosen.randrange(10, 40)):
            self.step()
        self.shared.land_late()
        self.depth = 1
        self.join()
        for _ in range(SETTLE_ROUNDS):
            self.live(1)
            for who in self.alive():
                # A commit of `stale` may have set them back, with no further record to commit.
                at = who.reader.position(who.reader.assignment())
                who.ends |= {one.partition: one.offset for one in at if one.offset >= 0}
            for _ in range(3):
                self.each(Client.work)
            self.sweeper.sweep()
            if self._has_settled():
                break
        assert self._has_settled(), f"stuck: {self.cluster.groups.describe('g')}"
        for _ in range(4):
            self.shared.clock.advance_ms(30_000)
            self.sweeper.sweep()
        after = process(self.shared)
        check_cluster(after)
        if self.mode == "transactions":
            self._check_copies(consumer(after))

    def _has_settled(self) -> bool:
        """Everything is committed, and each partition is read by one member."""
        group = self.cluster.groups.describe("g")
        if group is None or group.positions().get("t", {}) != dict(self.ends):
            return False
        readers = [one.reader for one in self.alive() if one.reader.memberid() in group.members]
        held = [one.partition for reader in readers for one in reader.assignment()]
        return sorted(held) == list(range(PARTITIONS))

    def _check_copies(self, reader: Any) -> None:
        reader.assign([TopicPartition("out", 0)])
        copies = Counter((one.value() or b"").decode() for one in reader.consume(100_000, 0))
        wanted = {f"{number}.{at}" for number, end in self.ends.items() for at in range(end)}
        assert set(copies) == wanted, f"missing {wanted - set(copies)}"
        twice = [value for value, count in copies.items() if count > 1]
        assert self.is_deleted or not twice, f"copied twice: {twice}"


def _shown(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"{one.partition} to {one.offset}" for one in partitions)
