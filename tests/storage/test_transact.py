"""The loop that every write goes through: what is believed of a log that was not refreshed."""

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
    """A log whose newest commit was ours, and then another process wrote number 2."""
    log, seen = opened(shared.open())
    write(log, 1)
    write(opened(shared.open())[0], 2)
    assert log.likely_current
    return log, seen


def test_answer_that_needs_no_commit_is_given_on_the_newest_state(shared: SharedMemory) -> None:
    """A guess that nobody has written since is proved by a put, and by nothing else (D23)."""
    log, seen = last_writer(shared)
    assert transact(log, lambda: sorted(seen.numbers), lambda _: None) == ["1", "2"]


def test_refusal_is_decided_on_the_newest_state(shared: SharedMemory) -> None:
    """An error about a state that is past would stop a producer that is right (D23)."""
    log, seen = last_writer(shared)

    def decide() -> int:
        if "2" not in seen.numbers:
            raise InvalidTxnStateError("2 comes first")
        return 3

    assert transact(log, decide, lambda number: write(log, number)) == 3
    assert seen.numbers == {"1": 1, "2": 2, "3": 3}


@pytest.mark.parametrize("landed", [True, False])
def test_refused_retry_is_no_answer_to_a_try_that_may_have_landed(
    shared: SharedMemory, landed: bool
) -> None:
    """The caller would write again what is there already, or will be (D20, R63)."""
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


def test_try_in_doubt_is_not_made_again_once_the_log_has_forgotten(shared: SharedMemory) -> None:
    """What would say that the first try landed may be what was forgotten (D20, D41)."""
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
