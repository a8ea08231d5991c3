"""Clients in a child of os.fork(): refused, never waiting for a lock of the parent's threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txnlog.admin import AdminClient, NewTopic
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import ForkedProcessError
from txnlog.messages import TopicPartition
from txnlog.process import forking
from txnlog.storage.store.objects import ObjectStore

WAIT_S = 600

_PROGRAM = """
import faulthandler, gc, multiprocessing, os, sys, threading
from txnlog.admin import AdminClient
from txnlog.consumer import Consumer
from txnlog.errors import ForkedProcessError
from txnlog.messages import TopicPartition
from txnlog.producer import Producer

root, how = {"txnlog.root": sys.argv[1]}, sys.argv[2]
PARENT = os.getpid()
HELD_S = 60

def told(text):
    print("child" if os.getpid() != PARENT else "parent", text, flush=True)

def revoked(consumer, partitions):
    told("revoked")

made = Producer({**root, "transactional.id": "t"})
made.init_transactions()
made.begin_transaction()
made.produce("orders", "in the transaction")
plain = Producer({**root, "linger.ms": 60_000})
reader = Consumer({**root, "group.id": "g", "auto.offset.reset": "earliest"})
reader.subscribe(["orders"], on_revoke=revoked, on_lost=revoked)
plain.produce("orders", "0")
plain.produce("orders", "1")
plain.flush()
assert reader.poll(60).value() == b"0"

# Threads of the parent hold every lock while it forks, as if each were in the midst of its work.
begun, done = [], threading.Event()

def hold(lock):
    lock.acquire()
    begun.append(lock)
    done.wait(HELD_S)
    lock.release()

def held(objects):
    kinds = (type(threading.Lock()), type(threading.RLock()))
    for one in objects:
        yield from (each for each in vars(one).values() if isinstance(each, kinds))

admin = AdminClient(dict(root))
admin.describe_cluster().result()
session = reader._opened._session
objects = [session._background._jobs, admin.cluster]
for producer in (made, plain):
    objects += [producer._sender, producer._accumulator, producer._deliveries]
locks = [reader._turn.lock, admin._lock, *held(objects)]
assert len(locks) >= 8, locks
for lock in locks:
    threading.Thread(target=hold, args=(lock,), daemon=True).start()
while len(begun) < len(locks):
    pass

CALLS = {
    "refused": [
        lambda: made.produce("orders", "child"), lambda: made.poll(0), lambda: made.flush(),
        lambda: made.commit_transaction(), lambda: made.abort_transaction(),
        lambda: plain.produce("orders", "child"), lambda: plain.list_topics(),
        lambda: reader.poll(0), lambda: reader.consume(1, 0), lambda: reader.commit(),
        lambda: reader.unsubscribe(), lambda: reader.assignment(),
        lambda: reader.consumer_group_metadata(), lambda: admin.describe_cluster().result(),
        lambda: admin.list_topics(), lambda: admin.describe_topics(["orders"])["orders"].result(),
        lambda: admin.list_consumer_groups().result(),
    ],
    "closed": [],
}

def child():
    global made, plain, reader, admin, producer
    faulthandler.dump_traceback_later(HELD_S / 2, exit=True)
    for call in CALLS.get(how, ()):
        try:
            told(f"got {call()!r}")
        except ForkedProcessError:
            pass
    if how == "closed":
        assert len(made) == len(plain) == 0
        made.close(), plain.close(), reader.close()
    if how == "dropped":
        made = plain = reader = producer = admin = None
        objects.clear()
        gc.collect()

if how == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    told(f"saw {process.exitcode}")
else:
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    told(f"saw {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
done.set()
assert reader.poll(60).value() == b"1"
made.commit_transaction()
reader.close()
"""


@pytest.mark.parametrize("how", ["untouched", "refused", "closed", "dropped", "multiprocessing"])
def test_forked_child_neither_hangs_nor_does_anything_and_its_parent_continues(
    tmp_path: Path, how: str
) -> None:
    """Whatever the child does with its parent's clients, and however it ends (R39)."""
    root = str(tmp_path / "root")
    admin = AdminClient({"txnlog.root": root})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, root, how],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert done.stdout.splitlines() == ["parent saw 0", "parent revoked"], done.stderr
    assert "were not sent" not in done.stderr
    with Consumer({"txnlog.root": root, "auto.offset.reset": "earliest"}) as reader:
        reader.assign([TopicPartition("orders", 0)])
        found = [message.value() for message in reader.consume(3, 60)]
    assert found == [b"0", b"1", b"in the transaction"]
    assert Cluster.open(root).groups.describe("g").members == {}  # type: ignore[union-attr]


