"""`append` and `overwrite` of a producer: Delta tables of others in its transactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from tests.coordinator.test_tables import NARROW
from tests.producer.worlds import group
from tests.tables import NAME, TABLE_ID, URL, ForeignTable, definition, rows, with_table
from tests.world import TOPICS, position, process, world
from txnlog.errors import (
    InvalidTxnStateError,
    TableChangedError,
    TableDataError,
    TransactionAbortableError,
    TxnLogError,
    UnknownTableError,
)
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.protocol.producer_states import LifecycleState
from txnlog.testing.faults import Fault
from txnlog.testing.invariants import read_committed


class Made:
    """A producer in a world with a table."""

    def __init__(self, publish: str = "deferred") -> None:
        self.shared = world()
        self.cluster = process(self.shared)
        with_table(self.shared, self.cluster)
        self.table = ForeignTable(self.shared)
        self.producer = self.another("tx", publish)

    def another(self, name: str, publish: str = "deferred") -> Producer:
        config = {"transactional.id": name, "transaction.publish": publish}
        made = Producer(
            {"txnlog.root": "memory://", **config}, cluster=self.cluster, background=False
        )
        made.init_transactions()
        return made

    def records(self) -> int:
        log = process(self.shared).topic(TOPICS[0])
        found = read_committed(log.view).values()
        return sum(b.last_offset + 1 - b.base_offset for batches in found for b in batches)

    def before_publication(self, act: Callable[[], object]) -> None:
        """Before the next put to the table's log."""
        waiting = [act]

        def plan(verb: str, path: str) -> Fault:
            if verb == "put" and path.startswith(f"{URL}/_delta_log/") and waiting:
                waiting.pop()()
            return Fault.NONE

        self.cluster.store.plan = plan  # type: ignore[attr-defined]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_transaction_over_topics_tables_and_offsets_is_one(publish: str) -> None:
    """All or nothing, by one block (R74)."""
    made = Made(publish)
    for number in range(3):
        with made.producer.transaction() as producer:
            producer.produce(TOPICS[0], b"x")
            producer.append(NAME, rows(number))
            positions = [TopicPartition("input", 0, number + 1)]
            producer.send_offsets_to_transaction(positions, group())
    assert made.table.ours() == [0, 1, 2]
    assert (made.records(), position(process(made.shared))) == (3, 3)
    with suppress(ZeroDivisionError), made.producer.transaction() as producer:
        producer.produce(TOPICS[0], b"x")
        producer.append(NAME, rows(3))
        raise ZeroDivisionError
    assert made.table.ours() == [0, 1, 2]
    assert made.records() == 3


def test_appends_of_one_transaction_are_one_version(made: Made) -> None:
    """And one that writes to a table only is a transaction, too."""
    before = len(made.table.commits())
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1))
        producer.append(NAME, rows(2, day="2").to_batches()[0])
        producer.append(NAME, rows())
    assert made.table.ours() == [1, 2]
    assert len(made.table.commits()) == before + 1


def test_append_of_no_rows_is_nothing(made: Made) -> None:
    before = len(made.table.commits())
    with made.producer.transaction() as producer:
        producer.append(NAME, rows())
    assert len(made.table.commits()) == before


def test_overwrite_replaces_partitions_or_all(made: Made) -> None:
    """Rows that are appended after it, in the same transaction, are of the new content."""
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1, day="1"))
        producer.append(NAME, rows(2, day="2"))
    with made.producer.transaction() as producer:
        producer.overwrite(NAME, rows(3, day="1"), [{"day": "1"}])
        producer.append(NAME, rows(4, day="1"))
    assert made.table.ours() == [2, 3, 4]
    with made.producer.transaction() as producer:
        producer.overwrite(NAME, rows())
    assert made.table.ours() == []


