"""A temporary Kafka broker on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

# Filled by `conf/setup_env.py peers`, from the pom beside this file.
JARS = Path(sys.prefix, ".peers")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
START_S = 60
STOP_S = 30
# As in Kafka's kafka-server-start.sh.
JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


_pids: dict[str, int] = {}


def broker_pid(address: str) -> int:
    """The process of the broker at an address of `kafka_broker`."""
    return _pids[address]


@contextmanager
def kafka_broker(cores: int = 2) -> Iterator[str]:
    """The address of a broker with an empty disk; it is stopped and its disk removed at the end.

    Its heap grows with the `cores` of its clients. Raises RuntimeError with the end of its output
    when it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="kafka-"))
    address, controller = (f"127.0.0.1:{port}" for port in _free_ports(2))
    properties = folder / "server.properties"
    properties.write_text(_properties(folder, address, controller))
    log = folder / "broker.log"
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as output:
            storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]
            heap_gib = max(1, cores // 4)
            format_disk = _java(heap_gib, *storage, str(properties))
            subprocess.run(format_disk, stdout=output, stderr=output)
            command = _java(heap_gib, "kafka.Kafka", str(properties))
            process = subprocess.Popen(command, stdout=output, stderr=output)
            _pids[address] = process.pid
            _wait_for(process, address, log)
        yield address
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def create_topic(address: str, topic: str, partitions: int) -> None:
    """Create it, and wait until its partitions have a leader."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(START_S)
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        found = admin.list_topics(topic, timeout=START_S).topics[topic]
        led = [one for one in found.partitions.values() if one.leader >= 0]
        if found.error is None and len(led) == partitions:
            return
        time.sleep(0.05)
    raise RuntimeError(f"topic {topic} of the broker at {address} got no leader")


def connector() -> dict[str, str]:
    """Settings of a session that has Spark's Kafka connector."""
    jars = sorted((JARS / "connector").glob("*.jar"))
    return {"spark.driver.extraClassPath": os.pathsep.join(map(str, jars))}


def peer_versions() -> dict[str, str]:
    """Versions of the peers that are not Python packages."""
    broker = next((JARS / "broker").glob("kafka_2.13-*.jar")).stem.rpartition("-")[2]
    clients = next((JARS / "connector").glob("kafka-clients-*.jar")).stem.rpartition("-")[2]
    return {
        "kafka": broker,
        "kafka-clients": clients,
        "confluent-kafka": version("confluent-kafka"),
    }


def _properties(folder: Path, address: str, controller: str) -> str:
    """A broker and controller in one process; otherwise Kafka's defaults, if one node allows."""
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{folder}/data",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Only for development, as Kafka's documentation says: no other member will join.
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _java(heap_gib: int, main: str, *arguments: str) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    heap = (f"-Xms{heap_gib}g", f"-Xmx{heap_gib}g")
    return [java, *heap, *JVM, "-cp", f"{JARS}/broker/*", main, *arguments]


def _wait_for(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait until it answers requests. Raises RuntimeError."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        host, port = address.split(":")
        with socket.socket() as probe:
            listens = probe.connect_ex((host, int(port))) == 0
        if listens and admin.list_topics(timeout=START_S).brokers:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the Kafka broker did not start:\n{log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process: SIGTERM, then SIGKILL."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
