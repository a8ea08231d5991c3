"""The loop of every write: what counts if a log was not refreshed."""

from __future__ import annotations

import pytest

from tests.storage.number_log import History, created, opened, write
from txnlog.errors import CommitStateUnknownError, InvalidTxnStateError
from txnlog.protocol.txn_memory import EXPIRED_TRANSACTIONS
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.delta_log import DeltaLog, Outcome
from txnlog.storage.delta.transact import transact
from txnlog.testing.faults import Fault, SharedMemory, no_faults


@pytest.fixture
def shared() -> SharedMemory:
    shared = SharedMemory()
    created(shared.open())
    return shared


def last_writer(shared: SharedMemory) -> tuple[DeltaLog, History]:
    """A log that wrote its newest commit, before another process wrote number 2."""
    log, seen = opened(shared.open())
    write(log, 1)
    write(opened(shared.open())[0], 2)
    assert log.likely_current
    return log, seen


def test_decision_without_a_commit_uses_the_newest_state(shared: SharedMemory) -> None:
    """Only a put proves that no process has written since (D23)."""
    log, seen = last_writer(shared)
    assert transact(log, lambda: sorted(seen.numbers), lambda _: None) == ["1", "2"]


def test_refusal_is_decided_on_the_newest_state(shared: SharedMemory) -> None:
    """An error from an old state would stop a valid producer (D23)."""
    log, seen = last_writer(shared)

    def decide() -> int:
        if "2" not in seen.numbers:
            raise InvalidTxnStateError("2 comes first")
        return 3

    assert transact(log, decide, lambda number: write(log, number)) == 3
    assert seen.numbers == {"1": 1, "2": 2, "3": 3}


@pytest.mark.parametrize("landed", [True, False])
def test_refused_retry_leaves_an_attempt_that_may_have_landed_unknown(
    shared: SharedMemory, landed: bool
) -> None:
    """The caller would write again what has landed or will land (D20, R63)."""
    store = shared.open()
    log, _ = opened(store)
    tries = []

    def decide() -> int:
        if tries:
            raise InvalidTxnStateError("refused")
        return 1

    def commit(number: int) -> Outcome:
        tries.append(number)
        store.plan = lambda verb, path: Fault.LAND_LATE if verb == "put" else Fault.FAIL_BEFORE
        outcome = write(log, number)
        store.plan = no_faults
        if landed:
            shared.land_late()
        return outcome

    with pytest.raises(CommitStateUnknownError) as unknown:
        transact(log, decide, commit)
    assert isinstance(unknown.value.__cause__, InvalidTxnStateError)
    with pytest.raises(InvalidTxnStateError):
        transact(log, decide, commit)


def test_unknown_commit_is_not_retried_after_the_log_has_forgotten(shared: SharedMemory) -> None:
    """The log may have forgotten the effect of the first attempt (D20, D41)."""
    store = shared.open()
    log, _ = opened(store)
    tries = []

    def commit(number: int) -> Outcome:
        tries.append(number)
        store.plan = lambda verb, path: Fault.LAND_LATE if verb == "put" else Fault.FAIL_BEFORE
        outcome = write(log, number)
        store.plan = no_faults
        shared.land_late()
        opened(shared.open())[0].commit([Txn(EXPIRED_TRANSACTIONS, 5)], operation="EXPIRE")
        return outcome

    with pytest.raises(CommitStateUnknownError):
        transact(log, lambda: 1, commit)
    assert tries == [1]
