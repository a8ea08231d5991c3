"""A copy into a topic and Delta tables of others, whose process is killed again and again.

Each transaction reads three numbers of an endless input, from the group's position on. It produces
them to a topic, appends them to one table, replaces the one row of another by the last of them, and
commits the position. Meanwhile delta-rs appends to the tables, compacts, vacuums and alters them,
and makes checkpoints. With Spark they are also appended to a third table, to which Spark does the
same, and deletes rows.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from tests.producer.worlds import values
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    IllegalGenerationError,
    InvalidProducerEpochError,
    ProducerFencedError,
    TxnLogError,
)
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.process.failures import parts_of
from txnlog.producer import Producer
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import EnlistedLog
from txnlog.testing.invariants import check_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.soak.table_kills"])
TOPIC, GROUP, SILVER, LATEST, BRONZE = "numbers", "copiers", "silver", "latest", "bronze"
FEATURES = ("enableDeletionVectors", "enableRowTracking", "enableInCommitTimestamps")
"""Of Spark's table."""
EACH = 3
FOREIGN = 1_000_000_000
"""Numbers from here on are of other writers."""
WAIT_S = 600
FENCED = 7


def numbers(*ids: int) -> pa.Table:
    buckets = pa.array([str(one % 2) for one in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "bucket": buckets})


class Copy:
    """One root, its tables, and the process that copies.

    Where rows are staged visibly, others vacuum by the table's retention.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        spark: SparkSession | None = None,
        *,
        staging: str = "hidden",
    ) -> None:
        self.folder = folder
        self.root = str(folder / "lake")
        self.tables = {SILVER: str(folder / SILVER), LATEST: str(folder / LATEST)}
        self.chosen = random.Random(seed)
        self.kills = self.zombies = 0
        for url in self.tables.values():
            write_deltalake(url, numbers(), partition_by=["bucket"])
        self._spark_rival = None
        if spark is not None:
            self.tables[BRONZE] = str(folder / BRONZE)
            self._spark_rival = SparkRival(spark, self.tables[BRONZE], folder / "stop")
        cluster = Cluster.open(self.root, create=True, shards=2, offsets_shards=1)
        cluster.create_topic(TOPIC, partitions=1)
        admin = AdminClient({"txnlog.root": self.root}, cluster=cluster)
        for future in admin.enlist_tables(self.tables, staging=staging).values():
            future.result()
        others = (SILVER, LATEST)
        self._rivals = [self._begin(rival, self.tables[name], name, staging) for name in others]
        if self._spark_rival is not None:
            self._spark_rival.start()

    def run(self, kills: int) -> None:
        """Kill a copier after a few commits; or let its successor go on beside it while it is
        suspended.
        """
        for number in range(kills):
            seen = self._done()
            copier = self._begin(copy)
            self._await_commits(copier, seen + self.chosen.randint(1, 12))
            time.sleep(self.chosen.random() * 0.05)
            assert copier.pid is not None
            if self._spark_rival is not None:
                self._spark_rival.check()
            if number % 10 == 9:
                os.kill(copier.pid, signal.SIGSTOP)
                seen = self._done()
                successor = self._begin(copy)
                self._await_commits(successor, seen + 3)
                os.kill(copier.pid, signal.SIGCONT)
                copier.join(WAIT_S)
                assert copier.exitcode == FENCED, copier.exitcode
                self.zombies += 1
                copier = successor
                assert copier.pid is not None
            os.kill(copier.pid, signal.SIGKILL)
            copier.join(WAIT_S)
            self.kills += 1

    def finish(self) -> int:
        """Stop the others, and let a sweeper end what the last kill has left; the position."""
        (self.folder / "stop").touch()
        for process in self._rivals:
            process.join(WAIT_S)
            assert process.exitcode == 0
        if self._spark_rival is not None:
            self._spark_rival.end()
        cluster = Cluster.open(self.root)
        sweeper = Sweeper(cluster, interval_ms=1)
        for _ in range(3):
            sweeper.sweep()
            time.sleep(0.01)
        check_cluster(cluster, settled=True)
        return position(cluster)

    def check(self, end: int) -> None:
        """Everywhere each number once, as Spark, delta-rs and our reader see it."""
        expected = list(range(end))
        cluster = Cluster.open(self.root)
        assert sorted(int(value) for value in values(cluster, TOPIC)) == expected
        told = json.loads((self.folder / f"{SILVER}.json").read_text())
        wanted = {SILVER: [*expected, *told["acknowledged"]], LATEST: [end - 1]}
        if self._spark_rival is not None:
            wanted[BRONZE] = [*expected, *self._spark_rival.acknowledged]
            assert self._spark_rival.ids() == wanted[BRONZE]
        for name, ids in wanted.items():
            assert sorted(cluster.read(name, columns=["id"])["id"].to_pylist()) == ids
            query = QueryBuilder().register("one", DeltaTable(self.tables[name]))
            seen = query.execute("SELECT id FROM one ORDER BY id").read_all()
            assert seen["id"].to_pylist() == ids
        for url in self.tables.values():
            log = EnlistedLog(ObjectStore.from_url(url), lambda: 0)
            log.refresh_files()
            theirs = DeltaTable(url)
            assert log.state.version == theirs.version()
            assert len(log.state.files or ()) == len(theirs.file_uris())

    def close(self) -> None:
        """End the other writers of a failed test."""
        (self.folder / "stop").touch()

    def _begin(self, act: Any, *more: str) -> ForkServerProcess:
        process = FORKS.Process(target=act, args=(str(self.folder), *more), daemon=True)
        process.start()
        return process

    def _done(self) -> int:
        with suppress(FileNotFoundError):
            return os.path.getsize(self.folder / "commits")
        return 0

    def _await_commits(self, copier: ForkServerProcess, wanted: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self._done() < wanted:
            assert copier.is_alive(), copier.exitcode
            assert time.monotonic() < deadline_s
            time.sleep(0.002)


def position(cluster: Cluster) -> int:
    return cluster.groups.fetch(GROUP, fence=True, patience_ms=60_000).get("input", {}).get(0, 0)


def copy(folder: str) -> None:
    """Copy until killed, or fenced by a successor."""
    root = f"{folder}/lake"
    try:
        with open(f"{folder}/commits", "ab", buffering=0) as done:
            made = Producer({"txnlog.root": root, "transactional.id": "copy"})
            made.init_transactions()
            cluster = Cluster.open(root)
            generation = cluster.groups.start(GROUP)
            at = cluster.groups.fetch(GROUP, generation).get("input", {}).get(0, 0)
            group = ConsumerGroupMetadata(GROUP, generation)
            appended = cluster.enlisted().keys() - {LATEST}
            while True:
                ids = range(at, at + EACH)
                with made.transaction():
                    for one in ids:
                        made.produce(TOPIC, str(one))
                    for name in appended:
                        made.append(name, numbers(*ids))
                    made.overwrite(LATEST, numbers(ids[-1]))
                    positions = [TopicPartition("input", 0, ids[-1] + 1)]
                    made.send_offsets_to_transaction(positions, group)
                at += EACH
                done.write(b".")
    except TxnLogError as error:
        fenced = (ProducerFencedError, InvalidProducerEpochError, IllegalGenerationError)
        causes = [*parts_of(error), error.__cause__]
        if any(isinstance(one, fenced) for one in causes):
            os._exit(FENCED)
        raise


def rival(folder: str, url: str, name: str, staging: str) -> None:
    """Another tool's jobs on a table, one after the other; what it was told is committed."""
    acknowledged, at = [], FOREIGN
    while not os.path.exists(f"{folder}/stop"):
        at += 1
        if name == SILVER and tried(partial(write_deltalake, url, numbers(at), mode="append")):
            acknowledged.append(at)
        if at % 7 == 0:
            tried(lambda: DeltaTable(url).optimize.compact())
        if at % 11 == 0:
            tried(lambda: DeltaTable(url).create_checkpoint())
        if at % 13 == 0:
            tried(partial(vacuum, url, staging))
        if at % 101 == 0:
            tried(partial(alter, url, at))
        time.sleep(0.02)
    Path(folder, f"{name}.json").write_text(json.dumps({"acknowledged": acknowledged}))


