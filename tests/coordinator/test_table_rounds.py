"""Budgets: what tables of others cost a transaction (D88)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.coordinator.test_rounds import Counted
from tests.producer.worlds import group
from tests.tables import ForeignTable, appended, changed, rows, with_table
from tests.world import consumed, owned, staged
from txnlog.coordinator.staged_files import Staging
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.testing.faults import Fault

PAUSES_MS = [1_000, 15_000]


class CountedTables(Counted):
    """Two topics, and so many tables."""

    def __init__(self, tables: int) -> None:
        super().__init__(2, 2)
        self.tables = {f"table-{number}": f"memory://{number}" for number in range(tables)}
        for number, (name, url) in enumerate(self.tables.items()):
            with_table(self.shared, self.cluster, name=name, url=url, table_id=str(number))
        self.made = self.producer(transactional_id="tx")

    def foreign_append(self) -> None:
        for url in self.tables.values():
            ForeignTable(self.shared, url).append()

    def transaction(
        self, number: int, *, with_offsets: bool, before: bool = False
    ) -> tuple[int, list[int]]:
        """`rounds` of the commit, after appends of one round each. `before`: another writer commits
        in between.
        """
        self.made.begin_transaction()
        self.produce(self.made)
        for name in self.tables:
            rounds, _ = self.rounds(partial(self.made.append, name, rows(number)))
            assert rounds == 1 or not number
        if with_offsets:
            positions = [TopicPartition("input", 0, number + 1)]
            self.made.send_offsets_to_transaction(positions, group())
        if before:
            self.foreign_append()
        return self.rounds(self.made.commit_transaction)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("pause_ms", PAUSES_MS)
@pytest.mark.parametrize("tables", [1, 4])
def test_transaction_with_tables_takes_four_rounds(
    tables: int, pause_ms: int, with_offsets: bool
) -> None:
    """Files, part files and checks; PREPARE; markers and publications, so it is visible after
    three; offsets, and a look whether the publications are there.
    """
    world = CountedTables(tables)
    for number in range(4):
        world.shared.clock.advance_ms(pause_ms)
        rounds, visible = world.transaction(number, with_offsets=with_offsets)
    assert rounds == 4
    assert sorted(visible) == [3] * (2 + tables) + [4] * with_offsets


@pytest.mark.parametrize("tables", [1, 4])
def test_commit_of_another_writer_before_the_decision_costs_nothing(tables: int) -> None:
    """The check reads some versions ahead."""
    world = CountedTables(tables)
    for number in range(3):
        rounds, _ = world.transaction(number, with_offsets=True, before=True)
    assert rounds == 4


@pytest.mark.parametrize("tables", [1, 4])
def test_commit_of_another_writer_after_the_decision_costs_two_rounds(tables: int) -> None:
    """Whatever the number of tables: the put that lost, a look at the head, another put."""
    world = CountedTables(tables)
    world.transaction(0, with_offsets=True)
    world.made.begin_transaction()
    for name in world.tables:
        world.made.append(name, rows(1))
    world.made.send_offsets_to_transaction([TopicPartition("input", 0, 2)], group())
    waiting = list(world.tables.values())

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and waiting and path.startswith(f"{waiting[0]}/_delta_log/"):
            ForeignTable(world.shared, waiting.pop(0)).append()
        return Fault.NONE

    world.store.plan = plan
    world.store.rounds = 0
    world.made.commit_transaction()
    assert not waiting
    assert world.store.rounds == 6


@pytest.mark.parametrize("others", [0, 3])
def test_change_of_what_was_read_takes_seven_rounds(others: int) -> None:
    """Files, part files and checks; the row that asks; the table's commit; a look at the version
    before it; PREPARE; markers and publications; offsets. One more where others have committed.
    """
    world = CountedTables(2)
    first, second = world.tables
    row = owned(world.cluster, "run")
    before = Staging(frozenset(), tuple, appended(world.cluster, 1, name=first))
    row = world.cluster.coordinator.commit(row, before, offsets=[consumed(0, 1)])
    made: list[TransactionMetadata] = []
    for number in range(2, 5):
        read = changed(world.cluster, number, name=first)
        tables = (*read, *appended(world.cluster, number, name=second))
        batches = [staged(world.cluster, name, str(number)) for name in world.topics]
        for _ in range(others):
            ForeignTable(world.shared, world.tables[first]).commit()
        staging = Staging(frozenset(world.topics), lambda files=batches: files, tables)  # type: ignore[misc]
        offsets = [consumed(number - 1, number)]
        commit = partial(world.cluster.coordinator.commit, row, staging, offsets=offsets)
        rounds, visible = world.rounds(lambda commit=commit: made.append(commit()))  # type: ignore[misc]
        row = made[-1]
    assert sorted(visible) == [r + bool(others) for r in (3, 6, 6, 6, 7)]
    assert rounds == 7 + bool(others)
