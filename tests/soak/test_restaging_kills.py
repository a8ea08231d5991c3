"""A producer is killed once its transaction is decided, another tool changes the table, and the
process that restages the rows is killed, too.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.producer.worlds import values
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import TableChangedError
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.counts import count
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.soak.test_restaging_kills"])
TOPIC, GROUP, SILVER, BRONZE = "numbers", "copiers", "silver", "bronze"
TYPES = (pa.int64(), pa.float64())
STEPS = (
    "restage.staged",
    "restage.part",
    "restage.decided",
    "table.after",
    "markers.after",
    "offsets.after",
)
STAGINGS = ("hidden", "visible")
WAIT_S = 300


def rows(number: int, kind: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array([number], kind), "bucket": [str(number % 2)]})


def produce(root: str, number: int) -> None:
    """A transaction with a topic, two tables and a group's offset; it dies once that is decided."""
    os.environ["TXNLOG_FAILPOINT"] = "prepare_commit.after"
    with Producer({"txnlog.root": root, "transactional.id": "copy"}) as producer:
        producer.init_transactions()
        group = ConsumerGroupMetadata(GROUP, Cluster.open(root).groups.start(GROUP))
        with producer.transaction():
            producer.produce(TOPIC, str(number))
            for name in (SILVER, BRONZE):
                # The tables have the same type here; silver gets another one before publication.
                producer.append(name, rows(number, pa.int64()))
            producer.send_offsets_to_transaction([TopicPartition("input", 0, number + 1)], group)


def restage(root: str, failpoint: str) -> None:
    os.environ["TXNLOG_FAILPOINT"] = failpoint
    AdminClient({"txnlog.root": root}).restage_tables([SILVER])[SILVER].result()


def died(act: Any, *arguments: Any, after_s: float | None = None) -> bool:
    """Run a process, killed after some time perhaps; whether it died by SIGKILL."""
    process = FORKS.Process(target=act, args=arguments, daemon=True)
    process.start()
    if after_s is not None:
        process.join(after_s)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_S)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


class Copied:
    """One root, and the numbers of its transactions so far."""

    def __init__(self, folder: Path, staging: str) -> None:
        self.root = str(folder / "lake")
        self._tables = {name: str(folder / name) for name in (SILVER, BRONZE)}
        self._count = 0
        self.restaging_s = 1.0
        cluster = Cluster.open(self.root, create=True, shards=1, offsets_shards=1)
        cluster.create_topic(TOPIC, partitions=1)
        for url in self._tables.values():
            write_deltalake(url, rows(-1, TYPES[0]).slice(0, 0), partition_by=["bucket"])
        admin = AdminClient({"txnlog.root": self.root}, cluster=cluster)
        for made in admin.enlist_tables(self._tables, staging=staging).values():
            made.result()

    def block(self) -> None:
        """A decided transaction whose part silver does not take any more."""
        self._replace(TYPES[0])
        assert died(produce, self.root, self._count)
        self._replace(TYPES[1])
        self._count += 1

    def _replace(self, kind: pa.DataType) -> None:
        url = self._tables[SILVER]
        empty = rows(-1, kind).slice(0, 0)
        write_deltalake(url, empty, mode="overwrite", schema_mode="overwrite")

    def recover(self) -> None:
        """Other clients finish what they can, another restaging the rest; delta-rs vacuums."""
        DeltaTable(self._tables[SILVER]).vacuum(dry_run=False, full=True)
        with suppress(TableChangedError):
            Sweeper(Cluster.open(self.root), interval_ms=0).sweep()
        began_s = time.monotonic()
        assert not died(restage, self.root, "")
        self.restaging_s = time.monotonic() - began_s

    def check(self) -> None:
        """Each number is there once, as delta-rs and our reader see it; silver has the last."""
        expected = list(range(self._count))
        cluster = Cluster.open(self.root)
        check_cluster(cluster, settled=True)
        assert sorted(int(value) for value in values(cluster, TOPIC)) == expected
        assert cluster.groups.fetch(GROUP) == {"input": {0: self._count}}
        for name, ids in ((BRONZE, expected), (SILVER, expected[-1:])):
            assert sorted(cluster.read(name, columns=["id"])["id"].to_pylist()) == ids
            query = QueryBuilder().register("one", DeltaTable(self._tables[name]))
            seen = query.execute("SELECT id FROM one ORDER BY id").read_all()
            assert seen["id"].to_pylist() == ids
        found = verify(ObjectStore.from_url(self.root), VerifySettings()).findings.kept
        # The group's input is no topic.
        assert {one.kind for one in found} == {FindingKind.OFFSET_WITHOUT_PARTITION}, found


SHORT = {("restage.part", "hidden"), ("restage.decided", "visible")}


@pytest.mark.parametrize(
    ("failpoint", "staging"),
    [
        pytest.param(*case, marks=() if case in SHORT else pytest.mark.soak)
        for case in ((step, staging) for step in STEPS for staging in STAGINGS)
    ],
)
def test_restaging_killed_at_a_step_is_finished_by_others(
    tmp_path: Path, failpoint: str, staging: str
) -> None:
    """The rows are there once, with the topic, the other table and the offsets (R74, R76)."""
    copied = Copied(tmp_path, staging)
    copied.block()
    assert died(restage, copied.root, failpoint), "the step was not reached"
    copied.recover()
    copied.check()


@pytest.mark.soak
@pytest.mark.parametrize("staging", STAGINGS)
def test_restaging_killed_at_any_moment_is_finished_by_others(
    tmp_path: Path, seed: int, staging: str
) -> None:
    """The same root for all kills, each after a random part of what a restaging takes (R76)."""
    chosen, kills = random.Random(seed), 0
    copied = Copied(tmp_path, staging)
    for _ in range(int(os.environ.get("TXNLOG_KILLS", "100"))):
        copied.block()
        kills += died(restage, copied.root, "", after_s=chosen.uniform(0, copied.restaging_s))
        copied.recover()
    copied.check()
    assert kills
    count("kills", "restaging", kills)
