"""The metrics of a root: right, cheap, and at any address."""

from __future__ import annotations

import builtins
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.runner import PROJECT, Command
from tests.monitoring.worlds import busy, values
from tests.verify.roots import commit_file, commits, halve
from tests.why.worlds import Disk
from tests.world import faults, process, world
from txnlog.admin import ProblemKind
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.messages import TopicPartition
from txnlog.monitoring import RootCollector, prometheus
from txnlog.monitoring.exporter import READ_MS_MIN
from txnlog.monitoring.prometheus import MetricsServer
from txnlog.testing.faults import Fault, no_faults
from txnlog.testing.rounds import RoundsStore
from txnlog.text import printable

EVIL = 'g\n"}\x1b[31m\\ \u2028txnlog_up 0'


def test_metrics_say_what_the_root_has(tmp_path: Path) -> None:
    """Lag in records and seconds, what an open transaction holds back, ids, problems, upkeep."""
    disk = busy(tmp_path / "lake")
    found = values(RootCollector(disk.operator))
    assert found["up"] == {(): 1}
    orders, stock = ("orders", "0"), ("stock", "0")
    assert found["topic_partition_high_watermark"] == {orders: 4, stock: 2}
    assert found["topic_partition_last_stable_offset"] == {orders: 4, stock: 1}
    assert found["topic_partition_last_stable_offset_lag"] == {orders: 0, stock: 1}
    assert found["topic_partition_start_offset"] == {orders: 0, stock: 0}
    assert found["topic_partition_files"] == {orders: 2, stock: 2}
    sizes = {
        (name, "0"): sum(path.stat().st_size for path in (disk.folder / name).glob("*.parquet"))
        for name in ("orders", "stock")
    }
    assert found["topic_partition_size_bytes"] == sizes
    assert found["group_offset"] == {("readers", *orders): 1}
    assert found["group_lag_records"] == {("readers", *orders): 3}
    # Record 1 is a third of the way from 0 s to 20 s.
    [age_s] = found["group_lag_seconds"].values()
    assert age_s == pytest.approx(60 - 20 / 3, abs=1)
    assert found["group_state"] == {("readers", "Empty"): 1}
    ids = {state: count for (state,), count in found["transactional_ids"].items() if count}
    assert ids == {"CompleteCommit": 2, "Ongoing": 1}
    assert found["oldest_open_transaction_age_seconds"][()] == pytest.approx(60, abs=1)
    problems = {kind: count for (kind,), count in found["problems"].items() if count}
    assert problems == {one.kind.value: 1.0 for one in disk.problems()}
    assert len(found["problems"]) == len(ProblemKind)
    assert found["housekeeping_held"] == {(): 1}
    # Files have the times of the machine, whose clock has not moved.
    assert found["housekeeping_lease_renewed_age_seconds"][()] == pytest.approx(80, abs=5)
    assert found["disk_free_bytes"][()] > 0


def test_a_group_at_the_end_is_no_second_behind(tmp_path: Path) -> None:
    """However long ago the last record was written."""
    disk = busy(tmp_path / "lake")
    reader = disk.consumer("quick")
    reader.subscribe(["orders"])
    assert len(reader.consume(4, timeout=600)) == 4
    reader.commit(asynchronous=False)
    found = values(RootCollector(disk.operator))
    key = ("quick", "orders", "0")
    assert found["group_lag_records"][key] == found["group_lag_seconds"][key] == 0
    assert found["group_members"][("quick",)] == 1
    reader.close()


@pytest.mark.parametrize("topics", [2, 20])
def test_scrapes_cost_what_one_consumer_costs(topics: int) -> None:
    """A tail per table and ten seconds, however often anybody asks."""
    shared = world([f"t{number}" for number in range(topics)])
    store = RoundsStore(shared)
    collector = RootCollector(Cluster.open(store))
    registry = CollectorRegistry()
    registry.register(collector)
    assert store.calls == [] or not any(path.startswith("t0") for _, path in store.calls)
    generate_latest(registry)
    shared.clock.advance_ms(READ_MS_MIN - 1)
    store.calls.clear()
    generate_latest(registry)
    assert store.calls == []
    shared.clock.advance_ms(1)
    generate_latest(registry)
    assert 0 < len(store.calls) <= topics + 8


def test_root_that_cannot_be_read_is_down_and_comes_back() -> None:
    """No numbers are better than those of an hour ago."""
    shared = world()
    cluster = process(shared)
    collector = RootCollector(cluster)
    assert values(collector)["up"] == {(): 1}
    shared.clock.advance_ms(READ_MS_MIN)
    faults(cluster).plan = lambda verb, path: Fault.FAIL_BEFORE
    assert values(collector) == {"up": {(): 0}}
    faults(cluster).plan = no_faults
    shared.clock.advance_ms(READ_MS_MIN)
    assert values(collector)["up"] == {(): 1}


