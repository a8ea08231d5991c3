"""A consumer's statistics, with the names of librdkafka's, as far as they have a meaning here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txnlog.consuming.fetching import Fetched, Key, PartitionReader
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.rebalances import Rebalances
from txnlog.messages import OFFSET_INVALID
from txnlog.process.client_metrics import Metric, Value, made_metrics
from txnlog.process.clock import Clock
from txnlog.settings.config import Config


class ConsumerStatistics:
    """Makes them: positions, ends and lag of the assigned partitions, and the membership."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        readers: Mapping[Key, PartitionReader],
        fetched: Fetched,
        rebalances: Rebalances,
        stored: Callable[[Key], int],
    ) -> None:
        self._client_id: str = config.get("client.id")
        self._clock = clock
        self._started_ms = clock.boot_ms()
        self._readers = readers
        self._stored = stored
        self._fetched, self._rebalances = fetched, rebalances
        self.session: GroupSession | None = None

    def __call__(self) -> dict[str, Any]:
        now_ms = self._clock.boot_ms()
        topics: dict[str, Any] = {}
        for key, reader in sorted(self._readers.items()):
            name, number = key
            topic = topics.setdefault(name, {"topic": name, "partitions": {}})
            topic["partitions"][str(number)] = _partition(reader, self._stored(key))
        found = {
            "name": f"{self._client_id}#consumer",
            "client_id": self._client_id,
            "type": "consumer",
            "ts": now_ms * 1000,
            "time": self._clock.now_ms() // 1000,
            "age": (now_ms - self._started_ms) * 1000,
            "brokers": {},
            "topics": topics,
        }
        session = self.session
        if session is not None and session.membership.member_id:
            found["cgrp"] = {
                "state": "up",
                "join_state": "wait-join" if session.membership.is_waiting else "steady",
                "assignment_size": len(self._readers),
                "generation": session.generation,
                "member_id": session.membership.member_id,
            }
        return found

    def metrics(self) -> list[Metric]:
        """See Consumer.metrics."""
        readers, session = list(self._readers.items()), self.session
        numbers = {
            "records-consumed-total": self._fetched.records,
            "bytes-consumed-total": self._fetched.size_bytes,
            "fetch-total": self._fetched.files,
            "rebalance-total": self._rebalances.count,
            "assigned-partitions": len(readers),
        }
        found: list[Value] = [(name, {}, value) for name, value in numbers.items()]
        for (topic, number), reader in readers:
            lag = _partition(reader, OFFSET_INVALID)["consumer_lag"]
            if lag >= 0:
                tags = {"topic": topic, "partition": str(number)}
                found.append(("records-lag", tags, lag))
        if session is not None:
            found += session.commits.values("commit-seconds")
        return made_metrics("consumer", self._client_id, found)


def _partition(reader: PartitionReader, stored: int) -> dict[str, Any]:
    """A partition's offsets; -1001 where there is none, -1 for an unknown lag."""
    view = reader.log.view
    position = reader.position
    is_known = reader.log.exists and reader.partition < reader.log.partitions
    end = reader.end_offset if is_known else OFFSET_INVALID
    return {
        "partition": reader.partition,
        "next_offset": OFFSET_INVALID if position is None else position,
        "app_offset": OFFSET_INVALID if position is None else position,
        "stored_offset": stored,
        "lo_offset": reader.start_offset if is_known else OFFSET_INVALID,
        "hi_offset": view.high_watermark(reader.partition) if is_known else OFFSET_INVALID,
        "ls_offset": view.last_stable_offset(reader.partition) if is_known else OFFSET_INVALID,
        "consumer_lag": -1 if position is None or not is_known else max(0, end - position),
        "paused": reader.is_paused,
    }
