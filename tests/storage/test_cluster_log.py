"""The cluster's log: created once, refused if it is newer, producer ids assigned once."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from txnlog.admin import AdminClient, NewTopic
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConfigError,
    InvalidTopicError,
    NotCoordinatorError,
    StorageError,
    UnsupportedProtocolError,
)
from txnlog.producer import Producer
from txnlog.storage.delta.actions import Metadata
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import PRODUCER_ID_BLOCK, ClusterLog
from txnlog.storage.tables.schemas import create_actions
from txnlog.testing.faults import Fault, SharedMemory

OFF = LogSettings(checkpoint_mode="off")


def opened(store: ObjectStore, *, create: bool = True, shards: int = 3) -> ClusterLog:
    log = ClusterLog(store, settings=OFF)
    log.open(create=create, shards=shards)
    return log


def test_open_of_nothing_is_refused_and_writes_nothing(store: ObjectStore) -> None:
    """A misspelt path must not become an empty cluster."""
    with pytest.raises(ConfigError, match="no txnlog cluster"):
        opened(store, create=False)
    assert store.list("") == []


def test_number_of_shards_is_written_once(store: ObjectStore) -> None:
    """An id's shard must be the same for every process, whatever its argument."""
    first = opened(store, shards=3)
    second = opened(store, shards=50)
    assert (second.shards, second.cluster_id) == (3, first.cluster_id)


def test_number_of_shards_is_a_setting_of_the_process_that_creates_the_cluster(
    tmp_path: Path,
) -> None:
    """Kafka's transaction.state.log.num.partitions; it does not change afterwards."""
    for folder, client in [("a", AdminClient), ("b", Producer)]:
        root = str(tmp_path / folder)
        for shards in (3, 5):
            made = client({"txnlog.root": root, "transaction.state.log.num.partitions": shards})
            if isinstance(made, AdminClient):
                made.create_topics([NewTopic(f"t{shards}", 1)])[f"t{shards}"].result()
            else:
                made.close()
        assert Cluster.open(root).shards == 3


def test_shard_of_another_cluster_is_refused(store: ObjectStore) -> None:
    """A root that was created again has other ids, and maybe another number of shards (R71)."""
    before = Cluster.open(store, create=True, shards=4)
    for meta in store.list(""):
        store.delete([meta.path])
    stranger = Cluster(store)
    stranger._meta = before._meta
    Cluster.open(store, create=True, shards=2).shard(1)
    with pytest.raises(NotCoordinatorError, match="Open it again") as refused:
        stranger.shard(1)
    assert (refused.value.code, refused.value.fatal) == (16, True)


@pytest.mark.parametrize("format_version", ["1", "4", "99", "", "x"])
def test_open_of_another_format_is_refused(store: ObjectStore, format_version: str) -> None:
    """The meaning of a newer version is unknown (R38), an older one's is forgotten."""

    class Nothing:
        def reset(self) -> None: ...

        def parse(self, commit: object) -> None: ...

        def apply(self, parsed: object) -> None: ...

    log = DeltaLog(store, "__cluster", Nothing(), settings=OFF)
    log.refresh()
    actions = create_actions(
        table_id="id",
        data_columns={},
        partition_columns={},
        config={"format": format_version},
        created_ms=0,
    )
    assert isinstance(actions[1], Metadata)
    log.commit(actions, operation="CREATE CLUSTER")
    advice = "only the txnlog that made" if format_version in ("1", "4") else "upgrade txnlog"
    with pytest.raises(UnsupportedProtocolError, match=f"format '{format_version}'.*{advice}"):
        opened(store)


def test_producer_ids_of_many_processes_never_repeat(store: ObjectStore) -> None:
    """Two producers of one id would overwrite each other's sequences (R10)."""
    processes = [opened(store) for _ in range(4)]
    given = [processes[n % 4].next_producer_id() for n in range(PRODUCER_ID_BLOCK * 5)]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LAND_LATE, Fault.SAY_EXISTS])
def test_producer_id_block_of_an_unknown_commit_is_never_shared(fault: Fault) -> None:
    """A block whose commit ended unknown may be lost, never shared (R10, R63)."""
    shared = SharedMemory()
    opened(shared.open())
    given: list[int] = []
    for number in range(12):
        store = shared.open()
        log = opened(store)
        store.plan = lambda verb, path, s=store, n=number: (
            fault if len(s.calls) % 12 == n else Fault.NONE
        )
        try:
            given.append(log.next_producer_id())
        except StorageError:
            continue
        finally:
            shared.land_late()
        store.plan = lambda verb, path: Fault.NONE
        given.append(opened(shared.open()).next_producer_id())
    assert len(given) > 10
    assert len(set(given)) == len(given)


def draw(root: str) -> list[int]:
    log = opened(ObjectStore.from_url(root))
    return [log.next_producer_id() for _ in range(PRODUCER_ID_BLOCK + 10)]


def test_producer_ids_of_racing_processes_never_repeat(tmp_path: Path) -> None:
    """Four real processes, no coordination but the log (R10, R62)."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4).wait
    with ProcessPoolExecutor(4, mp_context=context, initializer=together) as pool:
        given = [number for drawn in pool.map(draw, [str(tmp_path)] * 4) for number in drawn]
    assert len(set(given)) == len(given) == 4 * (PRODUCER_ID_BLOCK + 10)


def test_internal_topic_is_refused_even_after_it_was_opened_inside() -> None:
    """A cached handle must not give users access to internal topics (R64)."""
    cluster = Cluster.open(SharedMemory().open(), create=True, settings=OFF)
    cluster.topic_log("__audit", internal=True)
    for call in (cluster.topic, cluster.topic_log, cluster.create_topic, cluster.delete_topic):
        with pytest.raises(InvalidTopicError, match="internal"):
            call("__audit")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "ü", "x" * 250, "a\n", "@"])
def test_topic_names_that_leave_the_root_are_refused(name: str) -> None:
    """A topic's name becomes a path (R64)."""
    cluster = Cluster.open(SharedMemory().open(), create=True, settings=OFF)
    for call in (cluster.topic, cluster.topic_log, cluster.create_topic, cluster.delete_topic):
        with pytest.raises(InvalidTopicError):
            call(name)
