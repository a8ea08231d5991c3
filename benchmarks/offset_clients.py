"""Transactions with offsets of many clients at an object store, in virtual time.

    python -m benchmarks.offset_clients [--latency-ms 20] [--seconds 20]

Each client has a transactional.id and a group of its own. Requests take the given time, and nothing
else does: so the figures show what waits for what, not the speed of this machine. Second table: two
ids whose rows are in one shard.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial

from obstore.store import MemoryStore

from txnlog.cluster import Cluster
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.virtual_time import SlowStore, VirtualTime

SETTINGS = LogSettings(checkpoint_mode="off")


def transactions(
    clients: int, *, latency_ms: float, seconds: int, shards: int, ids: Sequence[str]
) -> list[int]:
    """How many transactions each client has committed."""
    random.seed(clients)
    backing, time = MemoryStore(), VirtualTime()
    first = SlowStore(backing, time, latency_ms=(0, 0), seed="first")
    cluster = Cluster.open(first, create=True, shards=shards, settings=SETTINGS)
    cluster.create_topic("input", partitions=1)
    done = [0] * clients
    until_ms = time.at_ms + 1000 * seconds

    def client(number: int) -> None:
        store = SlowStore(backing, time, latency_ms=(latency_ms, latency_ms), seed=number)
        mine = Cluster.open(store, settings=SETTINGS)
        group = f"group-{number}"
        generation = mine.groups.start(group)
        row = mine.coordinator.init_producer_id(ids[number], Owner(run_id=f"run-{number}"))
        while time.boot_ms() < until_ms:
            at = done[number]
            offsets = GroupOffsets(
                group_id=group,
                generation=generation,
                start={"input": {0: at}},
                end={"input": {0: at + 1}},
            )
            row = mine.coordinator.commit(row, (), offsets=[offsets])
            done[number] += 1

    time.run([partial(client, number) for number in range(clients)])
    return done


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--seconds", type=int, default=20)
    asked = parser.parse_args()
    print("clients  transactions/s")
    for clients in (1, 2, 4, 8):
        ids = [f"id-{number}" for number in range(clients)]
        done = transactions(
            clients, latency_ms=asked.latency_ms, seconds=asked.seconds, shards=32, ids=ids
        )
        print(f"{clients:7}  {sum(done) / asked.seconds:.1f}")
    print("ids in one shard  transactions of each")
    for clients in (2, 4):
        ids = [f"id-{number}" for number in range(clients)]
        done = transactions(
            clients, latency_ms=asked.latency_ms, seconds=asked.seconds, shards=1, ids=ids
        )
        print(f"{clients:16}  {', '.join(map(str, done))}")


if __name__ == "__main__":
    main()
