"""`txnlog upgrade`: nothing is lost, an old process is stopped, and any step may be the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Some
from tests.coordinator.processes import ERRORS, outcome_of
from tests.upgrade.old_processes import OldProcess, tables
from tests.upgrade.roots import (
    COMMITTED,
    FORMATS,
    OVERTAKEN,
    PREPARED,
    START,
    expected,
    old_folder,
    old_world,
    opened,
    output,
    positions,
    prepared_states,
    settled,
    upgrade,
    upgraded,
)
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConcurrentTransactionsError,
    IllegalGenerationError,
    UnstableOffsetCommitError,
    UnsupportedProtocolError,
)
from txnlog.producer import Producer
from txnlog.protocol.upgrade import OldGroup
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.delta.actions import Protocol, decode_commit
from txnlog.storage.delta.table_protocol import CLOSED, PROTOCOL, check_protocol
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.offsets_upgrade import OldOffsets, OldShard
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.verifier import verify

BOTH = pytest.mark.parametrize("root_format", FORMATS)
ENDS = ("done", "crashed", "StorageError", "CommitStateUnknownError", "NothingWrittenError")
MOVED = {0: 30, 1: 5}


def complete(shared: SharedMemory, name: str, state: str | None) -> bool:
    """The second phase, by a client of this version."""
    config = {"txnlog.root": "memory://", "transactional.id": name}
    producer = Producer(config, cluster=opened(shared), background=False)
    producer.init_transactions(keep_prepared=True)
    return producer.complete_transaction(state)


@BOTH
def test_offsets_move_with_their_output_or_stay_with_it(root_format: str) -> None:
    """Decided by an old process: both appear. Not decided: neither does (R36, R45, R47)."""
    shared = old_world(root_format)
    report = upgraded(shared)
    # Before anything is finished: what an entry would move is with its transaction.
    before = positions(opened(shared))
    assert before["decided 0"] == START
    assert before["overtaken 0"] == {0: 40, 1: 5}
    after = settled(shared)
    assert positions(after) == expected(COMMITTED)
    assert positions(after)["overtaken 0"] == OVERTAKEN
    for topic in ("orders", "stock"):
        assert output(after, topic) == set(COMMITTED)
    assert (report.format, report.groups, report.transactions) == ("3", 39, 6)


@BOTH
def test_prepared_transaction_is_completed_after_the_upgrade(root_format: str) -> None:
    """Its database may have committed: only its client may end it (KIP-939)."""
    shared = old_world(root_format)
    states = prepared_states(root_format)
    upgraded(shared)
    with pytest.raises(UnstableOffsetCommitError, match="prepared"):
        opened(shared).groups.start("prepared 0")
    settled(shared)
    assert complete(shared, "prepared", states["prepared"])
    assert complete(shared, "prepared eagerly", states["prepared eagerly"])
    assert not complete(shared, "prepared twice", None)
    after = settled(shared)
    moved = (*COMMITTED, *PREPARED[:2])
    found = positions(after)
    # start() began a generation before it was refused.
    assert found == expected(moved)
    assert {topic: output(after, topic) for topic in ("orders", "stock")} == {
        "orders": set(moved),
        "stock": set(moved),
    }
    check_cluster(after, settled=True)


@BOTH
def test_groups_keep_generations_members_and_positions(root_format: str) -> None:
    """A group that starts again at 0 has all its input twice (D35, R59)."""
    shared = old_world(root_format)
    before: dict[str, OldGroup] = {}
    store = shared.open()
    numbers = range(4) if root_format == "2" else []
    logs = [OldShard(store, n) for n in numbers] or [OldOffsets(store)]
    for log in logs:
        log.refresh()
        before |= {g: row for g, row in log.view.rows.items() if isinstance(row, OldGroup)}
    upgraded(shared)
    after = opened(shared)
    assert len(after.offsets_shards()) == 4
    rows = {g: row for log in after.offsets_shards() for g, row in log.view.rows.items()}
    assert set(rows) == set(before)
    assert before["members"].members
    for name, was in before.items():
        now = rows[name]
        assert (now.positions(), now.generation, now.members, now.assignment) == (
            was.positions(), was.generation, was.members, was.assignment
        )  # fmt: skip
        assert now.tickets.newest == len(was.pending)
    holders = {h.transactional_id for row in rows.values() for h in row.tickets.holders}
    assert holders == {"decided", "half moved", "overtaken", *PREPARED}
    check_cluster(after)
    assert upgrade(shared.open()).run().steps == ()


@BOTH
def test_newcomer_finishes_what_an_old_process_decided(root_format: str) -> None:
    """A group that starts before any sweeper has seen the transaction reads its offsets (R46)."""
    shared = old_world(root_format)
    upgraded(shared)
    after = opened(shared)
    generation = after.groups.start("decided 1")
    assert after.groups.fetch("decided 1", generation) == {"input": MOVED}
    assert output(after, "orders") >= {"decided"}
    after.groups.commit("undecided 1", 1, {"input": {0: 17}})
    assert after.groups.fetch("undecided 1") == {"input": {0: 17, 1: 5}}


@BOTH
def test_dry_run_writes_nothing(root_format: str) -> None:
    """An operator looks before stopping the clients."""
    store = old_world(root_format).open()
    report = upgrade(store).find()
    wanted = ["close", "close", "seal", "carry", "convert", "set"]
    steps = [step.split()[0] for step in report.steps]
    assert steps == (wanted if root_format == "1" else [w for w in wanted if w != "seal"])
    assert [verb for verb, _ in store.calls if verb in ("put", "delete")] == []
    assert (report.format, report.groups) == (root_format, 39)
    assert report.pending > report.transactions > 0
    assert upgrade(store).run().steps == report.steps


@BOTH
def test_this_version_refuses_an_old_root_and_names_the_command(root_format: str) -> None:
    """It would find no group, and start all from the beginning (R38, R60)."""
    with pytest.raises(UnsupportedProtocolError, match="`txnlog upgrade`"):
        opened(old_world(root_format))


@BOTH
def test_versions_of_old_formats_refuse_every_table_but_topics(root_format: str) -> None:
    """What they wrote would be acknowledged, and in no group (R45, R48)."""
    shared = old_world(root_format)
    old = OldProcess(shared.open(), root_format)
    upgraded(shared)
    for _ in range(2):
        with pytest.raises(UnsupportedProtocolError):
            old.commit("plain 3", 1_000)
        with pytest.raises(UnsupportedProtocolError):
            old.decide("undecided")
    store = shared.open()
    for table in tables(root_format):
        files = [m.path for m in store.list(f"{table}/_delta_log") if m.path.endswith(".json")]
        blobs = [decode_commit(store.get(path), version=0, source=path) for path in sorted(files)]
        found = [a for c in blobs for a in c.actions if isinstance(a, Protocol)]
        assert found[-1] == CLOSED, table
        with pytest.raises(UnsupportedProtocolError, match="Upgrade txnlog"):
            check_protocol(found[-1], PROTOCOL, table, table=table)
    assert positions(settled(shared)) == expected(COMMITTED)


@BOTH
def test_old_process_is_heard_or_refused_at_every_moment(root_format: str, some: Some[int]) -> None:
    """Its acknowledged commits are all there afterwards, and nothing else is (R45, R48)."""
    heard = set()
    for number in some(range(0, 200, 3)):
        shared = old_world(root_format)
        old = OldProcess(shared.open(), root_format)
        outcomes: list[str] = []

        def write(old: OldProcess = old, outcomes: list[str] = outcomes) -> None:
            outcomes.append(outcome_of(lambda: old.commit("plain 3", 100)))
            outcomes.append(outcome_of(lambda: old.commit("overtaken 0", 50)))
            outcomes.append(outcome_of(lambda: old.decide("undecided")))

        store = shared.open()
        store.plan = plan = FaultsAt({}, interlude=write, interlude_at=number)
        upgrade(store).run()
        if plan.calls <= number:
            break
        assert set(outcomes) <= {"done", "UnsupportedProtocolError"}
        plain, overtaken, decided = (outcome == "done" for outcome in outcomes)
        heard.add((plain, overtaken, decided))
        wanted = expected((*COMMITTED, "undecided") if decided else COMMITTED)
        wanted["plain 3"] = {0: 100 if plain else 3, 1: 7}
        wanted["overtaken 0"] = {0: 50 if overtaken else 40, 1: 30}
        assert positions(settled(shared)) == wanted, number
    assert {(True, True, True), (False, False, False)} < heard


@BOTH
def test_commit_of_an_old_process_that_is_under_way(root_format: str) -> None:
    """Its put was sent before its table was closed; whichever takes the slot is first (R62)."""
    for fault in (Fault.LAND_LATE, Fault.LOSE_REPLY):
        shared = old_world(root_format)
        old = OldProcess(shared.open(), root_format)
        assert isinstance(old.store, FaultyStore)
        old.store.plan = lambda verb, path, f=fault: (
            f if verb == "put" and path.endswith(".json") else Fault.NONE
        )
        outcome = outcome_of(lambda o=old: o.commit("plain 3", 100))
        assert outcome == ("CommitStateUnknownError" if fault is Fault.LAND_LATE else "done")
        upgraded(shared)
        assert shared.land_late() == []
        expected_at = 3 if fault is Fault.LAND_LATE else 100
        assert positions(opened(shared))["plain 3"][0] == expected_at


@BOTH
def test_upgrade_that_dies_or_meets_an_error_anywhere_is_continued_by_the_next(
    root_format: str, some: Some[tuple[int, Fault]]
) -> None:
    """Between any two writes: then no version opens the root, or it is as it was."""
    store = old_world(root_format).open()
    upgrade(store).run()
    puts = [path for verb, path in store.calls if verb == "put"]
    rows = [number for number, path in enumerate(puts) if path.endswith(".parquet")]
    numbers = sorted({*range(len(puts))} - {*rows} | {*rows[::8]})
    faults = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, *ERRORS)
    for number, fault in some(
        (n, faults[(n + turn) % 6]) for n in numbers for turn in range(0, 6, 2)
    ):
        shared = old_world(root_format)
        store = shared.open()
        plan = FaultsAt({number: fault})
        store.plan = lambda verb, path, p=plan: p(verb, path) if verb == "put" else Fault.NONE
        outcome = outcome_of(lambda st=store: upgrade(st).run())
        assert outcome in ENDS, (outcome, fault, number)
        upgraded(shared)
        shared.land_late()
        assert positions(settled(shared)) == expected(COMMITTED), (fault, number)


@BOTH
def test_two_upgrades_at_once(root_format: str, some: Some[int]) -> None:
    """All steps of one between any two of the other, and clients of this version after them."""
    for number in some(range(0, 200, 3)):
        shared = old_world(root_format)
        store = shared.open()

        def other(shared: SharedMemory = shared) -> None:
            upgraded(shared)
            opened(shared).groups.commit("plain 3", 1, {"input": {0: 90}})

        store.plan = plan = FaultsAt({}, interlude=other, interlude_at=number)
        upgrade(store).run()
        if plan.calls <= number:
            break
        wanted = {**expected(COMMITTED), "plain 3": {0: 90, 1: 7}}
        assert positions(settled(shared)) == wanted, number


def test_upgrade_refuses_while_a_client_writes() -> None:
    """Its users would see errors; nothing is closed before they are stopped."""
    shared = old_world("2")
    old = OldProcess(shared.open(), "2")
    work = upgrade(shared.open(), watch_ms=1_000)

    def write(text: str, done: int, count: int) -> None:
        old.commit("plain 3", done)

    work._on_step = write
    with pytest.raises(ConcurrentTransactionsError, match="__consumer_offsets-"):
        work.run()
    old.commit("plain 3", 70)
    work._on_step = lambda text, done, count: None
    assert work.run().format == "3"
    assert positions(opened(shared))["plain 3"] == {0: 70, 1: 7}


def test_markers_are_in_every_shard() -> None:
    """`txnlog verify` expects the marker of each ended transaction that its log remembers (R4)."""
    shared = old_world("1")
    old = OldOffsets(shared.open())
    old.refresh()
    upgraded(shared)
    assert len(old.view.markers) >= 2
    for log in opened(shared).offsets_shards():
        assert dict(log.view.markers) == dict(old.view.markers)


@BOTH
def test_stale_client_of_this_version_is_refused_by_its_generation(root_format: str) -> None:
    """The carried ticket is a holder as any: a new start fences it, and forgets it."""
    shared = old_world(root_format)
    upgraded(shared)
    after = opened(shared)
    before = after.groups.start("overtaken 0")
    assert after.groups.fetch("overtaken 0", before) == {"input": OVERTAKEN}
    after.groups.start("overtaken 0")
    with pytest.raises(IllegalGenerationError):
        after.groups.commit("overtaken 0", before, {"input": {0: 99}})


@BOTH
def test_root_on_a_local_disk_is_verified_and_its_history_is_read(
    root_format: str, tmp_path: Path
) -> None:
    """No finding in any table; Delta's readers see both columns, each at its versions."""
    root = old_folder(root_format, tmp_path / "root")
    upgrade(ObjectStore.from_url(root, create=False)).run()
    after = Cluster.open(root)
    check_cluster(after)
    found = verify(ObjectStore.from_url(root, create=False))
    # Its transactions are years old by this machine's clock.
    kinds = {finding.kind for finding in found.findings}
    undecided = {FindingKind.FSYNC_UNDECIDED}  # It records nothing.
    assert (kinds, found.errors) == ({FindingKind.TRANSACTION_STUCK} | undecided, [])
    assert positions(after)["plain 6"] == {0: 6, 1: 7}
    table = "__consumer_offsets-0"
    now = _read_delta(f"{root}/{table}")
    assert "tickets" in now[0]
    assert "pending" not in now[0]
    if root_format == "2":
        versions = len(list(Path(root, table, "_delta_log").glob("*.json")))
        was = _read_delta(f"{root}/{table}", versions - 3)
        assert {row["group_id"] for row in was} == {row["group_id"] for row in now}
        assert "pending" in was[0]
        assert {row["offsets"] for row in was} == {row["offsets"] for row in now}


def _read_delta(table: str, version: int | None = None) -> list[dict[str, object]]:
    from deltalake import DeltaTable

    found: list[dict[str, object]] = (
        DeltaTable(table, version=version).to_pyarrow_table().to_pylist()
    )
    return found
