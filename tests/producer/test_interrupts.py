"""Ctrl-C in a call of a producer, which is then repeated: each record is written once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tests.interrupting import interrupted_at
from tests.producer.worlds import Reports, cluster_of, producer, started, values, world
from txnlog.errors import OperationTimedOutError, OutcomeLostError, TransactionAbortableError
from txnlog.producer import Producer
from txnlog.producing.publishing import Deferred
from txnlog.protocol.producer_states import LifecycleState

VALUES = ["0", "1", "2", "3", "4", "5"]
STRIDE = 97

# An interrupt in an iterator that is being closed is reported, and ends no call.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ways = pytest.mark.parametrize("way", ["deferred", "eager", "idempotent"])


@dataclass
class Run:
    """A producer that took all VALUES, of two topics, and the reports that it makes."""

    made: Producer
    reports: Reports = field(default_factory=Reports)

    @classmethod
    def begin(cls, way: str) -> Run:
        shared = world()
        if way == "idempotent":
            return cls(producer(shared))
        made = started(shared, way)
        made.begin_transaction()
        return cls(made)

    def produce(self) -> None:
        for number, value in enumerate(VALUES[:4]):
            topic = "orders" if number % 2 else "stock"
            self.made.produce(topic, value, on_delivery=self.reports)
        for value in VALUES[4:]:
            table = pa.table({"value": pa.array([value.encode()])})
            self.made.produce_batch("orders", table, on_delivery=self.reports)

    def finish(self) -> None:
        """What the application calls again after the interrupt."""
        is_transactional = self.made._transactions is not None
        if is_transactional and self.made._lifecycle.state is not LifecycleState.READY:
            self.made.commit_transaction()
        assert self.made.flush() == 0

    def abort(self) -> None:
        if self.made._lifecycle.state is not LifecycleState.READY:
            self.made.abort_transaction()

    @property
    def values(self) -> list[str]:
        cluster = cluster_of(self.made)
        return sorted(values(cluster, "orders") + values(cluster, "stock"))

    @property
    def offsets_used(self) -> int:
        """More than the values there are, if files were published again at new offsets."""
        cluster = cluster_of(self.made)
        logs = [cluster.topic(name) for name in ("orders", "stock")]
        return sum(part.end_offset for log in logs for part in log.view.partitions)

    @property
    def reported(self) -> list[str]:
        """The values of all reports, so far."""
        self.made.poll(0)
        return sorted((message.value() or b"").decode() for _, message in self.reports.received)

    def check(self, place: str | None, expected: list[str], reported: list[str]) -> None:
        assert self.values == expected, place
        assert self.reported == reported, place
        self.check_idle(place)

    def check_idle(self, place: str | None) -> None:
        assert self.made._accumulator.held_bytes == 0, place
        assert len(self.made) == 0, place
        assert is_free(self.made), place
        closing = threading.Thread(target=self.made.close, daemon=True)
        closing.start()
        closing.join(600)
        assert not closing.is_alive(), place


def is_free(made: Producer) -> bool:
    """Whether another thread can take `io`."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(made._sender.io.acquire(blocking=False))
        if taken[0]:
            made._sender.io.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def for_places(first: int, stride: int, attempt: Callable[[int], str | None]) -> None:
    """Attempt each `stride`-th place, from `first` on, until a call ends without being reached."""
    number = first
    while attempt(number) is not None:
        number += stride
    assert number > 40, "hardly anything was interrupted"


def ending(way: str, number: int) -> str | None:
    """Interrupt the commit or flush."""
    run = Run.begin(way)
    run.produce()
    place = interrupted_at(number, run.finish)
    run.finish()
    run.check(place, VALUES, VALUES)
    assert not run.reports.errors, place
    assert run.offsets_used == len(VALUES), place
    return place


def aborting(way: str, number: int) -> str | None:
    run = Run.begin(way)
    run.produce()
    run.made.flush()
    place = interrupted_at(number, run.abort)
    run.abort()
    assert set(run.reports.errors) <= {"TransactionAbortedError"}, place
    run.check(place, [], VALUES)
    return place