def test_overwrite_after_an_append_of_the_same_transaction_is_refused(made: Made) -> None:
    """It would be unclear whether it replaces these rows."""
    made.producer.begin_transaction()
    made.producer.append(NAME, rows(1))
    with pytest.raises(TransactionAbortableError, match="overwrite it first") as raised:
        made.producer.overwrite(NAME, rows(2))
    assert isinstance(raised.value.__cause__, InvalidTxnStateError)
    made.producer.abort_transaction()


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda p: p.append("bronze", rows(1)), UnknownTableError),
        (lambda p: p.append(NAME, pa.table({"other": [1]})), TableDataError),
        (lambda p: p.append(NAME, pa.table({"id": ["x"], "day": ["1"]})), TableDataError),
        (lambda p: p.overwrite(NAME, rows(1), [{"day": "2"}]), TableDataError),
        (lambda p: p.overwrite(NAME, rows(1), [{"id": 2}]), TableDataError),
    ],
)
def test_rows_that_are_refused_fail_their_transaction(
    write: Callable[[Producer], None], error: type[TxnLogError], made: Made
) -> None:
    """Half of what it meant to write must not be committed; the next one goes on."""

    def transaction() -> None:
        with made.producer.transaction() as producer:
            producer.produce(TOPICS[0], b"x")
            write(producer)

    with pytest.raises(error) as raised:
        transaction()
    assert raised.value.abortable
    assert made.records() == 0
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1))
    assert made.table.ours() == [1]


def test_partition_whose_column_is_no_text_is_refused_at_the_door(made: Made) -> None:
    """Sorting the names with others failed as a bug inside, and cost the transaction."""
    with made.producer.transaction() as producer:
        with pytest.raises(TypeError, match=r"a column of partitions\[0\] must be a str, not None"):
            producer.overwrite(NAME, rows(1), [{None: "1", "day": "1"}])  # type: ignore[dict-item]
        producer.append(NAME, rows(1))
    assert made.table.ours() == [1]


def test_table_that_changes_before_the_commit_is_staged_again_under_its_new_schema(
    made: Made,
) -> None:
    """The error says so, and the next transaction knows the table as it is."""
    made.producer.begin_transaction()
    made.producer.append(NAME, rows(1))
    made.table.commit(definition(NARROW))
    with pytest.raises(TableChangedError, match="Stage it again") as raised:
        made.producer.commit_transaction()
    assert raised.value.abortable
    made.producer.abort_transaction()
    with made.producer.transaction() as producer:
        producer.append(NAME, pa.table({"day": ["1"]}))
    assert sum("txn" in action for action in made.table.commits()[-1]) == 1


def test_column_that_others_have_added_can_be_written_at_once(made: Made) -> None:
    """This process has read the table before; its next rows show that it must again."""
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1))
    made.table.commit(definition((("id", "long"), ("day", "string"), ("more", "string"))))
    with made.producer.transaction() as producer:
        producer.append(NAME, pa.table({"id": [2], "day": ["1"], "more": ["x"]}))
    assert made.table.ours() == [1, 2]


@pytest.mark.parametrize(
    "now", [{"day": "day"}, {"id": "new", "day": "day"}, {"other": "id", "id": "new", "day": "day"}]
)
def test_column_that_was_dropped_or_renamed_before_the_commit_loses_no_values(
    made: Made, now: dict[str, str]
) -> None:
    """The process has read the table before; under column mapping the values would be in no column,
    or in another one.
    """

    def mapped(columns: dict[str, str]) -> Any:
        found = definition(**{"delta.columnMapping.mode": "name"})
        kinds = {"day": "string"}
        fields = [
            {
                "name": name,
                "type": kinds.get(name, "long"),
                "nullable": True,
                "metadata": {"delta.columnMapping.physicalName": physical},
            }
            for name, physical in columns.items()
        ]
        found["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        return found

    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    made.table.commit(protocol, mapped({"id": "id", "day": "day"}))
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1))
    made.table.commit(mapped(now))
    made.producer.begin_transaction()
    made.producer.append(NAME, rows(2))
    with pytest.raises(TableChangedError, match="'id' was dropped or renamed"):
        made.producer.commit_transaction()
    made.producer.abort_transaction()
    if "id" in now:
        with made.producer.transaction() as producer:
            producer.append(NAME, rows(3))
        stats = [json.loads(a["add"]["stats"]) for a in made.table.commits()[-1] if "add" in a]
        assert stats[0]["minValues"] == {"new": 3}


def test_table_that_was_made_again_is_refused_until_it_is_enlisted_again(made: Made) -> None:
    """Whoever made it may not have meant it for these rows."""
    made.table.commit(definition(table_id="another"))
    for _ in range(2):
        made.producer.begin_transaction()
        made.producer.append(NAME, rows(1))
        with pytest.raises(UnknownTableError, match="made again"):
            made.producer.commit_transaction()
        made.producer.abort_transaction()
    made.cluster.delist(NAME)
    made.cluster.enlist(NAME, EnlistedTable(url=URL, table_id="another", since_ms=0))
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(1))
    assert made.table.ours() == [1]


