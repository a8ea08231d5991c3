"""A repair that dies at any call of the store is finished by the next one, with the same result."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.cases import Some
from tests.repair.power_cuts import build, cut_power, files_below
from txnlog.admin import AdminClient, NewTopic
from txnlog.errors import ConcurrentTransactionsError, CorruptLogError
from txnlog.process.clock import VirtualClock
from txnlog.protocol.repair.losses import RepairReport
from txnlog.protocol.verification.findings import Severity
from txnlog.repairing.repair import Repair
from txnlog.repairing.survey import Survey
from txnlog.storage.delta.log_files import commit_path, list_whole_log
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SimulatedCrash
from txnlog.verifying.report import VerifySettings, no_progress
from txnlog.verifying.verifier import verify

SEED = 3
"""Everything late is damaged, so every kind of step is made."""
GONE = "gone"
"""A topic of which nothing is whole: the repair deletes it."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a damaged root, for stores in memory."""
    root = str(tmp_path_factory.mktemp("interrupted") / "root")
    history = build(root, SEED, synced=4, late=8)
    AdminClient({"txnlog.root": root}).create_topics([NewTopic(GONE, 2)])[GONE].result()
    cut_power(root, history, SEED)
    found = {os.path.relpath(path, root): path.read_bytes() for path in files_below(root)}
    return {path: b"" if path.startswith(f"{GONE}/") else data for path, data in found.items()}


def store_of(files: dict[str, bytes]) -> FaultyStore:
    store = FaultyStore(MemoryStore(), clock=VirtualClock())
    for path, data in files.items():
        store.put(path, data)
    store.calls.clear()
    return store


def another(store: FaultyStore, plan: Any = None) -> FaultyStore:
    """Another process's."""
    found = FaultyStore(store._store, clock=VirtualClock())
    if plan is not None:
        found.plan = plan
    return found


def run(store: FaultyStore) -> RepairReport:
    return Repair(store, watch_ms=0).run()


def content(store: FaultyStore) -> dict[str, object]:
    """What a repaired root says, without times and names of files."""
    survey = Survey(another(store), no_progress)
    survey.run()
    found: dict[str, object] = {"cluster": (survey.cluster.config, survey.cluster.created)}
    for name, topic in survey.topics.items():
        found[name] = (topic.ends, topic.markers.newest, topic.committed)
    for table, offsets in survey.offsets.items():
        found[table] = {
            row.group_id: (row.generation, row.positions(), row.tickets.newest)
            for row in offsets.rows.values()
        }
    for table, states in survey.states.items():
        found[table] = {
            row.transactional_id: (row.transaction, row.producer_epoch, row.state)
            for row in states.rows.values()
        }
    return found


def check_whole(store: FaultyStore) -> None:
    found = verify(another(store), VerifySettings(deep=True))
    errors = [one for one in found.findings if one.severity is Severity.ERROR]
    assert not errors, errors
    assert not Repair(another(store)).find().is_needed


def kind_of(call: tuple[str, str]) -> tuple[str, str]:
    """Equal for the same step with another version, file or table."""
    verb, path = call
    return verb, re.sub(r"(?<=/)([ab]|__[ct]\w*|new-\w*)(-\d)?(?=/)|\d[-0-9a-fTZ]*", "", f"/{path}")


def test_repair_that_dies_anywhere_is_finished_by_the_next(
    damaged: dict[str, bytes], some: Some[int]
) -> None:
    """Half a repair may be worse than the damage; its result must not depend on where it died."""
    whole = store_of(damaged)
    run(whole)
    check_whole(whole)
    wanted = content(whole)
    writes = [at for at, (verb, _) in enumerate(whole.calls) if verb in ("put", "delete")]
    steps = {kind_of(whole.calls[at]): at for at in writes}
    assert 15 < len(steps) < len(writes)
    # Whoever dies before a write dies after the one before.
    for at in some(steps.values()):
        store = store_of(damaged)
        with pytest.raises(SimulatedCrash):
            run(another(store, FaultsAt({at: Fault.CRASH_AFTER})))
        run(another(store))
        check_whole(store)
        assert content(store) == wanted, f"call {at}: {whole.calls[at]}"


