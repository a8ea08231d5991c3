"""Clients as applications run them, and the results they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.machine.world import (
    BUGS,
    FREE,
    STOCK,
    Process,
    World,
    key_of,
    seen,
)
from txnlog.errors import OutcomeLostError, TxnLogError
from txnlog.messages import ConsumerGroupMetadata, Message, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.producer_states import LifecycleState
from txnlog.testing.auditor import AuditedTransaction
from txnlog.testing.faults import SimulatedCrash

S = LifecycleState
ENDS = {
    "commit": (S.IN_TRANSACTION, S.COMMITTING, S.PREPARED),
    "abort": (S.IN_TRANSACTION, S.ABORTING, S.PREPARING, S.PREPARED, S.ABORTABLE_ERROR),
    "prepare": (S.IN_TRANSACTION, S.PREPARING),
    "complete": (S.PREPARED,),
}
"""How a transaction may end, by the state of its producer."""
OVER = (S.FATAL_ERROR, S.ABORTABLE_ERROR)


class Kind(NamedTuple):
    """A client's role, how it publishes or reads, and its transactional.id."""

    role: str
    how: str
    name: str = ""


class Actor:
    """A client in its own process, which handles errors as an application does."""

    def __init__(self, world: World, kind: Kind, number: int) -> None:
        self.world = world
        self.kind = kind
        self.name = f"{kind.role} {number}"
        self.process: Process = world.process(number)
        self.is_dead = False

    def call(self, act: Callable[[], object]) -> str:
        """ "done", "crashed", or the name of the error."""
        if self.is_dead:
            return "dead"
        try:
            act()
            return "done"
        except SimulatedCrash:
            self.is_dead = True
            return "crashed"
        except BUGS:
            raise
        except TxnLogError as error:
            seen[f"{self.kind.role}: {type(error).__name__}"] += 1
            self.refused(error)
            return type(error).__name__

    def refused(self, error: TxnLogError) -> None:
        """How the application handles an error."""

    def start(self) -> None:
        """Start; the constructor does no I/O."""
        raise NotImplementedError

    def work(self, places: Sequence[tuple[str, int]], end: str) -> None:
        """One round of its usual work."""
        raise NotImplementedError

    def beat(self) -> None:
        """The work of its background threads."""


