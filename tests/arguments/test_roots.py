"""Every client rejects a relative root with the same message, and creates nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpoint import store_url
from spark_sink.listener import TxnLogListener
from spark_source.sql import (
    _reads,
    _table_path,
    create_views,
    read_committed,
    read_uncommitted,
)
from txnlog.admin import AdminClient, NewTopic
from txnlog.cli.app import app
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import ConfigError, FolderNotFoundError, NotCoordinatorError
from txnlog.messages import TopicPartition
from txnlog.process.caches import normal_url
from txnlog.producer import Producer
from txnlog.settings.config import parse_config
from txnlog.settings.roots import redacted_url

# Only the check of the root runs: the code after it needs a session.
NO_SPARK: Any = None
CLIENTS: dict[str, Callable[[Any], object]] = {
    "Producer": lambda root: Producer({"txnlog.root": root}),
    "Producer, path": lambda root: Producer({"path": root}),
    "Consumer": lambda root: Consumer({"txnlog.root": root}),
    "AdminClient": lambda root: AdminClient({"txnlog.root": root}),
    "Cluster.open": lambda root: Cluster.open(root, create=True),
    "Cluster.cached": lambda root: Cluster.cached(root, create=True),
    "read_committed": lambda root: read_committed(NO_SPARK, root, "t"),
    "read_uncommitted": lambda root: read_uncommitted(NO_SPARK, root, "t"),
    "create_views": lambda root: create_views(NO_SPARK, root),
    "TxnLogListener": lambda root: TxnLogListener(root),
}
TEXTS = (
    "data", "./data", "../data", "~", "~/data", "", "  ", "file:data", "data:/x y"[:4], "C:\\data",
    "a b:/data", "./x:/y", "s3:bucket", "/tmp/\0", "/tmp/\ud800", "/tmp/a\n", "\r/tmp/a",
    "/tmp/a\tb", "file:///tmp/a\n", "/tmp/\x7f", "/tmp/\x85",
)  # fmt: skip
OTHERS = (b"/tmp/data", bytearray(b"/tmp"), 5, 5.0, True, ["/tmp"], object(), Path("data"))


@pytest.mark.parametrize("root", [*TEXTS, *OTHERS])
@pytest.mark.parametrize("client", CLIENTS)
def test_root_that_is_not_absolute_is_refused(
    client: str, root: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process would create its own cluster, below its working folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="(?i)root"):
        CLIENTS[client](root)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", [root for root in TEXTS if root.strip()])
def test_relative_root_in_spark_options_has_the_same_message(root: str) -> None:
    """All clients share one check."""
    told = []
    for parse in (
        lambda: parse_config({"path": root}, "read"),
        lambda: parse_config({"txnlog.root": root}, "producer"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse()
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_root_none_means_not_set() -> None:
    """As for any other setting that is None."""
    for client in (Producer, Consumer, AdminClient):
        with pytest.raises(ConfigError, match="root is missing"):
            client({"txnlog.root": None})
    with pytest.raises(ConfigError, match="no servers: bootstrap.servers has no effect.*missing"):
        Producer({"bootstrap.servers": "localhost:9092"})
    assert parse_config({"path": None, "txnlog.root": "/a"}, "admin").root == "/a"


COMMANDS = (
    ["topics", "create", "--topic", "t"], ["topics", "list"], ["produce", "--topic", "t"],
    ["consume", "--topic", "t", "--timeout-ms", "1"], ["groups", "list"], ["transactions", "list"],
    ["offsets"], ["housekeeping", "--once"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("line", "variable"),
    [("~/data", ""), (" ", ""), ("data:x", ""), ("s3//u:p@b", ""), (None, "data")],
)
def test_command_refuses_a_root_that_is_no_path_of_the_line(
    command: list[str],
    line: str | None,
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shell expands ~, except within quotes and after `--root=`; a variable outlives a cd."""
    monkeypatch.chdir(tmp_path)
    args = [] if line is None else ["--root", line]
    found = CliRunner().invoke(app, [*args, *command], input="", env={"TXNLOG_ROOT": variable})
    assert found.exit_code == 1
    assert re.fullmatch("txnlog: .*[Rr]oot .*\n", found.output)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["lake", "./lake", "deeper/../lake", "../here/lake", "lake/"])