def test_damaged_topic_is_a_problem_and_hides_no_other(tmp_path: Path) -> None:
    """One bad table must not blind the operator."""
    disk = busy(tmp_path / "lake")
    halve(commit_file(str(disk.folder), "stock", commits(str(disk.folder), "stock")[-1]))
    found = values(RootCollector(disk.process()))
    assert found["problems"][("damage",)] == 1
    assert set(found["topic_partition_files"]) == {("orders", "0")}


def test_deleted_topic_leaves_no_metrics(tmp_path: Path) -> None:
    """Series of what is gone would alert for ever."""
    disk = busy(tmp_path / "lake")
    collector = RootCollector(disk.operator)
    assert ("orders", "0") in values(collector)["topic_partition_files"]
    disk.process().delete_topic("orders")
    disk.later(READ_MS_MIN)
    found = values(collector)
    assert set(found["topic_partition_files"]) == {("stock", "0")}
    assert found["group_lag_records"] == {}


def with_groups(folder: Path, *names: str) -> Disk:
    disk = Disk(folder / "lake")
    for name in names:
        with disk.consumer(name) as reader:
            reader.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    return disk


def test_hostile_names_forge_no_line(tmp_path: Path) -> None:
    """Any client chooses its group."""
    cluster = with_groups(tmp_path, EVIL).process()
    registry = CollectorRegistry()
    registry.register(RootCollector(cluster))
    text = generate_latest(registry).decode()
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line.startswith("txnlog_up")] == ["txnlog_up 1.0"]
    groups = {
        sample.labels["group"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "group" in sample.labels
    }
    assert groups == {printable(EVIL.replace("\\", "\\\\"))}


def test_a_reading_writes_for_the_store_s_clock_only() -> None:
    cluster = process(world())
    cluster.store.calls.clear()  # type: ignore[attr-defined]
    RootCollector(cluster).families()
    calls = cluster.store.calls  # type: ignore[attr-defined]
    written = [path for verb, path in calls if verb not in ("get", "head", "list")]
    assert written
    assert all(path.startswith("__cluster/_clock/") for path in written)


def test_no_group_hides_another_ones_lag(tmp_path: Path) -> None:
    """Of a line break and of its escape there are two series."""
    disk = with_groups(tmp_path, "a\nb", "a\\x0ab")
    found = values(RootCollector(disk.process()))["group_lag_records"]
    assert {group for group, *_ in found} == {"a\\\\x0ab", "a\\x0ab"}


# --- The command ----------------------------------------------------------------------------------


def test_command_prints_them_once(tmp_path: Path) -> None:
    """For a look, for cron and node_exporter's text files; as JSON for other programs."""
    command = Command(tmp_path)
    command.cluster().create_topic("t", partitions=1)
    text = command.ok("metrics")
    families = {family.name for family in text_string_to_metric_families(text)}
    found = command.json("metrics")
    assert {one["name"] for one in found} <= families
    [files] = [one for one in found if one["name"] == "txnlog_topic_partition_files"]
    assert files == {
        "name": "txnlog_topic_partition_files",
        "labels": {"topic": "t", "partition": "0"},
        "value": 0.0,
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_command_serves_them_where_it_is_told_until_sigterm(tmp_path: Path, address: str) -> None:
    """Loopback, or all of the machine's addresses: the operator's choice."""
    command = Command(tmp_path)
    command.cluster()
    argv = [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, "metrics"]
    with subprocess.Popen(
        [*argv, "--listen", f"{address}:0"], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        [url] = re.findall(r"http://\S+/metrics", line)
        assert address in url
        with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1")) as page:
            assert b"txnlog_up 1.0" in page.read()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait() == 0


@pytest.mark.parametrize("listen", ["9401", ":9401", "::1:9401", "localhost", "a:b", "[::1]", ""])
def test_mistyped_address_is_wrong_usage(tmp_path: Path, listen: str) -> None:
    """An empty address means all of them to some programs, and loopback to others."""
    command = Command(tmp_path)
    command.cluster()
    assert command.run("metrics", "--listen", listen).exit_code == 2


def test_address_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    """A port in use, another machine's address, a number that no port has."""
    command = Command(tmp_path)
    command.cluster()
    with MetricsServer(CollectorRegistry(), "127.0.0.1", 0) as other:
        for listen in (f"127.0.0.1:{other.port}", "192.0.2.1:9401", "127.0.0.1:99999"):
            assert "Cannot listen at" in command.fails("metrics", "--listen", listen)


def test_connection_that_says_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each has a thread, in a Spark driver too, and whoever reaches the address may open them."""
    monkeypatch.setattr(prometheus, "SILENT_S", 0.1)
    with MetricsServer(CollectorRegistry(), "127.0.0.1", 0) as server:
        for said in (b"", b"GET /metr"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
                silent.sendall(said)
                assert silent.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra."""
    command = Command(tmp_path)
    command.cluster()
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "prometheus_client":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"install txnlog\[prometheus\]"):
        RootCollector(command.cluster())
    assert "install txnlog[prometheus]" in command.fails("metrics")
