"""Two threads over one producer: what one does while a call of the other waits for its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.producer.worlds import BOTH, group, input_at, started, values, world
from tests.world import process, recover, state_of
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import ClientStateError, InvalidTxnStateError, TxnLogError
from txnlog.producer import Producer
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.producer_states import LifecycleState as S
from txnlog.protocol.states import TransactionState

Act = Callable[[Producer], object]


def begin(made: Producer) -> None:
    made.begin_transaction()


def begin_after_days(made: Producer) -> None:
    made.begin_transaction()


def send(made: Producer) -> None:
    made.send_offsets_to_transaction(input_at(20), group())


def produce(made: Producer) -> None:
    made.produce("stock", "waited", partition=0)


def complete(made: Producer) -> None:
    made.complete_transaction(made.prepared_state)


def second(made: Producer) -> None:
    """Records and offsets of the second transaction."""
    made.produce("orders", "2", partition=0)
    made.send_offsets_to_transaction(input_at(30), group())


commit, abort, prepare = (
    Producer.commit_transaction,
    Producer.abort_transaction,
    Producer.prepare_transaction,
)
flush, purge, close = Producer.flush, Producer.purge, Producer.close

OTHERS: Sequence[Sequence[Act]] = (
    [commit],
    [abort],
    [commit, begin, second],
    [abort, begin, second],
    [abort, begin, second, flush],
    [abort, begin, second, commit],
    [prepare],
    [prepare, abort],
    [prepare, commit, begin, second],
    [close],
)
BEGUN: Sequence[Sequence[Act]] = (
    [begin, second],
    [begin, second, flush],
    [begin, second, commit],
)
"""What the other thread does meanwhile; a call that is refused is its last."""

ENDS_IT = (commit, abort, close)


def outcome(act: Act, made: Producer) -> str:
    try:
        act(made)
    except TxnLogError as error:
        return type(error).__name__
    return "done"


class Met:
    """A call that waits, until another thread has made its calls."""

    def __init__(self, publish: str, call: Act, others: Sequence[Act]) -> None:
        self.shared = world()
        self.made = made = started(self.shared, publish)
        self.others: list[Act] = []
        if call is begin_after_days:
            self.shared.clock.advance_ms(2 * 86_400_000)
        elif call is not begin:
            made.begin_transaction()
            made.produce("orders", "1", partition=0)
            made.send_offsets_to_transaction(input_at(10), group())
            if publish == "eager":
                made.flush()
        if call is complete:
            made.prepare_transaction()
        waiting = iter([others])

        def instead(wait: Callable[..., Any]) -> Callable[..., Any]:
            def met(*args: Any) -> Any:
                thread = threading.Thread(target=lambda: self._act(next(waiting, ())))
                thread.start()
                thread.join()
                return wait(*args)

            return met

        with pytest.MonkeyPatch.context() as patch:
            if call is begin:
                patch.setattr(made._lifecycle, "begin", instead(made._lifecycle.begin))
            else:
                patch.setattr(made._sender, "exclusively", instead(made._sender.exclusively))
            self.outcome = outcome(call, made)

    def _act(self, others: Sequence[Act]) -> None:
        for other in others:
            if outcome(other, self.made) != "done":
                return
            self.others.append(other)

    def finish(self) -> tuple[list[str], int, TransactionState]:
        """Values, position and state of the row, after what is open has ended."""
        made = self.made
        state = made._lifecycle.state
        if state in (S.IN_TRANSACTION, S.COMMITTING, S.PREPARED):
            made.commit_transaction()
        elif state in (S.ABORTING, S.ABORTABLE_ERROR, S.PREPARING):
            made.abort_transaction()
        made.close()
        after = recover(self.shared)
        found: Positions = after.groups.fetch("readers")
        read = values(after, "orders") + values(after, "stock")
        return read, found.get("input", {}).get(0, 0), state_of(after)


@pytest.mark.parametrize(
    "call",
    [begin, begin_after_days, send, produce, prepare, commit, abort, complete, purge, flush, close],
    ids=lambda call: call.__name__,
)
@BOTH
def test_call_that_waited_acts_on_its_own_transaction_only(publish: str, call: Act) -> None:
    """Records and offsets are in the transaction of their call, or in none; no transaction that
    nobody has begun is left behind (R29, R31, R39)."""
    for others in BEGUN if call in (begin, begin_after_days) else OTHERS:
        if (call, others) == (complete, [close]):
            # A prepared transaction is kept.
            continue
        met = Met(publish, call, others)
        where = f"{[other.__name__ for other in met.others]}: {met.outcome}"
        is_over = any(other in ENDS_IT for other in met.others)
        if call in (send, produce, prepare) and is_over:
            assert met.outcome in (InvalidTxnStateError.__name__, ClientStateError.__name__), where
        found, at, state = met.finish()
        assert state.is_idle, where
        if "2" in found:
            assert found in (["2"], ["1", "2"]), where
            assert at == 30, where
        elif "1" in found:
            sent = call is send and met.outcome == "done"
            assert at == (20 if sent else 10), where
        else:
            assert (found, at) == ([], 0), where
        assert "1" in found or call is not commit or met.outcome != "done", where


@BOTH
def test_commit_that_waited_for_one_that_failed_and_was_aborted_says_so(publish: str) -> None:
    """It must not pass for a commit."""
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", "1", partition=0)
    made.flush()
    wait = made._sender.exclusively

    def fenced(*args: Any) -> Any:
        made._sender.exclusively = wait  # type: ignore[method-assign]
        made._sender.exclusively(made._deadline("purge()", None), lost)
        made.abort_transaction()
        return wait(*args)

    def lost() -> None:
        # A send failed while the first call to commit waited.
        made._lifecycle.fail(TxnLogError("lost"), S.ABORTABLE_ERROR)

    made._sender.exclusively = fenced  # type: ignore[assignment,method-assign]
    with pytest.raises(InvalidTxnStateError):
        made.commit_transaction()
    made.begin_transaction()
    made.commit_transaction()
    made.close()
    Sweeper(process(shared)).sweep()
    assert values(process(shared), "orders") == []
