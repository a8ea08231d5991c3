"""Transactions with offsets of many clients at once on S3, each with its own group and topic.

Some of the groups, and some of the ids, share a shard, as anybody's do: these take turns. The last
figure is of two whose ids are in one shard for certain.
"""

from __future__ import annotations

import multiprocessing
import time
from itertools import count
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.figures import Figure, at_least, reported
from benchmarks.scale import Scale
from benchmarks.stores.server import s3_server
from txnlog.admin import AdminClient, NewTopic
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.shards import shard_number
from txnlog.settings.names import SHARDS_DEFAULT

CLIENTS = (1, 2, 4, 8)
WAIT_S = 600
MORE_MIN = 6.0
FAIR_MIN = 1 / 3
WINDOW_S = 0.5
"""For each transaction that the scale asks for; all clients commit until it is over."""
SPAWN = multiprocessing.get_context("spawn")


def measure(scale: Scale) -> list[Figure]:
    """Transactions per second of CLIENTS, each a process; what the slower one of two gets."""
    rates = []
    with s3_server() as server:
        settings = server.far.settings("groups")
        names = [f"topic-{number}" for number in range(max(CLIENTS))]
        AdminClient(settings).create_topics([NewTopic(name, 1) for name in names])
        ids = [f"id-of-{name}" for name in names]
        for clients in CLIENTS:
            found = _counts(settings, names[:clients], ids, scale.store_transactions)
            rates.append(sum(found) / (WINDOW_S * scale.store_transactions))
        shared = _counts(settings, names[:2], _ids_of_a_shard(), scale.store_transactions)
    figures = [
        reported(f"{clients} clients, transactions with offsets", rate, "1/s")
        for clients, rate in zip(CLIENTS, rates, strict=True)
    ]
    name = f"{CLIENTS[-1]} clients / 1 client"
    return [
        *figures,
        at_least(name, rates[-1] / rates[0], "x", MORE_MIN, "1 client"),
        at_least(
            "two ids in one shard, the slower client", min(shared) / max(shared), "x", FAIR_MIN,
            "the faster one",
        ),
    ]  # fmt: skip


def _ids_of_a_shard() -> list[str]:
    """Two ids whose rows are in the same log."""
    wanted = shard_number("id", SHARDS_DEFAULT)
    numbered = (f"id-{number}" for number in count())
    return ["id", next(one for one in numbered if shard_number(one, SHARDS_DEFAULT) == wanted)]


def _counts(
    settings: dict[str, str], topics: list[str], ids: list[str], transactions: int
) -> list[int]:
    """Transactions of each client, in a window in which all of them commit."""
    ready = SPAWN.Barrier(len(topics))
    counts = SPAWN.Array("q", len(topics))
    window_s = WINDOW_S * transactions
    processes = [
        SPAWN.Process(
            target=_commit, args=(settings, topic, ids[number], number, window_s, ready, counts)
        )
        for number, topic in enumerate(topics)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert not any(process.exitcode for process in processes)
    return list(counts)


def _commit(
    settings: dict[str, str],
    topic: str,
    transactional_id: str,
    number: int,
    window_s: float,
    ready: Barrier,
    counts: Any,
) -> None:
    group = {"group.id": f"group-of-{topic}"}
    with (
        Producer({**settings, "transactional.id": transactional_id}) as producer,
        Consumer({**settings, **group}) as consumer,
    ):
        producer.init_transactions()
        consumer.assign([TopicPartition(topic, 0, 0)])

        def commit(position: int) -> None:
            with producer.transaction():
                producer.produce(topic, b"v" * 100, partition=0)
                producer.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, position)], consumer.consumer_group_metadata()
                )

        commit(0)
        ready.wait(WAIT_S)
        end_s = time.monotonic() + window_s
        commit(1)
        while time.monotonic() < end_s:
            counts[number] += 1
            commit(counts[number] + 1)
