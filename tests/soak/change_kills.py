"""A process that adds one to a count in a Delta table, and a record for it, until it is killed."""

from __future__ import annotations

import random
import sys
import time
import uuid

import pyarrow as pa

from tests.tables import changed_to
from tests.world import staged
from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging
from txnlog.errors import TableConflictError
from txnlog.protocol.metadata import Owner

NAME, TOPIC = "silver.count", "events"


def count_in(cluster: Cluster) -> tuple[int, int]:
    """The count, and the version that has it."""
    log = cluster.open_table(cluster.enlisted()[NAME].url)
    log.refresh_files()
    version = log.state.version
    return sum(cluster.read(NAME)["id"].to_pylist()), version


def add_one(cluster: Cluster, transactional_id: str, run_id: str) -> bool:
    """False: the table has gone on meanwhile."""
    row = cluster.coordinator.init_producer_id(transactional_id, Owner(run_id=run_id))
    count, version = count_in(cluster)
    tables = changed_to(cluster, pa.table({"id": pa.array([count + 1], pa.int64())}), name=NAME)
    if is_same := tables[0].part.read_version == version:
        batches = [staged(cluster, TOPIC, f"{transactional_id}-{uuid.uuid4()}")]
        # As long as Spark computes a change: others meet it.
        time.sleep(random.uniform(0, 0.1))
        cluster.coordinator.commit(row, Staging(frozenset({TOPIC}), lambda: batches, tables))
    return is_same


def main(root: str, transactional_id: str) -> None:
    cluster, run_id = Cluster.open(root), str(uuid.uuid4())
    while True:
        try:
            if add_one(cluster, transactional_id, run_id):
                print("added", flush=True)
        except TableConflictError:
            print("conflict", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
