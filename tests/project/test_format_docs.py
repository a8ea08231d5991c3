"""docs/format.md agrees with the code: another implementation relies only on this page."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnlog import Producer
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.coordinator.groups import GroupCoordinator
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.protocol.app_transactions import RETENTION_PROPERTY as TXN_RETENTION_PROPERTY
from txnlog.protocol.app_transactions import transactional_id_of
from txnlog.protocol.batches import HEADER_COLUMNS, STATUSES, encode_stats
from txnlog.protocol.copies import Copy, WholeCopy
from txnlog.protocol.decoding import FORMAT, NESTING_MAX, PARTITIONS_MAX
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.protocol.group_metadata import (
    GROUP_COLUMNS,
    CommittedOffset,
    GroupTickets,
    Member,
    TicketHolder,
)
from txnlog.protocol.leases import Lease
from txnlog.protocol.metadata import (
    FORMER_RUNS_MAX,
    ROW_COLUMNS,
    AppTransaction,
    Fenced,
    GroupTicket,
    LastBatch,
    Manifest,
    Owner,
    StagedBatch,
    StagedTable,
    TopicPartitions,
)
from txnlog.protocol.sightings import Sighting
from txnlog.protocol.snapshots import Pin, Snapshot, TableVersion, TopicVersion
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.vacuum import RETENTION_PROPERTY, ClockReading
from txnlog.storage.batches.records import DATA_SCHEMA
from txnlog.storage.delta import checkpoint_file, checkpoint_writer
from txnlog.storage.delta.actions import COMMIT_BYTES_MAX, CommitInfo
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.store.local_disk import LocalDisk
from txnlog.storage.store.seals import MAGIC, Span, read_seal
from txnlog.storage.tables.cluster_log import (
    OFFSETS_SHARDS,
    PRODUCER_ID_BLOCK,
    STATE_SHARDS,
)
from txnlog.storage.tables.forced_deletion import UNKNOWN_RECORDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "format.md").read_text()
PARTS = PAGE.split("\n\n")
TABLES = [re.findall(r"^\| `([^`|]+)` \| ([^|]*) \|", part, re.MULTILINE) for part in PARTS]
SOURCES = sorted((ROOT / "txnlog").rglob("*.py"))


def table_of(first_cell: str) -> list[tuple[list[str], str]]:
    """(the names in the first cell, the rest) of the rows of the table with this heading."""
    (part,) = [part for part in PARTS if part.startswith(f"| {first_cell} |")]
    rows = [line.strip("| ").split(" | ", 1) for line in part.splitlines()[2:]]
    return [(re.findall(r"`([^`]+)`", first), rest) for first, rest in rows]


def names_in(first_cell: str) -> list[str]:
    return [name for names, _ in table_of(first_cell) for name in names]


# -- tables, columns and JSON ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns", [HEADER_COLUMNS, ROW_COLUMNS, GROUP_COLUMNS], ids=["header", "row", "group"]
)
def test_partition_columns_are_those_of_the_code(columns: dict[str, str]) -> None:
    """In order, with their types."""
    assert [*columns.items()] in TABLES


def test_data_columns_are_those_of_the_code() -> None:
    assert DATA_SCHEMA.names in [[name for name, _ in table] for table in TABLES]
    assert [field.name for field in DATA_SCHEMA if not field.nullable] == ["offset_delta"]


@pytest.mark.parametrize(
    "kind",
    [
        Manifest,
        AppTransaction,
        StagedBatch,
        StagedTable,
        EnlistedTable,
        TopicPartitions,
        Owner,
        LastBatch,
        Fenced,
        Member,
        Lease,
        Sighting,
        GroupTicket,
        TicketHolder,
        GroupTickets,
        Pin,
        Snapshot,
        TopicVersion,
        TableVersion,
        Copy,
        WholeCopy,
    ],
)
def test_fields_and_defaults_of_a_json_value_are_those_of_the_code(
    kind: type[msgspec.Struct],
) -> None:
    """A writer may leave a default out, so another implementation must know it."""
    fields = msgspec.structs.fields(kind)
    assert [(field.encode_name, default_of(field)) for field in fields] in TABLES


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """A cell of the column `default`."""
    if field.required:
        return "required"
    is_made = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if is_made else field.default
    return f"`{msgspec.json.encode(default).decode()}`"


def test_every_json_value_of_a_row_is_tested() -> None:
    """All structs that are in a partition value, or in a table property, are above."""
    (mark,) = test_fields_and_defaults_of_a_json_value_are_those_of_the_code.pytestmark
    text = "\n".join(path.read_text() for path in SOURCES)
    found = set(re.findall(r"^class (\w+)\(JsonObject, ", text, re.MULTILINE))
    assert found == {kind.__name__ for kind in mark.args[1]}


def test_items_of_an_offset_and_fields_of_a_clock_note_are_documented() -> None:
    named = {"offset": "next offset", "version": "log version"}
    items = [named.get(name, name) for name in CommittedOffset.__struct_fields__]
    assert f"`[{', '.join(items)}]`" in PAGE
    assert all(f"`{name}`" in PAGE for name in ClockReading.__struct_fields__)


def test_fields_of_commit_info_are_documented() -> None:
    names = [field.encode_name for field in msgspec.structs.fields(CommitInfo)]
    assert sorted(names_in("field of `commitInfo`")) == sorted(names)


def test_columns_of_a_checkpoint_are_those_of_the_code() -> None:
    found = [
        (names[0], re.findall(r"`(\w+)`", rest))
        for names, rest in table_of("column of a checkpoint")
    ]
    schema = checkpoint_file.SCHEMA
    assert found == [(kind.name, [field.name for field in kind.type]) for kind in schema]


def test_statistics_are_those_of_the_code() -> None:
    stats = encode_stats(2, 1_767_225_600_000_000, 1_767_225_600_500_000)
    assert stats in "".join(PAGE.split())
    assert encode_stats(2, 0, 2**62) == '{"numRecords":2}'


# -- names -----------------------------------------------------------------------------------------


def names_of_txn_actions() -> list[str]:
    """The strings of the code that begin the `appId` of a `txn` action."""
    text = "\n".join(path.read_text() for path in SOURCES)
    return sorted(set(re.findall(r'"(txnlog/[a-z/-]+)"', text)))


@pytest.mark.parametrize(
    "name",
    [
        RETENTION_PROPERTY,
        TXN_RETENTION_PROPERTY,
        transactional_id_of("<txnAppId>"),
        "_batch-<uuid>",
        MAGIC.decode(),
        *(f"txnlog.{name}" for name in (STATE_SHARDS, OFFSETS_SHARDS)),
        *sorted(STATUSES),
        *(state.name for state in TransactionState if state is not TransactionState.DEAD),
    ],
)
def test_name_on_disk_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_txn_actions_are_those_of_the_code() -> None:
    """In both directions, but for the markers and sequences, whose names are numbers."""
    stated = set(re.findall(r"(?<=[`{])(txnlog/[a-z/-]*)", PAGE)) - {"txnlog/"}
    prefixes = {"txnlog/expired/", "txnlog/expiring/", "txnlog/vacuum/"}
    assert stated - prefixes == set(names_of_txn_actions())


@pytest.mark.parametrize(
    "sentence",
    [
        f"| `partition` | integer | 0 to {PARTITIONS_MAX - 1} |",
        f"Format version {FORMAT}.",
        f"| `txnlog.format` | `{FORMAT}`;",
        f"a process reserves {PRODUCER_ID_BLOCK:,} at a time",
        f"a commit of more than {COMMIT_BYTES_MAX >> 20} MiB",
        f"nests deeper than {NESTING_MAX} levels",
        f"the last {FORMER_RUNS_MAX} runs",
    ],
)
def test_number_is_that_of_the_code(sentence: str) -> None:
    assert sentence in PAGE


def test_offsets_after_a_forced_deletion_are_those_of_the_code() -> None:
    assert f"10^{len(str(UNKNOWN_RECORDS)) - 1} above" in PAGE
    assert set(str(UNKNOWN_RECORDS)[1:]) == {"0"}


# -- operations ------------------------------------------------------------------------------------


def test_operations_are_those_that_the_code_commits() -> None:
    """In both directions; what the code commits is found in it, see `Operations`."""
    assert sorted(names_in("operation")) == sorted(Operations().found)


def test_operations_named_elsewhere_are_in_their_table() -> None:
    steps = [rest.split(" | ")[1] for _, rest in table_of("step")]
    named = [*re.findall(r"`([^`]+)`", " ".join(steps)), *names_in("`operationParameters` of")]
    assert set(named) <= set(names_in("operation"))


class Operations:
    """All values of arguments and fields `operation` in the package, read from its syntax.

    A value that is not a constant must be one that `_values` follows: a name, a parameter or a
    field `operation` whose own values are found where they are given, the name of a state.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        modules = {
            path: ast.parse(path.read_text())
            for path in SOURCES
            if path.relative_to(ROOT).parts[1] not in ("settings", "testing")
        }
        self._constants: dict[str, str] = {}
        public: dict[str, int | None] = {}
        for tree in modules.values():
            for node in tree.body:
                match node:
                    case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                        self._constants[name] = text
            public |= {n: at for n, at in places(tree).items() if not n.startswith("_")}
        for tree in modules.values():
            self._places = {**public, **places(tree)}
            self._visit(tree, ())

    def _visit(self, node: ast.AST, inside: tuple[ast.FunctionDef, ...]) -> None:
        if isinstance(node, ast.FunctionDef):
            inside = (*inside, node)
        if isinstance(node, ast.Call):
            for value in self._given(node):
                self.found |= self._values(value, inside)
        for child in ast.iter_child_nodes(node):
            self._visit(child, inside)

    def _given(self, call: ast.Call) -> Iterator[ast.expr]:
        """The argument `operation` of a call, if it has one."""
        yield from (each.value for each in call.keywords if each.arg == "operation")
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        at = self._places.get(name)
        if at is not None:
            yield from call.args[at : at + 1]

    def _values(self, value: ast.expr, inside: tuple[ast.FunctionDef, ...]) -> set[str]:
        match value:
            case ast.Constant(str(text)):
                return {text}
            case ast.Attribute(_, "operation"):
                return set()
            case ast.Attribute(ast.Attribute(ast.Name("TransactionState"), name), "name"):
                return {TransactionState[name].name}
            case ast.Attribute(ast.Attribute(_, "prepared" | "complete" as when), "name"):
                return {getattr(result, when).name for result in TransactionResult}
            case ast.Name(name):
                assigned = {text for where in inside for text in assigned_to(name, where)}
                if assigned or any(name in parameters(where) for where in inside):
                    return assigned
                return {self._constants[name]}
        raise AssertionError(f"teach this test what {ast.unparse(value)!r} can be")