def test_interrupted_repair_is_named_and_finished(damaged: dict[str, bytes]) -> None:
    """A second analysis of half a repair would find other damage."""
    whole = store_of(damaged)
    run(whole)
    [at] = [
        at
        for at, (verb, path) in enumerate(whole.calls)
        if verb == "put" and path.endswith("/plan.json")
    ]
    store = store_of(damaged)
    with pytest.raises(SimulatedCrash):
        run(another(store, FaultsAt({at: Fault.CRASH_AFTER})))
    found = Repair(another(store)).find()
    assert found.interrupted.startswith("__repaired-")
    assert found.is_needed
    assert not found.is_done
    did = run(another(store))
    assert did.is_done
    assert did.interrupted == did.folder == found.interrupted
    assert did.damaged
    check_whole(store)


def test_what_is_cut_is_kept(damaged: dict[str, bytes]) -> None:
    """Somebody may want to look at it, or to save more by hand."""
    store = store_of(damaged)
    folder = run(store).folder
    now = {item.path: store.get(item.path) for item in store.list("")}
    for path, data in damaged.items():
        kept = now.get(f"{folder}/cut/{path}")
        hint = path.endswith("_last_checkpoint")
        assert hint or data in (now.get(path), kept), path


def test_client_that_writes_meanwhile_stops_a_repair(damaged: dict[str, bytes]) -> None:
    """Its commit would be cut, though it was acknowledged."""
    store = store_of(damaged)

    def commit() -> None:
        path = commit_path("in", list_whole_log(store, "in").commits[-1] + 1)
        store.put(path, b"{}")

    probe = store_of(damaged)
    run(probe)
    at = next(
        i for i, (verb, path) in enumerate(probe.calls) if verb == "put" and "/prepared/" in path
    )
    before = set(damaged)
    with pytest.raises(ConcurrentTransactionsError, match="in"):
        run(another(store, FaultsAt({}, interlude=commit, interlude_at=at)))
    for path in before:
        assert store.get(path) == damaged[path]


def test_of_two_repairs_at_once_the_later_one_gives_up(damaged: dict[str, bytes]) -> None:
    """Both have decided alike, under other write ids and names of files."""
    whole = store_of(damaged)
    run(whole)
    wanted = content(whole)
    [at] = [
        at
        for at, (verb, path) in enumerate(whole.calls)
        if verb == "put" and path.endswith("/plan.json")
    ]
    store = store_of(damaged)
    second = another(store)
    second.clock.sleep_ms(1)
    first = FaultsAt({}, interlude=lambda: run(second), interlude_at=at)
    with pytest.raises(ConcurrentTransactionsError, match="while it was repaired"):
        run(another(store, first))
    check_whole(store)
    assert content(store) == wanted


def test_torn_plan_is_named_and_repaired_anew_without_it(
    damaged: dict[str, bytes], some: Some[int]
) -> None:
    """Half of the repair may be done: what the sentence says to do must lead to a whole root."""
    whole = store_of(damaged)
    run(whole)
    wanted = content(whole)
    writes = [at for at, (verb, _) in enumerate(whole.calls) if verb in ("put", "delete", "move")]
    plan = next(at for at in writes if whole.calls[at][1].endswith("/plan.json"))
    steps = {kind_of(whole.calls[at]): at for at in writes if at >= plan}
    for at in some(steps.values()):
        store = store_of(damaged)
        with pytest.raises(SimulatedCrash):
            run(another(store, FaultsAt({at: Fault.CRASH_AFTER})))
        folder = Repair(another(store)).find().interrupted
        if not folder:
            continue
        path = f"{folder}/plan.json"
        store.put(path, store.get(path)[:100])
        with pytest.raises(CorruptLogError, match=r"plan\.json.*Delete this file"):
            run(another(store))
        store.delete([path])
        later = another(store)
        later.clock.sleep_ms(1)
        run(later)
        check_whole(store)
        assert content(store) == wanted, f"call {at}: {whole.calls[at]}"