def test_relative_root_on_the_line_is_one_of_the_working_directory(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People type --root lake; every other command with a path takes it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for args in (["topics", "create", "-t", "t"], ["produce", "-t", "t"], ["verify"]):
        found = CliRunner().invoke(app, [*args, "--root", root], input="a\n")
        assert found.exit_code == 0, found.output
    assert os.listdir(tmp_path / "here") == ["lake"]
    assert Cluster.open(str(tmp_path / "here" / "lake")).list_topics() == ["t"]


def test_secrets_of_a_wrong_root_are_not_shown() -> None:
    """The message may be logged (R67)."""
    for root in (
        "x s3://user:hunter2@bucket/x", "s3://user:hunter2@b/\0", b"s3://u:hunter2@b/",
        "s3://b@c/x?key=\nhunter2",
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            parse_config({"txnlog.root": root}, "producer")
        assert "hunter2" not in str(caught.value)


def test_absolute_roots_are_accepted(tmp_path: Path) -> None:
    """As a string and as a path, with and without file:."""
    admin = AdminClient({"txnlog.root": tmp_path / "a"})
    admin.create_topics([NewTopic("t", 1)])["t"].result()
    for root in (f"{tmp_path}/a", f"file://{tmp_path}/a", f" {tmp_path}/a ", tmp_path / "a"):
        assert Cluster.open(root).list_topics() == ["t"]  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["a"]


# --- Folders with any name ------------------------------------------------------------------------

NAMES = (
    "a#1",
    "a?b=c",
    "a%20b",
    "a b",
    "a%",
    "#",
    "?",
    "ä日本",
    "a\\b",
    "a:b",
    "a@b",
    "[a]",
    "a//b",
)


@pytest.fixture(params=NAMES)
def odd_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root whose name a URL would need escapes for; beside it cluster `a`, with topic `other`."""
    _create(f"{tmp_path}/a", "other")
    return f"{tmp_path}/{request.param}"


def _create(root: str, topic: str) -> None:
    AdminClient({"txnlog.root": root}).create_topics([NewTopic(topic, 1)])[topic].result()


def test_clients_use_the_same_folder_whatever_its_name(odd_root: str, tmp_path: Path) -> None:
    """The URL of `a#1` was read as folder `a`: the first topic could not be created."""
    _create(odd_root, "t")
    url = Cluster.open(odd_root).root
    assert url == f"file://{os.path.abspath(odd_root)}"
    for root in (odd_root, Path(odd_root), url):
        with Producer({"txnlog.root": root}) as producer:
            producer.produce("t", "v")
        with Consumer(
            {"txnlog.root": root, "group.id": str(root), "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.assign([TopicPartition("t", 0, 0)])
            assert consumer.consume(1, 10)[0].value() == b"v"
            consumer.commit(asynchronous=False)
        admin = AdminClient({"txnlog.root": root})
        assert sorted(admin.list_topics().topics) == ["t"]
        assert not admin.verify().result().is_damaged
        assert Cluster.cached(root) is Cluster.cached(odd_root)  # type: ignore[arg-type]
    assert Cluster.open(f"{tmp_path}/a").list_topics() == ["other"]
    assert Cluster.open(odd_root).topic("t").view.high_watermark(0) == 3


def test_another_cluster_in_place_of_the_first_is_noticed_whatever_its_name(
    odd_root: str, tmp_path: Path
) -> None:
    """The id was compared with that of the cluster in another folder."""
    _create(odd_root, "t")
    cluster = Cluster.open(odd_root)
    os.rename(odd_root, tmp_path / "former")
    with pytest.raises(FolderNotFoundError):
        cluster.create_topic("late")
    _create(odd_root, "new")
    with pytest.raises(NotCoordinatorError):
        cluster.create_topic("late")
    os.rename(odd_root, tmp_path / "later")
    os.rename(tmp_path / "former", odd_root)
    assert cluster.create_topic("late").exists
    assert Cluster.open(f"{tmp_path}/later").list_topics() == ["new"]


def test_commands_use_the_same_folder_whatever_its_name(odd_root: str) -> None:
    """Each command is a process of its own, which opens the root again."""
    for args, lines in (
        (["topics", "create", "--topic", "t"], ""),
        (["produce", "--topic", "t"], "a\nb\n"),
        (["consume", "--topic", "t", "--group", "g", "--from-beginning", "-n", "2"], ""),
        (["housekeeping", "--once"], ""),
        (["verify"], ""),
    ):
        found = CliRunner().invoke(app, ["--root", odd_root, *args], input=lines)
        assert found.exit_code == 0, found.output
    assert Cluster.open(odd_root).list_topics() == ["t"]


def test_spark_gets_the_path_of_the_same_folder(odd_root: str) -> None:
    """Hadoop takes the path after file:// literally; so do checkpoints, which it names."""
    _create(odd_root, "t")
    folder = os.path.abspath(odd_root)
    for root in (odd_root, f"file://{folder}"):
        assert normal_url(parse_config({"path": root}, "read").root) == folder
        reads = _reads(NO_SPARK, root, None, None, include_headers=False)
        assert _table_path(reads, "t") == f"file://{folder}/t"
        for scheme in ("file:", "file://", ""):
            assert store_url(f"{scheme}{folder}/_checkpoint") == f"{folder}/_checkpoint"
        assert redacted_url(f"file://{folder}") == f"file://{folder}"
