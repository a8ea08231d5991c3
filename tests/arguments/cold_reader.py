"""Everything below a root, as a new process reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import obstore

from tests.producer.worlds import read
from tests.world import PLAIN
from txnlog.cluster import Cluster
from txnlog.settings.topic_configs import TOPIC_CONFIGS, config_value
from txnlog.testing.faults import SharedMemory


@dataclass(frozen=True)
class Found:
    """Topics with their partitions and values, group offsets, and the ids of the state rows."""

    partitions: Mapping[str, int]
    records: Mapping[str, list[bytes | None]]
    groups: Mapping[str, dict[str, dict[int, int]]]
    transactional_ids: frozenset[str]


def read_everything(shared: SharedMemory) -> Found:
    """Read all tables and data files in a new process. Raises the errors of a reader."""
    cluster = Cluster.open(shared.open(), settings=PLAIN)
    topics = cluster.list_topics()
    partitions, records = {}, {}
    for topic in topics:
        log = cluster.topic(topic)
        partitions[topic] = log.partitions
        for name in TOPIC_CONFIGS:
            config_value(log.config, name)
        found = read(cluster, topic, uncommitted=False)
        records[topic] = [value for number in sorted(found) for _, value in found[number]]
    groups = {}
    for offsets in cluster.offsets_shards():
        groups.update(
            {
                group_id: group.positions()
                for group_id, group in offsets.view.rows.items()
                if group.offsets
            }
        )
    ids: set[str] = set()
    for shard in cluster.existing_shards():
        ids.update(shard.view.rows)
    return Found(partitions, records, groups, frozenset(ids))


def objects(shared: SharedMemory) -> set[str]:
    """The paths of all objects."""
    listed = obstore.list(shared.backing).collect()
    return {meta["path"] for meta in listed}
