"""A root in which something of each kind is to be seen, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.why.worlds import Disk, produce
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.messages import TopicPartition
from txnlog.monitoring.exporter import RootCollector
from txnlog.monitoring.prometheus import PREFIX

Values = Mapping[tuple[str, ...], float]


def values(collector: RootCollector) -> dict[str, Values]:
    """Metric, without the prefix -> values of its labels -> number."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in collector.collect():
        samples = found.setdefault(family.name.removeprefix(PREFIX), {})
        for sample in family.samples:
            samples[tuple(sample.labels.values())] = sample.value
    return found


def busy(folder: Path) -> Disk:
    """Three records, of which a group has read one; an open transaction; a housekeeper."""
    disk = Disk(folder)
    keeper = Housekeeper(disk.process())
    keeper.step()
    # The lease is renewed, and tells of the duties.
    disk.later(20_000)
    keeper.step()
    start_ms = disk.clock.now_ms()
    with disk.producer("done") as made:
        made.begin_transaction()
        for number in range(3):
            made.produce("orders", f"{number}", timestamp=start_ms + number * 10_000)
        made.commit_transaction()
    produce(disk)
    with disk.consumer() as reader:
        reader.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    eager = disk.producer("open", transaction_publish="eager", linger_ms=0)
    eager.begin_transaction()
    eager.produce("stock", "open")
    eager.flush()
    disk.later(60_000)
    return disk
