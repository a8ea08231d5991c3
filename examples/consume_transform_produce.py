"""Consume, transform, produce: every order gets one invoice, however often the workers are killed.

Workers of one group read orders, and write an invoice for each to another topic. Each transaction
commits the invoices together with the offsets of their orders (KIP-447), so an order counts as read
exactly if its invoice is published. The workers are killed and restarted repeatedly.

    python examples/consume_transform_produce.py [--root /tmp/shop] [--orders 2000] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from multiprocessing.context import SpawnProcess
from pathlib import Path

from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Producer, TopicPartition, TxnLogError
from txnlog.errors import UnknownTopicOrPartitionError

SPAWN = multiprocessing.get_context("spawn")
PARTITIONS = 4
PRICES = {"apple": 30, "pear": 40, "plum": 15}


def work(root: str, name: str) -> None:
    """Write invoices until killed; a worker's only state is its name, the transactional.id."""
    consumer = Consumer(
        {
            "txnlog.root": root,
            "group.id": "invoicing",
            "auto.offset.reset": "earliest",
            # Positions are committed only in the transactions.
            "enable.auto.commit": False,
            # After this time the partitions of a killed worker are assigned to another.
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
        }
    )
    producer = Producer({"txnlog.root": root, "transactional.id": name})
    # Fences the former process of this name, and ends its open transaction.
    producer.init_transactions()
    consumer.subscribe(["orders"])
    while True:
        try:
            orders = consumer.consume(20, timeout=0.2)
        except UnknownTopicOrPartitionError:
            # Raised once: the topic may not exist yet.
            continue
        if not orders:
            continue
        try:
            with producer.transaction():
                for order in orders:
                    producer.produce("invoices", invoice(order.value() or b""), key=order.key())
                read = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(
                    [position for position in read if position.offset >= 0],
                    consumer.consumer_group_metadata(),
                )
        except TxnLogError as error:
            if not error.abortable:
                raise
            # Aborted, most likely because another worker has our partitions now. The positions are
            # not committed: rejoin the group, and continue from its committed offsets.
            consumer.unsubscribe()
            consumer.subscribe(["orders"])


def invoice(order: bytes) -> str:
    """The invoice of an order: its total."""
    basket = json.loads(order)
    return json.dumps({"cents": sum(PRICES[article] * basket[article] for article in basket)})


def place_orders(root: str, first: int, end: int) -> None:
    """Produce the orders with these numbers."""
    with Producer({"txnlog.root": root}) as producer:
        for number in range(first, end):
            basket = Counter(random.choices(list(PRICES), k=3))
            producer.produce("orders", json.dumps(basket), key=f"order-{number:05}")


def read(root: str, topic: str) -> dict[str, list[bytes]]:
    """Key -> values, of every record a read_committed reader sees now."""
    found: dict[str, list[bytes]] = {}
    with Consumer({"txnlog.root": root}) as consumer:
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        )
        while messages := consumer.consume(10_000, timeout=0.2):
            for message in messages:
                found.setdefault((message.key() or b"").decode(), []).append(message.value() or b"")
    return found


def await_invoices(root: str, count: int, workers: dict[str, SpawnProcess]) -> None:
    """Wait for `count` invoices. Raises SystemExit if a worker has failed."""
    while len(read(root, "invoices")) < count:
        failed = [name for name, worker in workers.items() if not worker.is_alive()]
        if failed:
            raise SystemExit(f"{failed} failed.")
        time.sleep(0.1)


def start(root: str, name: str) -> SpawnProcess:
    process = SPAWN.Process(target=work, args=(root, name))
    process.start()
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of the cluster; a temporary one by default")
    parser.add_argument("--orders", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--life-s", type=float, default=2.0, help="mean time from an invoice to the next kill"
    )
    arguments = parser.parse_args()
    root = arguments.root or tempfile.mkdtemp(prefix="consume-transform-produce-")
    cluster = Cluster.open(root, create=True)
    for topic in ("orders", "invoices"):
        cluster.create_topic(topic, partitions=PARTITIONS, exist_ok=True)
    print(f"The cluster is in {Path(root).resolve()}")

    workers = {
        name: start(root, name) for name in map("worker-{}".format, range(arguments.workers))
    }
    kills, placed = arguments.kills, len(read(root, "orders"))
    for number in range(1, kills + 1):
        before = len(read(root, "invoices"))
        end = max(placed, arguments.orders * number // kills)
        place_orders(root, placed, end)
        placed = end
        await_invoices(root, min(before + 1, placed), workers)
        time.sleep(random.uniform(0.5, 1.5) * arguments.life_s)
        name = random.choice(list(workers))
        workers[name].kill()
        workers[name].join()
        workers[name] = start(root, name)
        print(f"killed {name}; {len(read(root, 'invoices'))} invoices for {placed} orders so far")
    await_invoices(root, placed, workers)
    # Killing a worker is enough: the next process aborts or finishes its transaction.
    for worker in workers.values():
        worker.kill()
        worker.join()

    orders, invoices = read(root, "orders"), read(root, "invoices")
    expected = {key: [invoice(values[0]).encode()] for key, values in orders.items()}
    assert invoices == expected, "an order without its invoice, or with two"
    print(f"{len(orders)} orders, each with one invoice, after {kills} kills.")


if __name__ == "__main__":
    main()
