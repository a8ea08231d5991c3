"""An unreadable row affects only its own id or group, and can be deleted."""

from __future__ import annotations

import pytest

from spark_source.state_tables import consumer_offsets, transaction_state
from tests.admin.spoiled import (
    GROUP_DAMAGES,
    NO_NUMBER,
    NULL,
    ROW_DAMAGES,
    Changes,
    admin,
    log_of,
    spoil,
    two,
)
from tests.world import (
    GROUP,
    PLAIN,
    both,
    consumed,
    owned,
    process,
    row_of,
    visible,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    CorruptLogError,
    GroupIdNotFoundError,
    InvalidCommitError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    TxnLogError,
)
from txnlog.protocol.group_changes import GENERATION_UNKNOWN
from txnlog.protocol.transitions import Transition
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import Fault, FaultyStore


@pytest.mark.parametrize("changes", ROW_DAMAGES)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_unreadable_state_row_affects_only_its_own_id(changes: Changes, checkpointed: bool) -> None:
    """With one such row no transaction could commit in its shard."""
    shared = two()
    warm = process(shared)
    assert warm.coordinator.describe("tx") is not None
    path = spoil(shared, "tx", changes)
    table = log_of(warm, "tx").path
    if checkpointed and changes in NO_NUMBER:
        pytest.skip("no checkpoint")
    if checkpointed:
        store = shared.open()
        create_checkpoint(store, table, trust_ms=10**9)
        for number in range(2):
            store.delete([f"{table}/_delta_log/{number:020}.json"])
    for cluster in (warm, process(shared)):
        for ask in (cluster.coordinator.describe, lambda name: owned(cluster, "new", tid=name)):  # noqa: B023
            with pytest.raises(CorruptLogError) as error:
                ask("tx")
            assert (error.value.table, error.value.path, error.value.key) == (table, path, "tx")
            for part in (table, path, "'tx'", "txnlog transactions delete"):
                assert part in error.value.message
        for name in ("other", *(f"new-{number}" for number in range(8))):
            row = owned(cluster, f"{name}-run", tid=name)
            cluster.coordinator.commit(row, both(cluster, f"{name}-{id(cluster)}"))
        assert visible(process(shared), f"other-{id(cluster)}") == (True, True)


@pytest.mark.parametrize("changes", GROUP_DAMAGES)
def test_unreadable_group_affects_only_itself(changes: Changes) -> None:
    """All groups of the cluster share one table."""
    shared = two()
    path = spoil(shared, GROUP, changes)
    cluster = process(shared)
    for ask in (
        lambda: cluster.groups.fetch(GROUP),
        lambda: cluster.groups.start(GROUP),
        lambda: cluster.coordinator.commit(owned(cluster, "r", tid="t"), offsets=[consumed(5, 6)]),
    ):
        with pytest.raises(CorruptLogError) as error:
            ask()
        assert (error.value.key, error.value.path) == (GROUP, path)
        assert f"txnlog groups delete --group={GROUP}" in error.value.message
    assert cluster.groups.start("another") == 1
    row = owned(cluster, "r2", tid="t2")
    cluster.coordinator.commit(row, offsets=[consumed(0, 7, group="another")])
    assert cluster.groups.fetch("another") == {"input": {0: 7}}


def test_listings_show_unreadable_rows_with_their_errors() -> None:
    """An operator who looks for the damage must not get only its error."""
    shared = two()
    spoil(shared, "tx", {"state": "MAYBE"})
    spoil(shared, GROUP, {"generation": "x"})
    process(shared).groups.start("another")
    client = admin(process(shared))
    found = {t.transactional_id: t for t in client.list_transactions().result()}
    assert sorted(found) == ["other", "tx"]
    assert (found["tx"].state, found["tx"].producer_id) == (None, -1)
    assert isinstance(found["tx"].error, CorruptLogError)
    assert found["other"].error is None
    [left] = client.list_transactions(transactional_id_pattern="oth.*").result()
    assert left.transactional_id == "other"
    groups = client.list_consumer_groups().result()
    assert [listing.group_id for listing in groups.valid] == ["another"] or not groups.valid
    assert [error.key for error in groups.errors] == [GROUP]  # type: ignore[attr-defined]


