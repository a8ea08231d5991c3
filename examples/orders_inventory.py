"""Orders and inventory: atomic writes to two topics, however often the shop is killed.

Each purchase writes an order to one topic and its stock movements to another, in one transaction.
The shop is a process that is killed repeatedly while it works, and a reader runs meanwhile. At the
end every order has its stock movements, and every stock movement its order.

    python examples/orders_inventory.py [--root /tmp/shop] [--purchases 1000] [--publish eager]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path

from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Producer, TopicPartition

ARTICLES = ("apple", "pear", "plum", "cherry")
SPAWN = multiprocessing.get_context("spawn")


def shop(root: str, publish: str, purchases: int, has_sold: Event) -> None:
    """Sell until all purchases are made; after a kill, resume from the state in the root."""
    chosen = random.Random()
    producer = Producer(
        {
            "txnlog.root": root,
            "transactional.id": "shop",
            "transaction.publish": publish,
            "client.id": "orders-inventory",
        }
    )
    # Fences the former shop process, and ends its open transaction.
    producer.init_transactions()
    for number in range(len(purchased(root)), purchases):
        order_id = f"order-{number:05}"
        basket = Counter(chosen.choices(ARTICLES, k=3))
        with producer.transaction():
            producer.produce("orders", json.dumps(basket), key=order_id)
            for article, count in basket.items():
                movement = {"order": order_id, "count": -count}
                producer.produce("inventory", json.dumps(movement), key=article)
        has_sold.set()
    producer.close()


def purchased(root: str) -> dict[str, Counter[str]]:
    """Order id -> basket, of all orders a read_committed reader sees now."""
    return {key: Counter(json.loads(value)) for key, value in read(root, "orders")}


def moved(root: str) -> dict[str, Counter[str]]:
    """Order id -> articles taken from the stock."""
    found: dict[str, Counter[str]] = {}
    for article, value in read(root, "inventory"):
        movement = json.loads(value)
        found.setdefault(movement["order"], Counter())[article] -= movement["count"]
    return found


def read(root: str, topic: str) -> list[tuple[str, bytes]]:
    """(key, value) of every record from the first to the current end."""
    consumer = Consumer({"txnlog.root": root, "auto.offset.reset": "earliest"})
    try:
        metadata = consumer.list_topics(topic).topics[topic]
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in metadata.partitions]
        )
        found = []
        while messages := consumer.consume(10_000, timeout=0.2):
            found += [((m.key() or b"").decode(), m.value() or b"") for m in messages]
        return found
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of the cluster; a temporary one by default")
    parser.add_argument("--purchases", type=int, default=1_000)
    parser.add_argument("--publish", choices=("deferred", "eager"), default="deferred")
    parser.add_argument(
        "--kills", type=int, default=20, help="the shop runs to its end after the last kill"
    )
    parser.add_argument(
        "--life-s", type=float, default=0.5, help="mean time from the first sale to a kill"
    )
    arguments = parser.parse_args()
    root = arguments.root or tempfile.mkdtemp(prefix="orders-inventory-")
    cluster = Cluster.open(root, create=True)
    cluster.create_topic("orders", partitions=2, exist_ok=True)
    cluster.create_topic("inventory", partitions=4, exist_ok=True)
    print(f"The cluster is in {Path(root).resolve()}")

    kills = 0
    while True:
        has_sold = SPAWN.Event()
        process = SPAWN.Process(
            target=shop, args=(root, arguments.publish, arguments.purchases, has_sold)
        )
        process.start()
        # On a busy machine it takes seconds to start; its time starts with the first sale.
        while process.is_alive() and not has_sold.wait(0.05):
            pass
        is_last = kills == arguments.kills
        process.join(None if is_last else random.uniform(0.5, 1.5) * arguments.life_s)
        if not process.is_alive():
            break
        process.kill()
        process.join()
        kills += 1
        # The next shop ends the open transaction; readers see only complete purchases meanwhile.
        print(f"killed the shop {kills} times; {len(purchased(root))} orders so far")
        time.sleep(0.1)
    if process.exitcode:
        raise SystemExit(f"The shop failed with exit code {process.exitcode}.")

    orders, inventory = purchased(root), moved(root)
    assert orders == inventory, "an order without its movements, or movements without their order"
    assert len(orders) == arguments.purchases
    print(f"{len(orders)} orders, each with its stock movements, after {kills} kills.")


if __name__ == "__main__":
    main()
