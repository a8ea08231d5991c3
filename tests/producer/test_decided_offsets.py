"""Offsets that are decided and not moved: their producer died before its commit returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_source.state_tables import consumer_offsets
from tests.producer.following import commit
from tests.producer.worlds import cluster_of, input_at, started, world
from tests.world import GROUP, faults, position, prepared, process, recover
from txnlog.admin.client import AdminClient
from txnlog.admin.descriptions import ConsumerGroupTopicPartitions
from txnlog.admin.groups import delete_group
from txnlog.errors import NothingWrittenError
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash


def moved(shared: SharedMemory) -> int:
    """The position in the group's row, whatever is decided."""
    found = process(shared).groups.describe(GROUP)
    assert found is not None
    return found.positions().get("input", {}).get(0, 0)


def shown(shared: SharedMemory, is_stable: bool = False) -> int:
    """The position that an operator is shown who may only read."""
    reader = process(shared)
    faults(reader).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    asked = ConsumerGroupTopicPartitions(GROUP, input_at(-1))
    admin = AdminClient({}, cluster=reader)
    [result] = admin.list_consumer_group_offsets([asked], require_stable=is_stable).values()
    [found] = result.result().topic_partitions or ()
    return found.offset


def stable(shared: SharedMemory) -> int:
    return shown(shared, is_stable=True)


def viewed(shared: SharedMemory) -> int:
    """The position in the view of SQL."""
    [offset] = consumer_offsets(process(shared)).column("CurrentOffset").to_pylist()
    return int(offset)


def leaving(shared: SharedMemory) -> None:
    """A producer that has moved offset 10, and dies when 20 is decided and its record visible."""
    made = started(shared)
    commit(made, "first", input_offset=10)
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("__consumer") else Fault.NONE
    )
    with pytest.raises(SimulatedCrash):
        commit(made, "second", input_offset=20)
    assert (moved(shared), shown(shared)) == (10, 20)


def test_reader_of_a_group_finds_what_a_dead_producer_has_decided() -> None:
    """Whoever begins a generation, and whoever only asks."""
    shared = world()
    leaving(shared)
    assert position(process(shared)) == 20
    shared = world()
    leaving(shared)
    process(shared).groups.start(GROUP)
    assert moved(shared) == 20


def test_reader_without_a_generation_needs_no_right_to_write() -> None:
    shared = world()
    leaving(shared)
    reader = process(shared)
    faults(reader).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    assert position(reader) == 20
    assert stable(shared) == 20
    assert moved(shared) == 10


def test_reader_without_a_generation_needs_no_disk_that_takes_writes() -> None:
    """It is mounted read-only, or full."""
    shared = world()
    leaving(shared)
    reader = process(shared)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put":
            raise NothingWrittenError(f"{path}: nothing was written (EROFS)", path=path)
        return Fault.NONE

    faults(reader).plan = plan
    assert position(reader) == 20
    assert moved(shared) == 10


def test_transaction_that_is_visible_is_not_pending() -> None:
    """It is shown as complete, so its group has nothing to wait for."""
    shared = world()
    leaving(shared)
    admin = AdminClient({}, cluster=process(shared))
    assert admin.describe_consumer_groups([GROUP])[GROUP].result().pending == []


@pytest.mark.parametrize("ask", [shown, stable, viewed])
def test_offset_counts_once_it_is_decided_for_who_may_only_read(
    ask: Callable[[SharedMemory], int],
) -> None:
    """Also before it is visible: it can no longer be undone (R46)."""
    shared = world()
    prepared(shared)
    assert ask(shared) == 10


def test_offsets_that_are_decided_and_not_visible_can_be_deleted() -> None:
    shared = world()
    prepared(shared)
    admin = AdminClient({}, cluster=process(shared))
    asked = ConsumerGroupTopicPartitions(GROUP, input_at(-1))
    [result] = admin.delete_consumer_group_offsets([asked]).values()
    result.result()
    assert position(recover(shared)) == 0


def test_who_may_not_read_the_transaction_log_is_shown_what_is_moved() -> None:
    shared = world()
    leaving(shared)
    reader = process(shared)
    faults(reader).plan = lambda verb, path: (
        Fault.DENY if path.startswith("__transaction_state") else Fault.NONE
    )
    found = reader.groups.committed(GROUP)
    assert found is not None
    assert found.positions() == {"input": {0: 10}}


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("lost", [("offsets",), ("offsets", "tickets")])
def test_offsets_decided_for_a_group_that_is_damaged_do_not_come_back_after_its_deletion(
    lost: tuple[str, ...], dies: bool
) -> None:
    """Nor overwrite what it commits next (R47), also if a first try died after one write."""
    shared = world()
    leaving(shared)
    log = process(shared).offsets_log(GROUP)
    row = log.view.rows[GROUP]
    damaged = {**row.to_values(), **dict.fromkeys(lost, "{damaged")}
    log.log.commit([row_add(row.path, damaged, size_bytes=1, now_ms=1)], operation="DAMAGE")
    if dies:
        dying = process(shared)
        faults(dying).plan = lambda verb, path: (
            Fault.CRASH_AFTER if verb == "put" and "offsets-" in path else Fault.NONE
        )
        with pytest.raises(SimulatedCrash):
            delete_group(dying, GROUP, by="an operator")
    AdminClient({}, cluster=process(shared)).delete_consumer_groups([GROUP])[GROUP].result()
    groups = process(shared).groups
    groups.commit(GROUP, groups.start(GROUP), {"input": {0: 500}})
    assert position(recover(shared)) == 500
