"""Clones on a local disk: the same files by other names, and each root its own life."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.tables import rows
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.producer import Producer
from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying.report import VerifySettings

TOPICS = tuple(f"t{number}" for number in range(100))
COMPACTED = {"min.compaction.lag.ms": "0"}


def fill(root: str, topics: tuple[str, ...], rounds: int) -> None:
    with Producer({"txnlog.root": root, "transactional.id": "filler"}) as producer:
        producer.init_transactions()
        for _ in range(rounds):
            producer.begin_transaction()
            for topic in topics:
                producer.produce(topic, topic.encode(), partition=0)
            producer.commit_transaction()


def check(root: str, topics: tuple[str, ...], rounds: int) -> None:
    admin = AdminClient({"txnlog.root": root})
    found = admin.verify(VerifySettings(deep=True)).result()
    assert not found.is_damaged
    assert found.is_complete
    for topic in topics:
        values = admin.cluster.read(topic, columns=["value"]).column(0).to_pylist()
        assert values == [topic.encode()] * rounds


def names(root: str) -> list[os.stat_result]:
    """All data files of topics."""
    return [path.stat() for path in Path(root).glob("t*/part-*.parquet")]


def test_clone_of_a_hundred_topics_moves_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of a data file is read, and none is stored twice."""
    root, clone = str(tmp_path / "lake"), str(tmp_path / "clone")
    Cluster.open(root, create=True)
    fill(root, TOPICS, 1)
    read: list[str] = []
    get = ObjectStore.get

    def noted(store: ObjectStore, path: str) -> bytes:
        read.append(path)
        return get(store, path)

    monkeypatch.setattr(ObjectStore, "get", noted)
    made = AdminClient({"txnlog.root": root}).clone(clone).result()
    monkeypatch.undo()
    assert (made.topics, made.files_copied, made.bytes_copied) == (100, 100, 0)
    assert not [path for path in read if "/part-" in path]
    assert {one.st_ino for one in names(root)} == {one.st_ino for one in names(clone)}
    check(clone, TOPICS, 1)


def test_neither_of_a_root_and_its_clone_takes_files_from_the_other(tmp_path: Path) -> None:
    """Compaction, deletion of a topic, and vacuum, whose files are gone at once here."""
    root, clone = str(tmp_path / "lake"), str(tmp_path / "clone")
    topics = TOPICS[:3]
    cluster = Cluster.open(root, create=True)
    for topic in topics:
        cluster.create_topic(topic, partitions=1, config=COMPACTED)
    fill(root, topics, 3)
    write_deltalake(tmp_path / "silver", rows(0))
    admin = AdminClient({"txnlog.root": root})
    admin.enlist_tables({"silver": str(tmp_path / "silver")})["silver"].result()
    assert admin.clone(clone).result().tables == ("silver",)
    copy = Cluster.open(clone)
    assert copy.enlisted() == {}
    for one, other, rounds in ((cluster, clone, 3), (copy, root, 3)):
        before = len(names(other))
        while Compactor(one).step():
            pass
        one.delete_topic("t2")
        for topic in topics:
            live = set(one.topic_log(topic).view.by_path)
            for path in Path(one.root.removeprefix("file://"), topic).glob("part-*.parquet"):
                if path.name not in live:
                    path.unlink()
        assert len(names(other)) == before
        check(other, topics if other == clone else topics[:2], rounds)
    fill(clone, topics[:2], 2)
    check(clone, topics[:2], 5)
    check(root, topics[:2], 3)