def tried(job: Callable[[], object]) -> bool:
    """Whether it was done; a job that meets our commits may fail, as beside any Delta writer."""
    with suppress(DeltaError):
        job()
        return True
    return False


def vacuum(url: str, staging: str) -> None:
    hours = 0 if staging == "hidden" else None
    DeltaTable(url).vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)


def alter(url: str, number: int) -> None:
    DeltaTable(url).alter.add_columns([Field(f"column{number}", PrimitiveType("string"))])


class SparkRival:
    """Spark's jobs on a table, one after the other, in a thread. `acknowledged`: rows it was told
    are committed, and has not deleted.
    """

    def __init__(self, spark: SparkSession, url: str, stop: Path) -> None:
        self._spark = spark
        self._table = f"delta.`{url}`"
        self._stop = stop
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        properties = ", ".join(f"'delta.{name}' = 'true'" for name in FEATURES)
        self._sql(
            f"CREATE TABLE {self._table} (id BIGINT, bucket STRING) USING delta "
            f"PARTITIONED BY (bucket) TBLPROPERTIES ({properties})"
        )

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.check()

    def check(self) -> None:
        """Raise what the thread has raised."""
        if self._error is not None:
            raise self._error

    def ids(self) -> list[int]:
        rows = self._spark.sql(f"SELECT id FROM {self._table} ORDER BY id").collect()
        return [row.id for row in rows]

    def _run(self) -> None:
        try:
            for at in itertools.count(FOREIGN + 1):
                if self._stop.exists():
                    return
                self._jobs(at)
        except BaseException as error:
            self._error = error

    def _jobs(self, at: int) -> None:
        if self._tried(f"INSERT INTO {self._table} (id, bucket) VALUES ({at}, '{at % 2}')"):
            self.acknowledged.append(at)
        if at % 3 == 0 and self._tried(f"DELETE FROM {self._table} WHERE id = {at}"):
            self.acknowledged = [one for one in self.acknowledged if one != at]
        if at % 5 == 0:
            self._tried(f"OPTIMIZE {self._table}")
        if at % 11 == 0:
            self._tried(f"VACUUM {self._table} RETAIN 0 HOURS")
        if at % 31 == 0:
            self._tried(f"ALTER TABLE {self._table} ADD COLUMN (column{at} STRING)")

    def _tried(self, statement: str) -> bool:
        """Whether it was done; one that meets our commits may fail, as beside any Delta writer."""
        try:
            self._sql(statement)
        except Exception as error:
            if "DELTA_CONCURRENT" not in str(error) and "DELTA_METADATA_CHANGED" not in str(error):
                raise
            return False
        return True

    def _sql(self, statement: str) -> None:
        self._spark.sql(statement).collect()
