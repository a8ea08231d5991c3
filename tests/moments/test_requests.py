"""A page that stays open for an hour asks the store for no more than one consumer of all topics."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from tests.moments.worlds import Lake, written
from txnlog.admin.moments import Moments
from txnlog.cluster import Cluster
from txnlog.producer import Producer
from txnlog.storage.store.objects import ObjectStore

HOUR_MS = 3_600_000
TOPICS = 12


def calls_of(cluster: Cluster) -> int:
    return len(cluster.store.calls)  # type: ignore[attr-defined]


def an_hour(
    lake: Lake, cluster: Cluster, look: Callable[[], object], *, step_ms: int, busy: Producer | None
) -> int:
    """The requests of a process that looks again and again, and sees a transaction a minute."""
    look()
    before, start_ms = calls_of(cluster), lake.shared.clock.boot_ms()
    written_ms = start_ms
    while lake.shared.clock.boot_ms() < start_ms + HOUR_MS:
        lake.later(step_ms)
        if busy is not None and lake.shared.clock.boot_ms() - written_ms >= 60_000:
            written_ms = lake.shared.clock.boot_ms()
            written(busy, {"orders": 1, "stock": 1})
        look()
    return calls_of(cluster) - before


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_page_costs_no_more_than_a_consumer_of_all_topics(is_busy: bool) -> None:
    """On an object store each request is paid for, and a page is forgotten in a tab."""
    lake = Lake()
    for number in range(TOPICS - 2):
        lake.process().create_topic(f"topic-{number}", partitions=1)
    written(lake.producer("first"), {"orders": 3})
    with patch.object(ObjectStore, "is_remote", True):
        consumer_cluster, page_cluster = lake.process(), lake.process()
        names = page_cluster.list_topics()
        assert len(names) == TOPICS
        consumer = lake.consumer("all", cluster=consumer_cluster)
        consumer.subscribe(names)
        consumed = an_hour(
            lake,
            consumer_cluster,
            lambda: consumer.poll(0),
            step_ms=1_000,
            busy=lake.producer("busy") if is_busy else None,
        )
        consumer.close()
        moments = Moments(page_cluster)
        moment_times = set()
        shown = an_hour(
            lake,
            page_cluster,
            lambda: moment_times.add(moments.now().at_ms),
            step_ms=1_000,
            busy=lake.producer("busy") if is_busy else None,
        )
    assert shown <= consumed
    # And it is still a live page: no moment is older than a few seconds.
    assert len(moment_times) > HOUR_MS / 10_000