@pytest.mark.parametrize("missing", [None, NULL, ""])
def test_row_without_a_readable_id_is_named_by_its_file(missing: str | None) -> None:
    """It must be listed and deletable without an id."""
    shared = two()
    path = spoil(shared, "tx", {"transactional_id": missing})
    group_path = spoil(shared, GROUP, {"group_id": missing})
    cluster = process(shared)
    client = admin(cluster)
    assert [t.transactional_id for t in client.list_transactions().result()] == ["other", path]
    assert [error.key for error in client.list_consumer_groups().result().errors] == [group_path]  # type: ignore[attr-defined]
    assert owned(cluster, "new").producer_epoch == 0
    client.delete_transactions([path])[path].result()
    client.delete_consumer_groups([group_path])[group_path].result()
    assert {t.error for t in client.list_transactions().result()} == {None}
    assert not client.list_consumer_groups().result().errors


@pytest.mark.parametrize("warm", [True, False])
def test_two_unreadable_rows_of_one_id_are_both_listed_and_deleted(warm: bool) -> None:
    """One of them hid the other, which appeared again in the next process."""
    shared = two()
    spoil(shared, "other", {"state": "?", "transactional_id": "tx"})
    cluster = process(shared)
    if warm:
        log_of(cluster, "other").refresh()
    path = spoil(shared, "tx", {"state": "?"})
    if log_of(cluster, "tx").path != log_of(cluster, "other").path:
        pytest.skip("two shards")
    client = admin(cluster if warm else process(shared))
    found = [t.transactional_id for t in client.list_transactions().result()]
    assert (len(found), "tx" in found) == (2, True)
    for key in found:
        client.delete_transactions([key])[key].result()
    for again in (client, admin(process(shared))):
        assert again.list_transactions().result() == []
    assert path in found or "tx" in found


@pytest.mark.parametrize("changes", ROW_DAMAGES)
def test_deleted_row_frees_its_id(changes: Changes) -> None:
    """A new owner begins with a new producer id; the old one stays fenced (R27, D41)."""
    shared = two()
    zombie = process(shared)
    old = owned(zombie, "tx-run")
    spoil(shared, "tx", changes)
    admin(process(shared)).delete_transactions(["tx"])["tx"].result()
    new = owned(process(shared), "heir")
    assert (new.producer_epoch, new.producer_id > old.producer_id) == (0, True)
    with pytest.raises(TxnLogError):
        zombie.coordinator.commit(old, both(zombie, "late"))
    assert visible(process(shared), "late") == (False, False)


def test_only_unreadable_rows_are_deleted() -> None:
    """A readable row may have a decided transaction, which would never be published."""
    client = admin(process(two()))
    with pytest.raises(InvalidTxnStateError, match="is readable"):
        client.delete_transactions(["tx"])["tx"].result()
    with pytest.raises(TransactionalIdNotFoundError):
        client.delete_transactions(["nobody"])["nobody"].result()


