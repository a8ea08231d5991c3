"""Copies within a bucket, from a bucket to a disk and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.servers import Server
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.producer import Producer
from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying.report import VerifySettings

TOPICS = ("orders", "stock")


def found(cluster: Cluster) -> list[list[dict[str, object]]]:
    """All committed records of both topics; the root is whole."""
    verified = AdminClient({}, cluster=cluster).verify(VerifySettings(deep=True)).result()
    assert not verified.is_damaged
    order = [("partition", "ascending"), ("offset", "ascending")]
    return [cluster.read(topic).sort_by(order).to_pylist() for topic in TOPICS]


def test_root_is_cloned_in_a_bucket_and_backed_up_to_a_disk_and_back(
    any_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bytes through this process the first way; each is the same root."""
    origin = any_server.place()
    with Producer(origin.settings) as producer:
        for topic in TOPICS:
            producer.produce(topic, b"one", partition=0)
    records = found(origin.open_cluster())
    read: list[str] = []
    get = ObjectStore.get
    monkeypatch.setattr(ObjectStore, "get", lambda self, path: read.append(path) or get(self, path))
    clone = any_server.place()
    made = AdminClient(origin.settings).clone(clone.url).result()
    assert made.files_copied == made.files > 0 == made.bytes_copied
    assert not [path for path in read if "/part-" in path]
    assert found(clone.open_cluster()) == records
    assert AdminClient(origin.settings).clone(clone.url).result().files_copied == 0
    disk = tmp_path / "disk"
    assert AdminClient(clone.settings).backup(str(disk)).result().bytes_copied > 0
    assert found(Cluster.open(str(disk))) == records
    with pytest.raises(ConfigError, match="are not on one file system, nor in one bucket"):
        AdminClient(clone.settings).clone(str(tmp_path / "other")).result()
