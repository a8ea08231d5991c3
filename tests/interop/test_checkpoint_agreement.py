"""A checkpoint says what the commits said: to our reader, to delta-rs, and to Spark's Delta reader.

And what delta-rs itself puts into a checkpoint of the same commits.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from tests.storage.number_log import TABLE
from txnlog.protocol.txn_memory import EXPIRED_PRODUCERS, EXPIRED_TRANSACTIONS, TxnMemory
from txnlog.storage.delta.actions import Action, Add, Adds, Commit, Remove, Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, DeltaLog, LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import checkpoint_path, list_whole_log
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import metadata_action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFF = LogSettings(checkpoint_mode="off")
DAY_MS = 86_400_000
VALUES = (
    "plain",
    "a/b=c",
    "50%",
    "%2F",
    "ü €",
    'a "b" c',
    "a\\b",
    "line\nend",
    "'",
    " x ",
    "{}",
    "null",
)
NAMES = ("a.parquet", "a b.parquet", "50%.parquet", "k=v,w.parquet", "ü.parquet", "a+b.parquet")
APP_IDS = ("nightly", "ü/x y", "txnlog/7", "txnlog/7-1", "txnlog/8", "txnlog/end/0", "txnlog/x")


class View:
    """What the actions of a log leave: the meaning of every kind of action, and nothing else."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.files: dict[str, tuple[object, ...]] = {}
        self.txns = TxnMemory()
        self.metadata: object = None

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, commit: Commit) -> None:
        for action in commit.actions:
            match action:
                case Add():
                    self._take(action)
                case Adds():
                    for add in action:
                        self._take(add)
                case Remove():
                    self.files.pop(action.path, None)
                case Txn():
                    self.txns.set_txn(action.app_id, action.version, action.last_updated)
                case _:
                    self.metadata = action

    def _take(self, add: Add) -> None:
        values = {name: value for name, value in add.partition_values.items() if value is not None}
        self.files[add.path] = (values, add.size, add.modification_time, add.stats)


