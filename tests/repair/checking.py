"""A power cut, a repair, and everything that must hold after it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.repair.power_cuts import (
    INPUT,
    READERS,
    TOPICS,
    History,
    copy_of,
    cut_power,
    go_on,
    read,
)
from txnlog.admin import AdminClient, RepairReport
from txnlog.admin.state_rows import rows
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.finishing import finish
from txnlog.messages import TopicPartition
from txnlog.protocol.shards import state_table
from txnlog.protocol.verification.findings import Severity
from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify


def check(root: str, history: History, seed: int, to: Path) -> RepairReport:
    """Damage a copy, repair it, and let clients go on; the message of a failure has the damage."""
    damaged = copy_of(root, to)
    done = cut_power(damaged, history, seed)
    try:
        report = repaired(damaged)
        check_clean(damaged)
        check_records(damaged, history)
        check_clients(damaged, history, seed, report)
        check_clean(damaged)
    except AssertionError as error:
        shown = "\n".join(done[:40])
        raise AssertionError(f"seed {seed}: {error}\n{len(done)} files:\n{shown}") from error
    return report


def repaired(root: str) -> RepairReport:
    """The dry run says what the repair does; after it nothing is left to do."""
    admin = AdminClient({"txnlog.root": root})
    would = admin.repair().result()
    did = admin.repair(dry_run=False, watch_ms=0).result()
    assert would.damaged == did.damaged
    assert would.offsets == did.offsets
    assert would.transactions == did.transactions
    again = admin.repair().result()
    assert not again.is_needed, again
    return did


def check_clean(root: str) -> None:
    """`verify --deep` finds nothing."""
    store = ObjectStore.from_url(root, create=False)
    store.clock.sleep_ms = lambda duration_ms: None  # type: ignore[method-assign]
    found = verify(store, VerifySettings(deep=True))
    errors = [one for one in found.findings if one.severity is Severity.ERROR]
    assert not errors, "\n".join(f"{f.kind.name} {f.table} {f.file}: {f.what}" for f in errors)
    assert found.is_complete, found.errors


def check_records(root: str, history: History) -> None:
    """What was synced is there once, what was late at most once, what was aborted never."""
    cluster = Cluster.open(root)
    for _, row in rows(cluster):
        # As any client does, some seconds after it has seen that nobody else does.
        if row.state.is_prepared:
            finish(cluster, row)
    found = read(root, *TOPICS, INPUT)
    once(found, history.synced)
    twice = sorted(value for value, count in found.items() if count > 1)
    assert not twice, f"read twice: {twice}"
    strange = sorted(found.keys() - history.synced - history.late)
    assert not strange, f"never committed: {strange}"


def check_clients(root: str, history: History, seed: int, report: RepairReport) -> None:
    """Every id and group goes on: what is acknowledged now is there once. Then all that was decided
    is finished, and what is half was reported.
    """
    ids = {row.transactional_id: state_table(shard) for shard, row in rows(Cluster.open(root))}
    reader = Consumer({"txnlog.root": root, "group.id": READERS})
    at = reader.committed([TopicPartition(INPUT, 0)])[0].offset
    assert max(at, 0) >= history.readers_at, f"group at {at}, synced at {history.readers_at}"
    reader.close()
    before = read(root, *TOPICS, INPUT)
    after, clients = go_on(root, seed)
    clients.close()
    found = read(root, *TOPICS, INPUT)
    once(found, after.late)
    once(found, history.synced)
    gone = sorted(value for value in before if found[value] != before[value])
    copies = [value for value in gone if value.startswith("copy-")]
    assert gone == copies, f"changed: {gone}"
    assert not set(copies) & history.copied, f"copied again: {copies}"
    assert not found.keys() & after.aborted
    known = {one.transactional_id for one in report.transactions}
    tables = {one.table for one in report.damaged if one.lost_commits}
    for name, values in history.transactions:
        there = values & found.keys()
        # Of an id without a row, and of lost decisions, nothing is known.
        if there and there != values and name in ids and ids[name] not in tables:
            assert name in known, f"half and not reported: {name} {sorted(values)}"


def once(found: dict[str, int], wanted: Iterable[str]) -> None:
    missing = sorted(value for value in wanted if value not in found)
    assert not missing, f"lost: {missing}"
