"""Tables of one row per id: one live file each, compare-and-swap, unknown columns, damage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.storage.number_log import plant
from txnlog.errors import (
    CommitStateUnknownError,
    CorruptLogError,
    GroupAuthorizationError,
    InvalidTxnStateError,
    TransactionalIdAuthorizationError,
)
from txnlog.protocol.groups import OffsetsCommit, prepare_generation
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Transition, prepare_expire, prepare_init
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_groups, check_rows

OFF = LogSettings(checkpoint_mode="off")
TABLE = "__transaction_state-0"


def opened(store: ObjectStore) -> TransactionLog:
    log = TransactionLog(store, 0, settings=OFF)
    log.create("id")
    return log


def init(log: TransactionLog, tid: str, run: str, *, producer_id: int = 1) -> TransactionMetadata:
    row = log.transition(
        tid,
        lambda now: prepare_init(
            now,
            transactional_id=tid,
            new_producer_id=producer_id,
            owner=Owner(run_id=run),
            timeout_ms=1_000,
            now_ms=0,
        ),
    )
    assert row is not None
    return row


def test_rows_survive_transitions_checkpoints_and_clean_up(store: ObjectStore) -> None:
    """A forgotten epoch lets a zombie back in (R11, R35)."""
    log = opened(store)
    for number in range(8):
        init(log, f"tx{number % 3}", f"run{number}", producer_id=number % 3)
        check_rows(log)
    create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)
    clean_up(store, TABLE, retention_ms=-1)
    check_rows(log)
    cold = opened(store)
    assert {tid: row.producer_epoch for tid, row in cold.view.rows.items()} == {
        "tx0": 2,
        "tx1": 2,
        "tx2": 1,
    }
    init(cold, "tx0", "last")
    check_rows(log)


def test_row_keeps_one_file_through_all_its_transitions(store: ObjectStore) -> None:
    """With a file per transition the cost of a transaction would grow for ever."""
    log = opened(store)
    for number in range(5):
        init(log, "tx", f"run{number}")
    files = [m.path for m in store.list(TABLE) if m.path.endswith(".parquet")]
    assert files == [f"{TABLE}/{log.view.rows['tx'].path}"]


def test_racing_processes_each_get_their_own_epoch(store: ObjectStore) -> None:
    """Both read the same row; the second must decide on what the first wrote (R10, R26)."""
    logs = [opened(store) for _ in range(3)]
    epochs = [init(logs[n % 3], "tx", f"run{n}").producer_epoch for n in range(9)]
    assert epochs == list(range(9))


def test_transition_that_is_already_applied_writes_nothing(store: ObjectStore) -> None:
    """A repeated call is answered from the row (R28)."""
    log = opened(store)
    init(log, "tx", "run")
    version = log.log.version
    assert init(log, "tx", "run").producer_epoch == 0
    assert log.log.version == version


def test_expired_row_is_gone_and_its_id_starts_again(store: ObjectStore) -> None:
    """The next init of an expired id gets a new producer id (R35)."""
    log = opened(store)
    init(log, "tx", "run", producer_id=1)
    assert log.transition("tx", lambda now: prepare_expire(now, now_ms=0)) is None
    assert opened(store).view.rows == {}
    again = init(log, "tx", "run", producer_id=2)
    assert (again.producer_id, again.producer_epoch) == (2, 0)
    check_rows(log)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "PREPARE_MAYBE"),
        ("producer_epoch", "x"),
        ("pending", "{"),
        ("owner", "[]"),
        ("partitions", None),
        ("a_newer_column", "7"),
    ],
)
def test_row_that_cannot_be_read_is_refused_and_names_the_commit(
    store: ObjectStore, column: str, value: str | None
) -> None:
    """An unknown state must not read as an idle one (R38, R66)."""
    log = opened(store)
    row = init(log, "tx", "run")
    reader = opened(store)
    values: dict[str, str] = {**row.to_values(), column: value}  # type: ignore[dict-item]
    add = row_add(row.path, values, size_bytes=1, now_ms=0)
    plant(log.log, [add])
    for stale in (reader, TransactionLog(store, 0, settings=OFF)):
        stale.refresh()
        for ask in (stale.row, stale.view.rows.get, stale.view.rows.__getitem__):
            with pytest.raises(CorruptLogError, match=commit_path(TABLE, 2)):
                ask("tx")


def test_no_permission_for_the_state_is_an_authorization_error(store: ObjectStore) -> None:
    """The error names the missing permission, and nothing becomes visible (R68)."""
    shared = SharedMemory()
    opened(shared.open())
    OffsetsLog(shared.open(), 0, settings=OFF).create("id")
    denied = shared.open(plan=lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE)
    with pytest.raises(TransactionalIdAuthorizationError, match=TABLE):
        init(TransactionLog(denied, 0, settings=OFF), "tx", "run")
    with pytest.raises(GroupAuthorizationError, match="__consumer_offsets-0"):
        OffsetsLog(denied, 0, settings=OFF).change(
            lambda view, version: prepare_generation(None, group_id="g", now_ms=0)
        )
    assert opened(shared.open()).view.rows == {}


def test_refusal_after_an_unknown_commit_is_reported_as_unknown() -> None:
    """PREPARE may have landed; "fenced" alone would mean "not committed" (D2)."""
    shared = SharedMemory()
    init(opened(shared.open()), "tx", "run")
    store = shared.open()
    log = opened(store)
    store.now_ms()
    store.plan = lambda verb, path: (
        Fault.LAND_LATE
        if verb == "put"
        else Fault.FAIL_BEFORE
        if store.calls[-2][0] == "put"
        else Fault.NONE
    )
    asked: list[int] = []

    def decide(row: TransactionMetadata | None) -> Transition:
        assert row is not None
        if asked:
            raise InvalidTxnStateError("others moved on")
        asked.append(1)
        moved = replace(row, state=TransactionState.PREPARE_COMMIT)
        return Transition(operation="PREPARE_COMMIT", previous=row, next=moved)

    with pytest.raises(CommitStateUnknownError):
        log.transition("tx", decide)
    assert shared.land_late()
    assert opened(shared.open()).view.rows["tx"].state is TransactionState.PREPARE_COMMIT


def test_generations_of_racing_starters_are_all_different(store: ObjectStore) -> None:
    """Two consumers under one generation would both commit the same input (R48)."""
    logs = [OffsetsLog(store, 0, settings=OFF) for _ in range(3)]
    for log in logs:
        log.create("id")
    given = [
        logs[n % 3]
        .change(
            lambda view, version: prepare_generation(view.rows.get("g"), group_id="g", now_ms=0)
        )
        .groups[0]
        .generation
        for n in range(9)
    ]
    assert given == list(range(1, 10))
    logs[0].refresh()
    check_groups(logs[0])


def test_marker_of_the_offsets_has_the_time_by_which_it_is_forgotten() -> None:
    """A marker without a time would stay for ever, in memory and in every checkpoint (R11, D41)."""
    store = SharedMemory().open()
    log = OffsetsLog(store, 0, settings=OFF)
    log.create("id")
    log.change(lambda view, version: OffsetsCommit(operation="MARKER", txns={7: 3}))
    rebuilt = OffsetsLog(store, 0, settings=OFF)
    rebuilt.refresh()
    for view in (log.view, rebuilt.view):
        assert view.markers == {7: 3}
        assert view.markers.older_than(store.now_ms() + 1) == [7]
