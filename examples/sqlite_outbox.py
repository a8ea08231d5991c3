"""An outbox: orders of an SQLite database become records of a topic, each once, through kills.

An order and its message are written in one transaction of the database. A relay moves messages to
the topic `orders`, in their sequence, and commits in the same transaction of the topic how far it
has come (as a Kafka Connect source does with its offsets). Neither side waits for the other: while
one is down, the other goes on.

    python examples/sqlite_outbox.py [--kills 20] [--zombies 5]
"""

from __future__ import annotations

import argparse
import sqlite3
from collections import Counter
from functools import partial

from killing import Killer, Life, add_arguments, folder_of, records_of, run

from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Producer, TopicPartition

SCHEMA = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT);
    CREATE TABLE IF NOT EXISTS outbox (
        position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, value TEXT NOT NULL
    );
"""
STEPS = ("inserted", "row committed", "produced", "record committed", "outbox emptied")


class Relay:
    """Moves messages from the outbox to the topic; its name is the transactional.id."""

    def __init__(self, root: str, database: sqlite3.Connection, life: Life) -> None:
        self.database, self.life = database, life
        self.producer = Producer({"txnlog.root": root, "transactional.id": "relay"})
        # Ends what the former relay has left: after this the position cannot change any more.
        self.producer.init_transactions()
        self.position = relayed_to(root)

    def relay(self) -> None:
        """All messages that are waiting, as one transaction."""
        waiting = self.database.execute(
            "SELECT position, key, value FROM outbox WHERE position > ? ORDER BY position",
            [self.position],
        ).fetchall()
        if waiting:
            last = waiting[-1][0]
            with self.producer.transaction():
                for _, key, value in waiting:
                    self.producer.produce("orders", value, key=key)
                self.producer.produce("relayed", str(last), key="outbox")
                self.life.passed("produced")
            self.life.passed("record committed")
            self.position = last
        # Only to save space: what was relayed is skipped by its position.
        with self.database:
            self.database.execute("DELETE FROM outbox WHERE position <= ?", [self.position])
        self.life.passed("outbox emptied")


def relayed_to(root: str) -> int:
    """The position of the last message in the topic; the newest record of `relayed` has it."""
    with Consumer({"txnlog.root": root}) as consumer:
        partition = TopicPartition("relayed", 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(partition)
        if not end:
            return 0
        consumer.assign([TopicPartition("relayed", 0, end - 1)])
        (newest,) = consumer.consume(1, timeout=60)
        return int(newest.value() or b"0")


def place_order(database: sqlite3.Connection, life: Life) -> None:
    """The next order and its message, both or neither."""
    with database:
        number = database.execute("INSERT INTO orders DEFAULT VALUES").lastrowid
        database.execute("INSERT INTO outbox (key, value) VALUES (?, 'placed')", [str(number)])
        life.passed("inserted")
    life.passed("row committed")


def sell(root: str, file: str, life: Life, orders: int) -> None:
    """A worker: relay what was left, then place orders, each followed by the relay."""
    database = sqlite3.connect(file, timeout=60)
    relay = Relay(root, database, life)
    relay.relay()
    life.opened()
    for _ in range(len(orders_of(file)), orders):
        place_order(database, life)
        relay.relay()


def orders_of(file: str) -> Counter[int]:
    """Order -> how many rows."""
    database = sqlite3.connect(file, timeout=60)
    try:
        return Counter(number for (number,) in database.execute("SELECT id FROM orders"))
    finally:
        database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    arguments = parser.parse_args()
    folder = folder_of(arguments)
    root = str(folder / "cluster")
    cluster = Cluster.open(root, create=True)
    cluster.create_topic("orders", partitions=1, exist_ok=True)
    compacted = {"cleanup.policy": "compact"}
    cluster.create_topic("relayed", partitions=1, config=compacted, exist_ok=True)
    file = str(folder / "shop.sqlite")
    sqlite3.connect(file).executescript(SCHEMA)
    killer = Killer(
        partial(sell, root, file), partial(records_of, root, "orders"), partial(orders_of, file)
    )
    # A zombie that has the database's lock would only make its successor wait.
    run(killer, arguments, STEPS, stops=STEPS[1:])
    killer.finish()
    orders, differences = len(orders_of(file)), killer.differences()
    print(f"{orders} orders, {differences} differences after {killer.kills} kills.")
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
