"""A process that copies topic t to topic out as a member of group g, until it is stopped."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tests.consumer.records import staged
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.messages import TopicPartition
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner

SESSION_MS = 4_000


def copy(root: str, name: str, stop_file: str) -> None:
    """Each transaction copies some records and commits their offsets (KIP-447)."""
    cluster = Cluster.open(root)
    reader = Consumer(
        {
            "txnlog.root": root,
            "group.id": "g",
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "sticky",
        }
    )
    row = cluster.coordinator.init_producer_id(name, Owner(run_id=str(uuid.uuid4())))
    reader.subscribe(["t"])
    while not Path(stop_file).exists():
        found = reader.consume(20, 0.1)
        if not found:
            continue
        ends: dict[int, int] = {}
        for message in found:
            ends[message.partition()] = (message.offset() or 0) + 1
        who = reader.consumer_group_metadata()
        offsets = GroupOffsets(
            group_id=who.group_id,
            generation=who.generation,
            member_id=who.member_id,
            start={},
            end={"t": ends},
        )
        values = [b"%s %d" % (message.value(), os.getpid()) for message in found]
        try:
            row = cluster.coordinator.commit(
                row, [staged(cluster, values, topic="out")], offsets=[offsets]
            )
        except TxnLogError:
            row = cluster.coordinator.init_producer_id(name, Owner(run_id=str(uuid.uuid4())))
            held = reader.assignment()
            if held:
                for p in reader.committed(held, 10):
                    reader.seek(TopicPartition(p.topic, p.partition, max(0, p.offset)))
    reader.close()