class World:
    """A table on disk with data files of one row each, changed at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.root = folder
        self.folder = folder / TABLE
        self.store = ObjectStore.from_url(str(folder))
        self.rng = random.Random(seed)
        self.log = DeltaLog(self.store, TABLE, View(), settings=OFF)
        self.log.refresh()
        columns = {"word": "string", "number": "long"}
        self.metadata = metadata_action("id", {"value": "long"}, columns, {"x": "ü 'y'"}, 0)
        self.commit(PROTOCOL, self.metadata)
        self.numbers = iter(range(10**9))
        self.has_horizons = True
        self.horizon_ms = 0

    def commit(self, *actions: Action) -> None:
        assert isinstance(self.log.commit(list(actions), operation="WRITE"), Committed)

    def add(self) -> Add:
        number = next(self.numbers)
        name = f"{number}-{self.rng.choice(NAMES)}"
        sink = self.folder / name
        pq.write_table(pa.table({"value": pa.array([number], pa.int64())}), sink)
        return Add(
            quote(name, safe="/=,+"),
            {"word": self.rng.choice(VALUES), "number": str(self.rng.randrange(-(2**63), 2**63))},
            sink.stat().st_size,
            self.store.now_ms() - number,
            True,
            self.rng.choice(['{"numRecords":1}', '{"numRecords":1,"nullCount":{"value":0}}', None]),
        )

    def change(self) -> None:
        """One commit: new files, a new header for a live one, a removal, versions, horizons."""
        now_ms = self.store.now_ms()
        live = sorted(self._view.files)
        actions: list[Action] = [self.add() for _ in range(self.rng.randrange(3))]
        picked = self.rng.sample(live, min(len(live), 2))
        if picked and self.rng.random() < 0.5:
            values, size, at_ms, stats = self._view.files[picked[0]]
            again: Any = {**values, "word": self.rng.choice(VALUES)}
            actions.append(Add(picked[0], again, size, at_ms, False, stats))
        if len(picked) > 1 and self.rng.random() < 0.5:
            actions.append(Remove(picked[1], now_ms - self.rng.choice([5_000, 9 * DAY_MS]), True))
        for app_id in self.rng.sample(APP_IDS, 2):
            age_ms = self.rng.choice([0, DAY_MS, 3 * DAY_MS])
            # What is written after a horizon is not older than it.
            at_ms = self.rng.choice([None, max(now_ms - age_ms, self.horizon_ms + 1)])
            actions.append(Txn(app_id, self.rng.randrange(100), at_ms))
        if self.has_horizons and self.rng.random() < 0.1:
            horizon = self.rng.choice([EXPIRED_TRANSACTIONS, EXPIRED_PRODUCERS])
            expired_ms = now_ms - self.rng.choice([DAY_MS // 2, 2 * DAY_MS])
            actions.append(Txn(horizon, expired_ms, now_ms))
            self.horizon_ms = max(self.horizon_ms, expired_ms)
        self.commit(*actions)

    @property
    def _view(self) -> View:
        view = self.log._view
        assert isinstance(view, View)
        return view

    def checkpoint(self) -> int:
        return create_checkpoint(self.store, TABLE, trust_ms=OFF.trust_ms)

    def clean(self) -> None:
        """Only the newest checkpoint and its commit are left."""
        clean_up(self.store, TABLE, retention_ms=-1)
        assert len(list_whole_log(self.store, TABLE).checkpoints) == 1

    # -- what readers find -----------------------------------------------------------------------

    def by_us(self) -> tuple[object, ...]:
        log = DeltaLog(self.store, TABLE, View(), settings=OFF)
        log.refresh()
        view = log._view
        assert isinstance(view, View)
        txns = view.txns
        memory = [
            {key: (version, kind.updated_ms[key]) for key, version in kind.items()}
            for kind in (txns.markers, txns.sequences, txns.applications)
        ]
        young_ms = self.store.now_ms() - 7 * DAY_MS
        tombstones = read_tombstones(self.store, TABLE, version=log.version)
        young = {path: at_ms for path, at_ms in tombstones.items() if at_ms > young_ms}
        return (
            log.version,
            view.files,
            memory,
            view.metadata,
            {path: at_ms for path, at_ms in young.items() if path not in view.files},
        )

    def by_delta_rs(self) -> tuple[object, ...]:
        table = DeltaTable(str(self.folder))
        adds = pa.table(table.get_add_actions(flatten=True)).sort_by("path").to_pylist()
        metadata = table.metadata()
        return (
            table.version(),
            adds,
            sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["value"]),
            {app_id: table.transaction_version(app_id) for app_id in self._remembered()},
            (metadata.id, metadata.partition_columns, metadata.configuration),
        )

    def _remembered(self) -> list[str]:
        """Ids that no horizon of ours took, of which delta-rs knows nothing."""
        txns = self._view.txns
        taken = {"txnlog/7", "txnlog/8"} - {f"txnlog/{key}" for key in txns.markers}
        taken |= {"txnlog/7-1"} - {f"txnlog/{key}-{part}" for key, part in txns.sequences}
        return [app_id for app_id in APP_IDS if app_id not in taken]


@pytest.fixture
def world(tmp_path: Path, seed: int) -> World:
    return World(tmp_path / "root", seed)


def rows(parquet: Path) -> dict[str, list[Any]]:
    """The sorted actions of a checkpoint by kind, without fields that are null."""
    found: dict[str, list[Any]] = {}
    for row in pq.read_table(parquet).to_pylist():
        for kind, action in row.items():
            if action is not None:
                found.setdefault(kind, []).append(_bare(action))
    for kind in found:
        found[kind].sort(key=repr)
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in sorted(value.items()) if item is not None}
    return value


def steps(world: World, count: int) -> Iterator[int]:
    for number in range(count):
        for _ in range(world.rng.randrange(1, 12)):
            world.change()
        yield number


def test_checkpoints_are_what_readers_find_in_the_commits(world: World) -> None:
    """What is lost, or comes back, makes zombies write and offsets be given out twice (R11)."""
    for number in steps(world, 6):
        ours, theirs = world.by_us(), world.by_delta_rs()
        assert world.checkpoint() == world.log.version
        assert world.by_us() == ours
        assert world.by_delta_rs() == theirs
        if number % 2:
            world.clean()
            assert world.by_us() == ours
            assert world.by_delta_rs() == theirs


def test_lower_horizon_brings_nothing_back(world: World) -> None:
    """Somebody has raised the age: a sequence that was expired came back in the next checkpoint."""
    now_ms = world.store.now_ms()
    world.commit(Txn("txnlog/7-1", 29, now_ms - 20))
    world.checkpoint()
    world.commit(Txn(EXPIRED_PRODUCERS, now_ms - 10, now_ms))
    world.commit(Txn(EXPIRED_PRODUCERS, now_ms - 30, now_ms))
    ours = world.by_us()
    world.checkpoint()
    assert world.by_us() == ours


def test_checkpoint_equals_that_of_delta_rs(world: World, tmp_path: Path) -> None:
    """Two writers who read Delta's protocol alike; in turns, each on top of the other's (R11)."""
    # Only we know what these take with them.
    world.has_horizons = False
    for number in steps(world, 6):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(world.folder, copy)
        DeltaTable(str(copy)).create_checkpoint()
        version = world.checkpoint()
        path = checkpoint_path(TABLE, version)
        ours = rows(world.root / path)
        theirs = rows(copy / path.partition("/")[2])
        assert_same(ours, theirs)
        if number % 2:
            # The next one of ours is made from theirs.
            shutil.copy(copy / path.partition("/")[2], world.root / path)


def assert_same(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> None:
    for kind in ("protocol", "metaData", "add", "txn"):
        assert ours.get(kind) == theirs.get(kind), kind
    gone = [
        [(row["path"], row["deletionTimestamp"]) for row in each.get("remove", [])]
        for each in (ours, theirs)
    ]
    assert sorted(gone[0]) == sorted(gone[1])


def test_versions_of_batch_writes_expire_and_ours_do_not(world: World) -> None:
    """delta.setTransactionRetentionDuration is for users' ids: a lost marker lets a zombie write,
    a lost end gives offsets out twice (R11). delta-rs leaves out both, by this machine's clock.
    """
    property_ = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    world.commit(replace(world.metadata, configuration=property_))
    now_ms = world.store.now_ms()
    for app_id in (
        "nightly",
        "txnlog/records/nightly",
        "txnlog/7",
        "txnlog/7-1",
        "txnlog/end/0",
        "txnlog/start/0",
    ):
        world.commit(Txn(app_id, 3, now_ms - 2 * DAY_MS))
    world.commit(Txn("young", 3, now_ms - DAY_MS // 2), Txn("untimed", 3))
    for _ in range(2):
        version = world.checkpoint()
        found = rows(world.root / checkpoint_path(TABLE, version))["txn"]
        assert {txn["appId"] for txn in found} == {
            *("txnlog/7", "txnlog/7-1", "txnlog/end/0", "txnlog/start/0", "young", "untimed")
        }
        world.commit(Txn("more", 1, now_ms - 2 * DAY_MS))


@pytest.mark.soak
@pytest.mark.spark
def test_spark_finds_in_checkpoints_what_it_finds_in_commits(
    spark: SparkSession, world: World
) -> None:
    """The same rows, versions and tombstones, before and after, and when the commits are gone."""
    for number in steps(world, 2):
        before = by_spark(spark, world)
        assert world.checkpoint() == world.log.version
        assert by_spark(spark, world) == before
        if number:
            world.clean()
            assert by_spark(spark, world) == before


def by_spark(spark: SparkSession, world: World) -> tuple[object, ...]:
    delta = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    delta.clearCache()
    snapshot = delta.forTable(spark._jsparkSession, str(world.folder)).unsafeVolatileSnapshot()
    versions = snapshot.transactions()
    found = {app_id: versions.get(app_id) for app_id in world._remembered()}
    frame = spark.read.format("delta").load(str(world.folder)).orderBy("value")
    return (
        snapshot.version(),
        snapshot.numOfFiles(),
        snapshot.numOfRemoves(),
        {app_id: version.get() for app_id, version in found.items() if version.isDefined()},
        [tuple(row) for row in frame.collect()],
    )