class Writer(Actor):
    """A producer of any kind. `state` is what an external database stores of a prepared one."""

    def __init__(self, world: World, kind: Kind, number: int, *, keep: bool = False) -> None:
        super().__init__(world, kind, number)
        self.txn: AuditedTransaction | None = None
        self.state: str | None = None
        config: dict[str, object] = {"txnlog.root": "memory://", "delivery.timeout.ms": 20_000}
        if kind.name:
            config |= {"transactional.id": kind.name, "transaction.publish": kind.how}
        self.made = Producer(config, cluster=self.process.open(), background=False)
        self._keep = keep
        self._producer_id = -1

    def start(self) -> None:
        """Own the transactional.id, and a transaction kept prepared under it."""
        if not self.kind.name:
            return
        if self.call(lambda: self.made.init_transactions(10, keep_prepared=self._keep)) != "done":
            # An application that cannot initialize does not run.
            self.is_dead = True
            return
        self._check_epoch()
        self._own()
        kept = self.made.prepared_state
        if kept is not None:
            before = self.world.prepared[kept]
            self.txn, self.state, before.txn = before.txn, kept, None
            assert self.txn is not None
            self.world.prepared[kept] = self

    def refused(self, error: TxnLogError) -> None:
        state = self.made._lifecycle.state
        # A successor may keep, and commit, a prepared transaction.
        is_certain = self.state is None and not isinstance(error, OutcomeLostError)
        if self.txn is not None and state in OVER and is_certain:
            self.txn.settle(committed=False)
        if state is S.FATAL_ERROR:
            self.is_dead = True

    @property
    def is_open(self) -> bool:
        return not self.is_dead and self.made._lifecycle.state in (S.IN_TRANSACTION, S.IDLE)

    def begin(self) -> None:
        # After a pause it checks that it still has its id, which may fail as any call.
        if not self.is_dead and self.made._lifecycle.state is S.READY:
            self.txn = None
            if self.call(self.made.begin_transaction) == "done":
                self._own()
                self.txn = self.world.auditor.begin(is_whole=self.kind.how == "deferred")

    def produce(
        self, topic: str, partition: int, copy_of: tuple[str, tuple[str, int], int] | None = None
    ) -> None:
        """One record, in a transaction if the producer has any."""
        self.begin()
        if not self.is_open:
            return
        auditor, txn = self.world.auditor, self.txn
        value = auditor.name_record(self.name, txn, topic, copy_of=copy_of)

        def delivered(error: Exception | None, message: Message) -> None:
            assert not isinstance(error, BUGS), error
            if error is None:
                auditor.acknowledge(value, message.partition(), message.offset())

        key = key_of(value) if topic == STOCK else None
        if self.call(lambda: self.made.produce(topic, value, key, partition, delivered)) == "done":
            auditor.take(value)

    def beat(self) -> None:
        self.call(lambda: self.made.poll(0))

    def flush(self) -> None:
        self.call(lambda: self.made.flush(5))

    def send(self, positions: list[TopicPartition], group: ConsumerGroupMetadata) -> str:
        return self.call(lambda: self.made.send_offsets_to_transaction(positions, group, 10))

    def end(self, how: str) -> str:
        """End the transaction as far as its state allows; returns the outcome."""
        if self.is_dead or self.txn is None:
            return "nothing"
        state, txn = self.made._lifecycle.state, self.txn
        if state not in ENDS.get(how, ()):
            if how not in ENDS or state in (S.READY, S.INITIALIZING):
                return "nothing"
            how = "commit" if state is S.COMMITTING else "abort"
        if how == "commit" and state is S.PREPARED and len(self.world.prepared) % 2:
            # Both ends of a prepared transaction occur in every run.
            how = "complete"
        if how == "prepare":
            return self._prepare()
        is_owner = self.world.owners.get(self.kind.name) is self
        if how == "complete":
            outcome = self.call(lambda: self.made.complete_transaction(self.state, 10))
        elif how == "commit":
            outcome = self.call(lambda: self.made.commit_transaction(10))
        else:
            outcome = self.call(lambda: self.made.abort_transaction(10))
        if outcome == "done":
            seen[f"{self.kind.role}: {how}"] += 1
            is_new = how == "commit" and state is S.IN_TRANSACTION and txn.values
            assert is_owner or not is_new, f"{self.name} commits, and another has its id (R31)"
            txn.settle(committed=how != "abort")
            self.txn = self.state = None
            if self.made._lifecycle.state is S.READY:
                self._check_epoch()
            else:
                self.is_dead = True
        return outcome

    def _prepare(self) -> str:
        def act() -> None:
            row = self.made._transactions.session.row
            # As the external database would store it, also if the process dies now.
            self.state = f"{row.producer_id}:{row.producer_epoch}"
            self.world.prepared[self.state] = self
            assert self.made.prepare_transaction(10) == self.state

        return self.call(act)

    def work(self, places: Sequence[tuple[str, int]], end: str) -> None:
        """A transaction, or the rest of one; `end` may leave it open."""
        if not self.kind.name:
            for topic, partition in places:
                self.produce(topic, partition)
            self.flush()
            return
        if not self.is_dead and self.made._lifecycle.state not in (S.READY, S.IN_TRANSACTION):
            self.end(end)
            return
        for topic, partition in places:
            self.produce(topic, partition)
        if end.startswith("flush"):
            self.flush()
        elif end.startswith("offsets"):
            self._send_free()
        self.end(end.rpartition(" ")[2])

    def _send_free(self) -> None:
        """Offsets of a group that only producers write to: each a new position."""
        self.begin()
        if not self.is_open or self.txn is None:
            return
        self.world.newest_free += 1
        offset, txn = self.world.newest_free, self.txn
        group = ConsumerGroupMetadata(FREE, 1)
        if self.send([TopicPartition("elsewhere", 0, offset)], group) == "done":
            self.world.free[txn] = offset

    def _own(self) -> None:
        """Who begins under an id that has expired has it from then on, under a new producer id."""
        row = self.made._transactions.session.row
        if row.producer_id != self._producer_id:
            self._producer_id = row.producer_id
            self.world.owners[self.kind.name] = self

    def _check_epoch(self) -> None:
        self.world.check_epoch(self.made._transactions.session.row, self)