def test_table_that_was_moved_is_not_written_where_it_was(made: Made) -> None:
    """A copy has the id of its origin; rows at the former place are in no enlisted table."""
    moved = ForeignTable(made.shared, "memory://moved")
    [create] = made.table.commits()
    made.producer.begin_transaction()
    made.producer.append(NAME, rows(1))
    moved.commit(*create[1:])
    made.cluster.delist(NAME)
    made.cluster.enlist(NAME, EnlistedTable(url=moved.url, table_id=TABLE_ID, since_ms=0))
    with pytest.raises(UnknownTableError):
        made.producer.commit_transaction()
    assert made.table.ours() == moved.ours() == []


def test_table_that_changes_after_the_decision_leaves_the_commit_to_be_repeated(
    made: Made,
) -> None:
    """`with` aborts nothing that is decided; the same call publishes it later (R37, R74)."""
    made.before_publication(lambda: made.table.commit(definition(NARROW)))

    def transaction() -> None:
        with made.producer.transaction() as producer:
            producer.produce(TOPICS[0], b"x")
            producer.append(NAME, rows(1))

    with pytest.raises(TableChangedError) as raised:
        transaction()
    assert (raised.value.abortable, raised.value.fatal) == (False, False)
    assert raised.value.context["decided"]
    assert made.producer._lifecycle.state is LifecycleState.COMMITTING
    assert (made.records(), made.table.ours()) == (1, [])
    made.table.commit(definition())
    made.producer.commit_transaction()
    assert made.table.ours() == [1]
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(2))
    assert made.table.ours() == [1, 2]


def test_prepared_transaction_keeps_its_tables_until_it_is_completed(made: Made) -> None:
    """Two-phase commit: a new process completes what the old one has prepared (R74)."""
    made.producer.begin_transaction()
    made.producer.append(NAME, rows(1))
    state = made.producer.prepare_transaction()
    assert made.table.ours() == []
    config = {"txnlog.root": "memory://", "transactional.id": "tx"}
    other = Producer(config, cluster=process(made.shared), background=False)
    other.init_transactions(keep_prepared=True)
    assert other.complete_transaction(state)
    assert made.table.ours() == [1]


def test_prepared_transaction_that_has_lost_a_staged_file_is_not_decided(made: Made) -> None:
    """As one whose topic has: else the topics have it, and the table never (R74)."""
    made.producer.begin_transaction()
    made.producer.produce(TOPICS[0], b"x")
    made.producer.append(NAME, rows(1))
    made.producer.prepare_transaction()
    store = made.shared.places[URL]
    for page in list(store.list("_txnlog")):
        store.delete([one["path"] for one in page if one["path"].endswith(".parquet")])
    with pytest.raises(TransactionAbortableError, match="is missing"):
        made.producer.commit_transaction()
    assert made.records() == 0
    made.producer.abort_transaction()
    assert (made.records(), made.table.ours()) == (0, [])


def test_prepared_transaction_is_committed_where_its_table_was_made_again(made: Made) -> None:
    """What was prepared is refused no more; that part is settled."""
    made.producer.begin_transaction()
    made.producer.produce(TOPICS[0], b"x")
    made.producer.append(NAME, rows(1))
    made.producer.prepare_transaction()
    made.table.commit(definition(table_id="another"))
    made.producer.commit_transaction()
    assert (made.records(), made.table.ours()) == (1, [])


def test_log_that_was_made_again_beside_a_publication_takes_no_version_of_it(made: Made) -> None:
    """Our commit would be above a gap, in a table of another id: the look at the version before
    it takes it back, and the next attempt settles the part (R74).
    """

    def made_again() -> None:
        store = made.shared.places[URL]
        for page in list(store.list("_delta_log")):
            store.delete([item["path"] for item in page])
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        made.table.commit({"protocol": protocol}, definition(table_id="another"))

    for number in range(2):
        with made.producer.transaction() as producer:
            producer.append(NAME, rows(number))
    made.before_publication(made_again)
    with made.producer.transaction() as producer:
        producer.append(NAME, rows(9))
    assert len(made.table.commits()) == 1
    assert not list(made.shared.places[URL].list("_delta_log/00000000000000000003"))