@pytest.mark.parametrize("changes", GROUP_DAMAGES)
def test_deleted_group_continues_with_a_higher_generation(changes: Changes) -> None:
    """A client with an old generation must never pass for a newer member (D35)."""
    shared = two()
    spoil(shared, GROUP, changes)
    client = admin(process(shared))
    client.delete_consumer_groups([GROUP])[GROUP].result()
    with pytest.raises(GroupIdNotFoundError):
        client.describe_consumer_groups([GROUP])[GROUP].result()
    cluster = process(shared)
    expected = GENERATION_UNKNOWN if changes.get("generation") else 1
    # One for the row that replaces it, one under which its holders are fenced.
    assert cluster.groups.start(GROUP) == expected + 3
    assert cluster.groups.fetch(GROUP) == {}


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.SAY_EXISTS, Fault.FAIL_BEFORE])
def test_deletion_whose_reply_was_lost_succeeds(fault: Fault) -> None:
    """A row that is missing at the retry was removed by the first attempt (R63)."""
    shared = two()
    for name in ("tx", GROUP):
        spoil(shared, name, {"updated_ms": None})
        cluster = process(shared)
        log_of(cluster, name)
        assert isinstance(cluster.store, FaultyStore)
        met = []

        def plan(verb: str, path: str) -> Fault:
            if verb == "put" and "_delta_log" in path and not met:  # noqa: B023
                met.append(path)  # noqa: B023
                return fault
            return Fault.NONE

        cluster.store.plan = plan
        if name == "tx":
            admin(cluster).delete_transactions([name])[name].result()
        else:
            admin(cluster).delete_consumer_groups([name])[name].result()
        assert met


def test_transaction_of_an_unreadable_group_is_finished_once_the_group_is_deleted() -> None:
    """It is decided: its data is published, only the group's offsets wait (R31, R37)."""
    shared = two()
    cluster = process(shared)
    row = owned(cluster, "run", tid="t")
    held = cluster.coordinator.prepare(row, both(cluster, "a"), offsets=[consumed(5, 6)])
    spoil(shared, GROUP, {"offsets": "?"})
    with pytest.raises(CorruptLogError, match="groups delete"):
        cluster.coordinator.commit(held)
    assert visible(process(shared), "a") == (True, True)
    admin(process(shared)).delete_consumer_groups([GROUP])[GROUP].result()
    Sweeper(process(shared), interval_ms=0).sweep()
    now = process(shared).coordinator.describe("t")
    assert now is not None
    assert now.state.is_idle


def test_row_that_cannot_be_read_back_is_not_written() -> None:
    """All processes can read what one writes (R38)."""
    cluster = process(two())
    shard = cluster.shard(cluster.shard_of("tx"))

    def decide(row: object) -> Transition:
        from msgspec.structs import replace

        bad = replace(row, timeout_ms=2.5)  # type: ignore[type-var]
        return Transition(operation="MISTAKE", previous=None, next=bad)

    before = shard.log.version
    with pytest.raises(InvalidCommitError, match="no process could read"):
        shard.transition("tx", decide)
    shard.refresh()
    assert shard.log.version == before


@pytest.mark.parametrize("changes", [{"state": "?"}, {"transactional_id": None}])
def test_rewritten_readable_row_is_usable_again(changes: Changes) -> None:
    """After a newer process rewrites the row, running processes must read it."""
    shared = two()
    before = row_of(process(shared))
    spoil(shared, "tx", changes)
    warm = process(shared)
    warm.shard(warm.shard_of("tx")).refresh()
    writer = process(shared)
    log = log_of(writer, "tx")
    log.refresh()
    assert log.view.rows.unreadable
    add = row_add(before.path, before.to_values(), size_bytes=1, now_ms=0)
    assert isinstance(log.log.commit([add], operation="MEND"), Committed)
    for cluster in (warm, process(shared), Cluster.open(shared.open(), settings=PLAIN)):
        assert cluster.coordinator.describe("tx") == before
        assert not log_of(cluster, "tx").view.rows.unreadable


def test_sql_tables_show_the_unreadable_id_and_omit_the_unreadable_group() -> None:
    """Operators query the state when something is wrong."""
    shared = two()
    spoil(shared, "tx", {"state": "?"})
    cluster = process(shared)
    found = transaction_state(cluster, now_ms=0).to_pylist()
    assert [(row["TransactionalId"], row["TransactionState"]) for row in found] == [
        ("other", "CompleteCommit"),
        ("tx", "Unreadable"),
    ]
    assert len(consumer_offsets(cluster)) == 1
    spoil(shared, GROUP, {"offsets": "?"})
    assert len(consumer_offsets(process(shared))) == 0