def purging(way: str, number: int) -> str | None:
    """A purge that was interrupted has discarded all, some or none, each with its report."""
    run = Run.begin(way)
    run.produce()
    place = interrupted_at(number, run.made.purge)
    is_aborted = False
    try:
        run.finish()
    except TransactionAbortableError:
        run.made.abort_transaction()
        is_aborted = True
    assert run.reported == VALUES, place
    delivered = sorted((m.value() or b"").decode() for e, m in run.reports.received if e is None)
    if is_aborted:
        # Of an eager transaction, some were in the topic.
        delivered = []
    run.check(place, delivered, VALUES)
    return place


def producing(way: str, number: int) -> str | None:
    """What was taken before the interrupt is delivered, each record with its report."""
    run = Run.begin(way)
    place = interrupted_at(number, run.produce)
    run.finish()
    found = run.values
    assert found == VALUES[: len(found)], place
    run.check(place, found, found)
    return place


def closing(way: str, number: int) -> str | None:
    run = Run.begin(way)
    run.produce()
    place = interrupted_at(number, run.made.close)
    run.made.close()
    assert is_free(run.made), place
    return place


def serving(way: str, number: int) -> str | None:
    """An interrupt while callbacks are called: each is called once."""
    run = Run.begin(way)
    run.produce()
    run.finish()
    place = interrupted_at(number, lambda: run.made.poll(0))
    run.check(place, VALUES, VALUES)
    return place


CALLS = [ending, aborting, purging, producing, closing]
calls = pytest.mark.parametrize("call", CALLS)


@calls
@ways
def test_interrupt_at_some_places(
    call: Callable[[str, int], str | None], way: str, seed: int
) -> None:
    if call is aborting and way == "idempotent":
        return
    for_places(1 + seed % STRIDE, STRIDE, lambda number: call(way, number))


@pytest.mark.soak
@calls
@ways
def test_interrupt_at_each_place(call: Callable[[str, int], str | None], way: str) -> None:
    if call is aborting and way == "idempotent":
        return
    for_places(1, 1, lambda number: call(way, number))


def test_interrupt_while_callbacks_are_called(seed: int) -> None:
    for_places(1 + seed % 3, 3, lambda number: serving("idempotent", number))


def test_commit_interrupted_after_its_end_does_not_publish_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deliveries were about to be reported; the repeated call only reports them."""
    run = Run.begin("deferred")
    run.produce()
    report = Deferred.report

    def interrupted(publication: Deferred) -> None:
        monkeypatch.setattr(Deferred, "report", report)
        raise KeyboardInterrupt

    monkeypatch.setattr(Deferred, "report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.made.commit_transaction()
    run.finish()
    assert run.offsets_used == len(VALUES)
    assert run.reported == VALUES
    with run.made.transaction():
        run.made.produce("orders", "next")
    assert run.offsets_used == len(VALUES) + 1


def test_refusal_after_an_interrupted_commit_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit was decided, its reply lost; another producer takes the id and ends it."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "0")
    assert made._transactions is not None
    coordinator = made._transactions.session._coordinator
    commit = coordinator.commit

    def interrupted(*arguments: object, **named: object) -> None:
        commit(*arguments, **named)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.commit_transaction()
    with started(shared).transaction() as successor:
        successor.produce("orders", "1")
    with pytest.raises(OutcomeLostError):
        made.commit_transaction()


def test_call_of_a_signal_handler_does_not_enter_the_call_it_interrupted() -> None:
    made = producer(world())
    sender = made._sender
    deadline = made._deadline("flush()", 600)

    def handler() -> None:
        with pytest.raises(OperationTimedOutError):
            sender.exclusively(deadline, lambda: pytest.fail("entered"))
        assert not is_free(made)

    sender.exclusively(deadline, handler)
    assert is_free(made)


def test_close_ends_while_another_call_holds_the_producer() -> None:
    """Its records fail with that call, if ever."""
    made = producer(world(), max_block_ms=50)
    entered, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        may_end.wait(600)

    deadline = made._deadline("flush()", 600)
    holder = threading.Thread(target=lambda: made._sender.exclusively(deadline, hold))
    holder.start()
    entered.wait(600)
    made.close(0)
    may_end.set()
    holder.join()
