"""The processes of the snapshot test: `python -m tests.soak.moving ROLE ROOT ID`.

Movers write an amount into one topic and its opposite into another, in one transaction, and the
same into two Delta tables of others. A pipe copies topic `in` to topic `out` and to a table, with
its offsets. A keeper compacts, and runs vacuum and the clean-up of logs. A rival writes to the
tables with delta-rs.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.producer import Producer

MOVED = ("left", "right")
PIPED = ("in", "out")
TABLES = ("debits", "credits")
COPIED = "copied"
GROUP = "pipe"


def amounts(*values: int) -> pa.Table:
    return pa.table({"amount": pa.array(values, pa.int64())})


def move(root: str, name: str) -> None:
    """One mover publishes eagerly, which leaves gaps after aborts: it does not feed the pipe."""
    publish = "eager" if name == "1" else "deferred"
    producer = Producer(
        {"txnlog.root": root, "transactional.id": f"mover-{name}", "transaction.publish": publish}
    )
    producer.init_transactions()
    while True:
        amount = random.randint(1, 1_000)
        producer.begin_transaction()
        for topic, value in zip(MOVED, (amount, -amount), strict=True):
            producer.produce(topic, str(value).encode(), partition=random.randint(0, 1))
        for table, value in zip(TABLES, (amount, -amount), strict=True):
            producer.append(table, amounts(value))
        if publish == "deferred":
            producer.produce("in", str(amount).encode())
        if random.random() < 0.1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def pipe(root: str, name: str) -> None:
    """Consume, transform, produce, with the offsets in the transaction."""
    consumer = Consumer(
        {
            "txnlog.root": root,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe(["in"])
    producer = Producer({"txnlog.root": root, "transactional.id": f"pipe-{name}"})
    producer.init_transactions()
    while True:
        messages = consumer.consume(20, timeout=0.2)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce("out", message.value())
        producer.append(COPIED, amounts(*(int(message.value()) for message in messages)))
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()


def keep(root: str, name: str) -> None:
    """Housekeeping, all the time."""
    cluster = Cluster.open(root)
    compactor = Compactor(cluster)
    while True:
        compactor.step()
        cluster.sweeper.sweep_if_due()
        if random.random() < 0.1:
            Vacuum(cluster).run()
            LogCleanup(cluster).run()
        time.sleep(0.05)


def rival(root: str, name: str) -> None:
    """Rows of no amount, one after the other; compaction and checkpoints now and then."""
    urls = [table.url for table in Cluster.open(root).enlisted().values()]
    while True:
        url = random.choice(urls)
        with suppress(DeltaError):
            chosen = random.random()
            if chosen < 0.7:
                write_deltalake(url, amounts(0), mode="append")
            elif chosen < 0.9:
                DeltaTable(url).optimize.compact()
            else:
                DeltaTable(url).create_checkpoint()
        time.sleep(0.05)


def main(role: str, root: str, name: str) -> None:
    """Until it is killed; what an error has ended begins again."""
    while True:
        try:
            {"move": move, "pipe": pipe, "keep": keep, "rival": rival}[role](root, name)
        except TxnLogError as error:
            print(f"{role} {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
