"""Power cuts on a real ext4, on a loop device: what was acknowledged is there (D26).

A cut is a copy of the device's file while it is mounted and its writers are stopped; the copy is
mounted elsewhere, which replays its journal, as a machine does that starts again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnlog.admin import AdminClient, NewTopic
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.verifying.report import VerifySettings

pytestmark = [pytest.mark.soak, pytest.mark.slow]

PROJECT = Path(__file__).resolve().parents[2]
SIZE_BYTES = 96 << 20
COPIES_MAX = 20
COMMITS_MAX = 50_000
"""More than a consumer commits while a test runs."""
JOURNAL_S = 7
"""ext4 commits its journal every 5 s: names come to the disk before the bytes of their files."""

# It pauses between transactions: where a test takes long, it would fill the device.
WRITER = """
import itertools, sys, time
from txnlog import Producer
producer = Producer({"txnlog.root": sys.argv[1], "transactional.id": "t"})
producer.init_transactions()
for number in itertools.count():
    with producer.transaction():
        producer.produce("a", str(number), partition=0)
    print(number, flush=True)
    time.sleep(0.01)
"""
COMMITTER = """
import itertools, sys
from txnlog import Consumer
from txnlog.messages import TopicPartition
consumer = Consumer({"txnlog.root": sys.argv[1], "group.id": "g"})
for number in itertools.count():
    consumer.commit(offsets=[TopicPartition("in", 0, number)], asynchronous=False)
    print(number, flush=True)
"""


class Device:
    """An ext4 in a file, and a second place where copies of it are mounted."""

    def __init__(self, folder: Path) -> None:
        self._image, self._copy = folder / "image", folder / "copy"
        self.here, self.after = folder / "here", folder / "after"

    def make(self) -> None:
        with open(self._image, "wb") as file:
            file.truncate(SIZE_BYTES)
        for place in (self.here, self.after):
            place.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
        self._mount(self._image, self.here)

    def cut(self) -> str:
        """The root as it is after a power cut now."""
        for _ in range(COPIES_MAX):
            shutil.copyfile(self._image, self._copy)
            if self._copy.read_bytes() == self._image.read_bytes():
                self._mount(self._copy, self.after)
                return str(self.after / "root")
        raise AssertionError("the device is written to without end")

    def remove(self) -> None:
        for place in (self.after, self.here):
            subprocess.run(["umount", str(place)], capture_output=True)

    def _mount(self, image: Path, place: Path) -> None:
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.delenv("TXNLOG_FSYNC")
    device = Device(tmp_path)
    try:
        device.make()
    except (OSError, subprocess.CalledProcessError) as error:
        device.remove()
        pytest.skip(f"needs root, mkfs.ext4 and loop devices: {error}")
    yield device
    device.remove()


def start(program: str, root: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, root],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def acknowledged(process: subprocess.Popen[str]) -> int:
    """The last number that the stopped process has printed; it is killed."""
    process.kill()
    written, _ = process.communicate()
    return int(written.split()[-1])


def records(root: str) -> list[int]:
    consumer = Consumer({"txnlog.root": root})
    consumer.assign([TopicPartition("a", 0, 0)])
    found: list[int] = []
    while messages := consumer.consume(500, 2.0):
        found += [int(message.value() or b"-1") for message in messages]
    consumer.close()
    return found


def check_clean(root: str) -> None:
    found = AdminClient({"txnlog.root": root}).verify(VerifySettings(deep=True)).result()
    assert not found.is_damaged, found.findings.kept
    assert found.is_complete


@pytest.mark.parametrize("wait_s", [0, JOURNAL_S])
def test_power_cut_takes_nothing_that_was_acknowledged(device: Device, wait_s: int) -> None:
    """Producers and a group's consumer, none of which was told anything about fsync."""
    root = str(device.here / "root")
    with Producer({"txnlog.root": root}) as producer:
        for _ in range(COMMITS_MAX):
            producer.produce("in", "", partition=0)
    processes = [start(WRITER, root), start(COMMITTER, root)]
    time.sleep(6)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(wait_s)
    after = device.cut()
    written, committed = (acknowledged(process) for process in processes)
    found = records(after)
    assert found == list(range(len(found)))
    assert len(found) > written > 0
    consumer = Consumer({"txnlog.root": after, "group.id": "g"})
    [offset] = consumer.committed([TopicPartition("in", 0)])
    assert offset.offset >= committed > 0
    consumer.close()
    check_clean(after)


def test_power_cut_during_a_change_of_the_root(device: Device) -> None:
    """From the end of the command on, what a process acknowledges survives that runs all the time;
    and so does all that is below it.
    """
    root = str(device.here / "root")
    admin = AdminClient({"txnlog.root": root, "storage.fsync": "false"})
    admin.create_topics([NewTopic("a", 1)])["a"].result()
    process = start(WRITER, root)
    time.sleep(3)
    command = ["configs", "alter", "--entity-type", "brokers", "--add-config", "storage.fsync=true"]
    subprocess.run(
        [sys.executable, "-c", "from txnlog.cli.main import run; run()", "--root", root, *command],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=True,
    )
    time.sleep(1)
    process.send_signal(signal.SIGSTOP)
    after = device.cut()
    written = acknowledged(process)
    found = records(after)
    assert found == list(range(len(found)))
    assert len(found) > written > 0
    check_clean(after)


def test_power_cut_after_a_clean_up_without_fsync(device: Device) -> None:
    """The deletions were on the disk, and the checkpoint in the place of the commits was empty."""
    root = str(device.here / "root")
    with Producer(
        {"txnlog.root": root, "storage.fsync": "false", "transactional.id": "t"}
    ) as producer:
        producer.init_transactions()
        for number in range(14):
            with producer.transaction():
                producer.produce("a", str(number), partition=0)
    os.sync()
    old_s = time.time() - 2 * 86_400
    for at, _, names in os.walk(root):
        for name in names:
            os.utime(os.path.join(at, name), (old_s, old_s))
    clean_up = (
        "import sys; from txnlog.cluster import Cluster; from txnlog.storage.delta.log_cleanup "
        "import checkpoint_and_clean_up as run; cluster = Cluster.open(sys.argv[1]); "
        "log = cluster.topic('a').log; "
        "print(run(cluster.store, 'a', log.settings, now_ms=cluster.store.now_ms()))"
    )
    with start(clean_up, root) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) > 10
    time.sleep(JOURNAL_S)
    assert records(device.cut()) == list(range(14))