def places(tree: ast.AST) -> dict[str, int | None]:
    """Functions and classes that take `operation` -> its place among positional arguments."""
    found: dict[str, int | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "operation" in parameters(node):
            names = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
        elif isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names = [field.id for field in fields if isinstance(field, ast.Name)]
        else:
            continue
        if isinstance(node, ast.FunctionDef) or "operation" in names:
            found[node.name] = names.index("operation") if "operation" in names else None
    return found


def parameters(function: ast.FunctionDef) -> list[str]:
    return [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]


def assigned_to(name: str, function: ast.FunctionDef) -> Iterator[str]:
    """The strings that a function assigns to a local name."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        pairs = [(target, node.value) for target in node.targets]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(node.targets[0].elts, node.value.elts, strict=True)]
        for pair in pairs:
            match pair:
                case ast.Name(found), ast.Constant(str(text)) if found == name:
                    yield text


# -- files of a root -------------------------------------------------------------------------------

PLACEHOLDERS = {
    "<n>": r"\d+",
    "<uuid>": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "<hex>": r"[0-9a-f]{32}",
    "<boot id>": r"[0-9a-f-]+",
    "<version>": r"\d{20}",
    "<partition>": r"\d{1,5}",
    "<table>": r"(?:__cluster|(?:__transaction_state|__consumer_offsets)-\d+|[A-Za-z0-9.-]+)",
    "<topic>": r"[A-Za-z0-9.-]+",
}


def files_of_the_layout() -> dict[str, re.Pattern[str]]:
    """Each file of the layout, and a pattern of its path."""
    (block,) = [part for part in PARTS if part.startswith("    <root>/")]
    found = [re.split(r"\s{2,}", line.strip())[0] for line in block.splitlines()]
    return {path: pattern_of(path) for path in found if not path.endswith("/")}


def pattern_of(path: str) -> re.Pattern[str]:
    parts = re.split(r"(<[^>]+>)", path)
    return re.compile("".join(PLACEHOLDERS.get(part) or re.escape(part) for part in parts))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, set[str]]]:
    """A root with a file of each kind, and the paths of all files ever written to it."""
    paths: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "put_new", "put_if_absent", "open_writer", "_write_temporary"):
            patch.setattr(LocalDisk, name, noting(getattr(LocalDisk, name), paths))
        patch.setattr(checkpoint_writer, "ROWS_PER_GROUP", 2)
        root = tmp_path_factory.mktemp("format")
        cluster = Cluster.open(str(root), create=True)
        cluster.create_topic("t", partitions=1)
        with Producer({"txnlog.root": str(root), "transactional.id": "x"}) as producer:
            producer.init_transactions()
            for value in (b"1", b"2"):
                with producer.transaction():
                    producer.produce("t", value=value)
        GroupCoordinator(cluster).start("g")
        create_checkpoint(cluster.store, "t", trust_ms=3_600_000)
        cluster.snapshot("n")
        before = set(paths)
        copied = tmp_path_factory.mktemp("copy") / "root"
        AdminClient({"txnlog.root": str(root)}).backup(str(copied)).result()
        of_copies = {path for path in paths if path.startswith("__cluster/copy-")}
        paths.intersection_update(before | of_copies)
        assert Housekeeper(cluster).run_once() is not None
        yield cluster, {path.removeprefix(f"{root}/") for path in paths}


def noting(method: Any, paths: set[str]) -> Any:
    def call(self: LocalDisk, path: str, *args: Any, **kwargs: Any) -> Any:
        result = method(self, path, *args, **kwargs)
        paths.add(result if isinstance(result, str) else path)
        return result

    return call


def test_every_file_that_is_written_is_described(written: tuple[Cluster, set[str]]) -> None:
    """Under its name, or under a temporary one; and every file that is described is written."""
    names = {re.sub(r"#\d+\Z", "", path) for path in written[1]}
    layout = files_of_the_layout()
    assert [path for path in names if not any(p.fullmatch(path) for p in layout.values())] == []
    assert [path for path, p in layout.items() if not any(map(p.fullmatch, names))] == []


def test_temporary_files_are_of_what_the_page_says(written: tuple[Cluster, set[str]]) -> None:
    kinds = {re.sub(r"#\d+\Z", "", path) for path in written[1] if re.search(r"#\d+\Z", path)}
    assert {path for path in kinds if "/_" not in path} == set()
    whole = {path for path in written[1] if re.search(r"/(part|row)-[^/]+\.parquet\Z", path)}
    assert whole
    assert not whole & kinds


def test_fields_of_the_hint_are_those_that_are_written(written: tuple[Cluster, set[str]]) -> None:
    hint = json.loads(written[0].store.get("t/_delta_log/_last_checkpoint"))
    assert sorted(names_in("field of `_last_checkpoint`")) == sorted(hint)


def test_files_are_sealed_as_described(written: tuple[Cluster, set[str]]) -> None:
    """A data file by row group, a checkpoint as a whole, a row file not at all."""
    store, paths = written[0].store, [path for path in written[1] if path.endswith(".parquet")]
    seals = {path: spans_of(store.get(path), path) for path in paths}
    rows = {path for path in paths if "/row-" in path}
    assert rows
    assert {path for path, spans in seals.items() if spans is None} == rows
    (checkpoint,) = [path for path in paths if path.endswith(".checkpoint.parquet")]
    assert row_groups(store.get(checkpoint)) > 1
    for path, spans in seals.items():
        if spans is not None:
            assert len(spans) == (1 if path == checkpoint else row_groups(store.get(path)))


def spans_of(data: bytes, path: str) -> tuple[Span, ...] | None:
    seal = read_seal(lambda at, end: data[at:end], len(data), name=path.rpartition("/")[2])
    return None if seal is None else seal.spans


def row_groups(data: bytes) -> int:
    return int(pq.ParquetFile(pa.BufferReader(data)).num_row_groups)