_NEW_CLIENTS = """
import faulthandler, os, sys, threading, time
from txnlog import AdminClient, Consumer, NewTopic, Producer
from txnlog.errors import ForkedProcessError

faulthandler.dump_traceback_later(300, exit=True)
root = {"txnlog.root": sys.argv[1]}
group = {**root, "group.id": "g", "auto.offset.reset": "earliest", "heartbeat.interval.ms": 1}

def copy(name, count):
    \"\"\"Copy so many records of `orders` in transactions, as large files, too.\"\"\"
    with Consumer(group) as reader, Producer({**root, "transactional.id": name}) as made:
        made.init_transactions()
        reader.subscribe(["orders"])
        while count > 0:
            with made.transaction():
                for message in reader.consume(timeout=60):
                    made.produce("copies", message.value(), partition=0)
                    count -= 1
                ends = reader.position(reader.assignment())
                made.send_offsets_to_transaction(ends, reader.consumer_group_metadata())

def produce(count, start=0):
    with Producer({**root, "linger.ms": 0}) as made:
        for number in range(start, start + count):
            made.produce("orders", f"{number:06}" + os.urandom(500).hex())

old = Producer(root)
produce(2_000)
copy("parent", 2_000)
keeps = Consumer(group)
keeps.subscribe(["orders"])
keeps.poll(0.2)
pid = os.fork()
if pid == 0:
    try:
        old.flush()
    except ForkedProcessError as error:
        assert "Make a new one in this process" in str(error), error
    topics = AdminClient(root).list_topics().topics
    assert {"orders", "copies"} <= set(topics), topics
    produce(2_000, 2_000)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
keeps.close()
pid = os.fork()
if pid == 0:
    copy("child", 2_000)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_uses_new_clients_on_a_local_disk(tmp_path: Path) -> None:
    """Every one was refused, whatever the child did: where the parent had used no object store,
    no thread of a library is missing."""
    root = str(tmp_path / "root")
    admin = AdminClient({"txnlog.root": root})
    for name in ("orders", "copies"):
        admin.create_topics([NewTopic(name, 1)])[name].result()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _NEW_CLIENTS, root],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        timeout=WAIT_S,
        check=True,
    )
    with Consumer({"txnlog.root": root, "auto.offset.reset": "earliest"}) as reader:
        reader.assign([TopicPartition("copies", 0)])
        found = [(message.value() or b"")[:6] for message in reader.consume(4_000, 60)]
    assert found == [b"%06d" % number for number in range(4_000)]


def test_forked_child_of_a_parent_that_used_an_object_store_is_told_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The threads of its library are not there: a call would hang. A local disk needs none."""
    monkeypatch.setattr(forking, "_parent_used_store", True)
    for url in ("s3://bucket/root", "memory://"):
        with pytest.raises(ForkedProcessError, match="make the clients in each worker"):
            ObjectStore.from_url(url)


def test_consumer_that_was_not_used_before_the_fork_is_used_in_the_child(tmp_path: Path) -> None:
    """Its constructor opens nothing: so does a server that makes its clients before it forks."""
    program = (
        "import os, sys\n"
        "from txnlog.consumer import Consumer\n"
        'made = Consumer({"txnlog.root": sys.argv[1], "group.id": "g"})\n'
        "if os.fork() == 0:\n"
        '    made.subscribe(["orders"])\n'
        "    made.poll(0)\n"
        "    made.close()\n"
        "else:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    root = str(tmp_path / "root")
    Cluster.open(root, create=True).create_topic("orders", partitions=1)
    subprocess.run(
        [sys.executable, "-c", program, root],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        timeout=WAIT_S,
        check=True,
    )
