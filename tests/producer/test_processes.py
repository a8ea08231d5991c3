"""Real processes on a local disk: fencing, kills, forks, and producers side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from tests.producer.worlds import values
from txnlog.cluster import Cluster
from txnlog.errors import ForkedProcessError, InvalidTxnStateError, ProducerFencedError
from txnlog.producer import Producer
from txnlog.testing.counts import count
from txnlog.testing.invariants import check_cluster

SPAWN = multiprocessing.get_context("spawn")
BOTH = pytest.mark.parametrize("publish", ["deferred", "eager"])
WAIT_S = 600
LIVES = 3
PURCHASES_MIN = 5


def config(root: Path, name: str | None, publish: str = "deferred") -> dict[str, Any]:
    found: dict[str, Any] = {"txnlog.root": str(root)}
    if name is not None:
        found |= {"transactional.id": name, "transaction.publish": publish}
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cluster = Cluster.open(str(tmp_path), create=True)
    for topic in ("orders", "stock"):
        cluster.create_topic(topic, partitions=2)
    return tmp_path


def buy(made: Producer, name: str) -> None:
    """One purchase: a record in each of two topics, both or neither (R53)."""
    with made.transaction():
        made.produce("orders", name, key=name)
        made.produce("stock", name, key=name)


def zombie(root: Path, publish: str, is_open: Event, woken: Event, outcome: Any) -> None:
    """Open a transaction, sleep, and try to commit it."""
    made = Producer(config(root, "shop", publish))
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "zombie")
    made.flush()
    is_open.set()
    woken.wait(WAIT_S)
    try:
        made.commit_transaction()
    except ProducerFencedError as error:
        outcome.put(error.message)
    else:
        outcome.put("committed")


@BOTH
def test_zombie_process_is_fenced_by_its_successor(root: Path, publish: str) -> None:
    """Two processes with one transactional.id: the newer one wins (R27, R42, R44)."""
    is_open, woken, outcome = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
    sleeper = SPAWN.Process(target=zombie, args=(root, publish, is_open, woken, outcome))
    sleeper.start()
    assert is_open.wait(WAIT_S)
    with Producer(config(root, "shop", publish)) as successor:
        successor.init_transactions()
        buy(successor, "successor")
    woken.set()
    assert "last fenced at" in outcome.get(timeout=WAIT_S)
    sleeper.join(WAIT_S)
    cluster = Cluster.open(str(root))
    assert values(cluster, "orders") == ["successor"]
    check_cluster(cluster, settled=True)


def shop(root: Path, number: int, publish: str) -> None:
    """Buy until killed; each purchase is recorded in a file after its commit."""
    made = Producer(config(root, f"shop-{number}", publish))
    made.init_transactions()
    with open(root / f"done-{number}-{os.getpid()}", "a") as done:
        for count in range(10_000):
            name = f"{number}.{os.getpid()}.{count}"
            buy(made, name)
            done.write(f"{name}\n")
            done.flush()


def await_purchases(done: Path, shop: SpawnProcess) -> None:
    """Wait until a shop has bought a few times."""
    deadline_s = time.monotonic() + WAIT_S
    while not done.exists() or len(done.read_text().split()) < PURCHASES_MIN:
        assert shop.is_alive()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_shops_leave_both_or_neither_of_each_purchase(root: Path) -> None:
    """SIGKILL at any moment; their successors end the open transactions (R36, R50, R53)."""
    for round_number in range(LIVES):
        shops = [
            SPAWN.Process(target=shop, args=(root, number, publish))
            for number, publish in enumerate(("deferred", "eager"))
        ]
        for process in shops:
            process.start()
        for number, process in enumerate(shops):
            await_purchases(root / f"done-{number}-{process.pid}", process)
            process.join(0.1 * round_number)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(WAIT_S)
            count("kills", "producer")
    for number in range(2):
        with Producer(config(root, f"shop-{number}")) as successor:
            successor.init_transactions()
    cluster = Cluster.open(str(root))
    orders, stock = sorted(values(cluster, "orders")), sorted(values(cluster, "stock"))
    assert orders == stock
    assert len(set(orders)) == len(orders)
    done = {name for path in root.glob("done-*") for name in path.read_text().split()}
    assert done <= set(orders)
    assert len(done) >= len(shops) * LIVES * PURCHASES_MIN
    check_cluster(cluster, settled=True)


def append(root: Path, number: int) -> None:
    with Producer(config(root, None)) as made:
        for at in range(200):
            made.produce("orders", f"{number}-{at}", partition=0)
            if at % 20 == 0:
                made.flush()


def test_idempotent_processes_write_one_partition_side_by_side(root: Path) -> None:
    """Each one's records once, in its own order, offsets dense (R1, R10, R62)."""
    writers = [SPAWN.Process(target=append, args=(root, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT_S)
        assert writer.exitcode == 0
    cluster = Cluster.open(str(root))
    found = values(cluster, "orders")
    for number in range(3):
        own = [value for value in found if value.startswith(f"{number}-")]
        assert own == [f"{number}-{at}" for at in range(200)]
    assert len(found) == 600
    check_cluster(cluster)


def test_forked_child_is_refused_and_its_parent_continues(root: Path) -> None:
    """The child has no threads, and locks may be held: a typed error, no hang (R39)."""
    made = Producer(config(root, None))
    made.produce("orders", "parent")
    made.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made.produce("orders", "child")
        except ForkedProcessError:
            try:
                made.flush()
            except ForkedProcessError:
                made.close()
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    made.produce("orders", "again")
    made.close()
    assert sorted(values(Cluster.open(str(root)), "orders")) == ["again", "parent"]


def test_threads_share_a_producer(root: Path) -> None:
    """Records of many threads, one transaction; none is lost or duplicated."""
    with Producer(config(root, "shared")) as made:
        made.init_transactions()
        made.begin_transaction()

        def work(number: int) -> None:
            for at in range(500):
                made.produce("orders", f"{number}-{at}", key=str(at))
                made.poll(0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made.commit_transaction()
    found = values(Cluster.open(str(root)), "orders")
    assert len(found) == len(set(found)) == 2_000


def test_two_threads_that_commit_at_once_commit_once(root: Path) -> None:
    """The second one waits, and finds it done; or its error names the call to make (R31, R39)."""
    with Producer(config(root, "twice")) as made:
        made.init_transactions()
        for number in range(20):
            made.begin_transaction()
            made.produce("orders", str(number))

            def commit() -> None:
                with suppress(InvalidTxnStateError):
                    made.commit_transaction()

            threads = [threading.Thread(target=commit) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(values(Cluster.open(str(root)), "orders")) == 20
