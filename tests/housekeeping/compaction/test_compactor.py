"""The housekeeper's duty: a little at a time, and next to nothing when there is nothing to do."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.housekeeping.compaction.logs import (
    TOPIC,
    Idempotent,
    Record,
    begin,
    commit,
    live,
    records_of,
    world,
)
from tests.world import faults, process
from txnlog.cluster import Cluster
from txnlog.errors import ObjectNotFoundError, StorePermissionError
from txnlog.housekeeping.compaction import local
from txnlog.housekeeping.compaction.local import FULL_PLAN_MS, Compactor
from txnlog.housekeeping.compaction.segments import rewrite
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.protocol.compaction import CompactionGroup, Plan, Segment
from txnlog.protocol.topics import TopicCommit
from txnlog.settings.topic_configs import check_configs
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, SharedMemory

FOREVER = {"retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def fill(cluster: Cluster, batches: int = 12, *, key: bytes = b"k") -> None:
    row = begin(cluster)
    for number in range(batches):
        row = commit(cluster, row, [Record(key, b"%d" % number)])


def files(shared: SharedMemory) -> int:
    return len(live(process(shared).topic(TOPIC).view))


def test_housekeeper_compacts_while_records_come() -> None:
    """A cluster that has run for a year must read like one made today (R22)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    keeper = Housekeeper(process(shared), HousekeepingSettings(cleaner_backoff_ms=15_000))
    for _ in range(5):
        fill(cluster)
        for _ in range(4):
            shared.clock.advance_ms(keeper.step())
            shared.clock.advance_ms(5_000)
    assert files(shared) <= 5
    assert len(records_of(cluster.topic(TOPIC))) == 60


def test_housekeeper_does_other_duties_between_steps_of_compaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backlog of a day must not keep dead transactions waiting."""
    shared = world(config={**FOREVER, "segment.bytes": "4070"})
    fill(process(shared), 20)
    monkeypatch.setattr(local, "STEP_MS", 0)
    keeper = Housekeeper(process(shared), HousekeepingSettings(abort_interval_ms=10))
    sweeps: list[int] = []
    duty = keeper._duties[0]
    act = duty.act

    def sweep() -> int:
        sweeps.append(files(shared))
        return act()

    monkeypatch.setattr(duty, "act", sweep)
    for _ in range(30):
        shared.clock.advance_ms(max(10, keeper.step()))
    assert sweeps[0] == 20
    assert len(set(sweeps)) > 3
    assert files(shared) == 1


def test_run_once_compacts_everything() -> None:
    """`txnlog housekeeping --once`, from a cron job."""
    shared = world(config={**FOREVER, "segment.bytes": "4000"})
    fill(process(shared), 20)
    keeper = Housekeeper(process(shared))
    done = keeper.run_once()
    assert done is not None
    assert done["files compacted"] >= 20
    again = keeper.run_once()
    assert again is not None
    assert again["files compacted"] == 0


def test_step_with_nothing_new_reads_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round every 15 s must not read each of a million batches."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    fill(cluster, 25)
    worker = process(shared)
    found = Compactor(worker)
    while found.step():
        pass
    planned: list[Mapping[str, object]] = []

    def plan_partition(*_: object, **options: object) -> Plan:
        planned.append(options)
        return Plan((), 0)

    with monkeypatch.context() as patch:
        patch.setattr(local, "plan_partition", plan_partition)
        faults(worker).calls.clear()
        assert found.step() == 0
        assert planned == []
        assert len(faults(worker).calls) <= 2, "a listing of topics, a read of the log"
    fill(cluster, 1)
    with monkeypatch.context() as patch:
        patch.setattr(local, "plan_partition", plan_partition)
        found.step()
        assert len(planned) == 1
    assert found.step() == 0


def test_batches_of_an_idempotent_producer_are_merged_once_they_are_not_its_last() -> None:
    """Fewer than ten a round, between batches that must stay: they may not be passed over (R22)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    producers = [Idempotent.start(cluster) for _ in range(2)]
    worker = Compactor(process(shared))
    for number in range(30):
        for producer in producers:
            for _ in range(3):
                producer.send([Record(b"k", b"%d" % number)])
        shared.clock.advance_ms(15_000)
        worker.step()
        assert files(shared) <= 2 * 5 + 10 + 4, "kept, too few to merge, segments of growing size"
    assert FULL_PLAN_MS > 30 * 15_000
    assert len(records_of(cluster.topic(TOPIC))) == 180


def test_batches_of_expired_producers_are_merged() -> None:
    """Their last batches kept what lies between them apart (R8, R22)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    for _ in range(4):
        producer = Idempotent.start(cluster)
        for _ in range(3):
            producer.send([Record(b"k", b"v")])
    fill(cluster, 12)
    worker = Compactor(process(shared))
    worker.step()
    assert files(shared) == 13
    expire(cluster)
    worker.step()
    assert files(shared) <= 2


def expire(cluster: Cluster) -> None:
    """Expire all idempotent producers of the topic."""
    now_ms = cluster.store.now_ms()
    cluster.topic(TOPIC).transact(
        lambda _: TopicCommit(operation="EXPIRE", txns={"txnlog/expired/producers": now_ms + 1})
    )


def test_topic_that_cannot_be_written_delays_only_itself() -> None:
    """Its error is raised, the others are compacted (R37, R68)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    fill(cluster)
    cluster.create_topic("another", partitions=1)
    worker = process(shared)

    def plan(verb: str, path: str) -> Fault:
        denied = verb == "put" and path.startswith(f"{TOPIC}/")
        return Fault.DENY if denied else Fault.NONE

    cluster.create_topic("zoo", partitions=1, config=FOREVER)
    faults(worker).plan = plan
    found = Compactor(worker)
    with pytest.raises(StorePermissionError, match=TOPIC):
        found.step()
    assert not found.is_busy()
    assert files(shared) == 12
    assert set(found._planned) == {TOPIC, "another", "zoo"}


def test_round_beside_a_busy_producer_ends_and_reaches_every_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More comes while a group is rewritten than a group needs: the next round's work (R22)."""
    shared = world(partitions=3, config=FOREVER)
    cluster = process(shared)
    row = begin(cluster)
    rewritten: list[int] = []

    def write() -> None:
        nonlocal row
        for partition in range(3):
            for number in range(12):
                row = commit(cluster, row, [Record(b"k", b"%d" % number)], partition=partition)

    def rewrite_while_more_comes(store: ObjectStore, group: CompactionGroup) -> Segment:
        assert len(rewritten) < 10, "no end"
        rewritten.append(group.partition)
        write()
        return rewrite(store, group)

    write()
    monkeypatch.setattr(local, "rewrite", rewrite_while_more_comes)
    keeper = Housekeeper(process(shared))
    done = keeper.run_once()
    assert rewritten == [0, 1, 2]
    assert done is not None
    assert done["files compacted"] == 36
    keeper.run_once()
    assert sorted(rewritten) == [0, 0, 1, 1, 2, 2]
    for partition in range(3):
        assert len(records_of(process(shared).topic(TOPIC), partition)) == 12 * 7


@pytest.mark.parametrize("config", [FOREVER, {**FOREVER, **COMPACTED}])
def test_file_that_cannot_be_read_delays_its_partition_only(config: Mapping[str, str]) -> None:
    """The others are merged and key-compacted; each round reports the error (R37)."""
    shared = world(partitions=2, config=config)
    cluster = process(shared)
    row = begin(cluster)
    for partition in range(2):
        for number in range(12):
            row = commit(cluster, row, [Record(b"k", b"%d" % number)], partition=partition)
    lost = cluster.topic(TOPIC).view.partitions[0].batches[3].path
    cluster.store.delete([f"{TOPIC}/{lost}"])
    worker = Compactor(process(shared))
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError, match=lost):
            worker.step()
    left = process(shared).topic(TOPIC)
    assert [len(state.batches) for state in left.view.partitions] == [12, 1]
    seen = records_of(left, 1)
    assert len(seen) == (1 if COMPACTED.items() <= config.items() else 12)
    assert seen[-1].record.value == b"11"


@pytest.mark.parametrize("config", [FOREVER, {**FOREVER, **COMPACTED}])
def test_file_that_cannot_be_read_is_tried_less_often(
    config: Mapping[str, str],
) -> None:
    """Every 15 s all before it was read again, and written where the segment is large."""
    shared = world(config=config)
    cluster = process(shared)
    row = begin(cluster)
    for number in range(12):
        row = commit(cluster, row, [Record(b"k", b"%d" % number)])
    path = f"{TOPIC}/{cluster.topic(TOPIC).view.partitions[0].batches[3].path}"
    data = cluster.store.get(path)
    cluster.store.delete([path])
    keeping = process(shared)
    worker = Compactor(keeping)
    read = []
    for _ in range(240):
        faults(keeping).calls.clear()
        with pytest.raises(ObjectNotFoundError, match=path):
            worker.step()
        read.append(sum(name.endswith(".parquet") for _, name in faults(keeping).calls))
        shared.clock.advance_ms(15_000)
    assert 1 < sum(count > 0 for count in read) < 8
    cluster.store.put(path, data)
    shared.clock.advance_ms(3_600_000)
    worker.step()
    assert len(process(shared).topic(TOPIC).view.partitions[0].batches) == 1


def test_commit_on_disk_changes_no_data_for_other_readers() -> None:
    """One commit per group, whose files all say dataChange=false: Delta streams pass it over."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    fill(cluster)
    worker = process(shared)
    version = cluster.topic(TOPIC).log.version
    Compactor(worker).compact(TOPIC)
    assert worker.topic(TOPIC).log.version == version + 1
    path = f"{TOPIC}/_delta_log/{version + 1:020d}.json"
    actions = [json.loads(line) for line in cluster.store.get(path).splitlines()]
    changes = [
        (name, action[name]["dataChange"])
        for action in actions
        for name in ("add", "remove")
        if name in action
    ]
    assert changes.count(("remove", False)) == 12
    assert changes.count(("add", False)) == 1
    assert len(changes) == 13


def test_topic_configurations_of_compaction_are_checked() -> None:
    """A typo must not switch key compaction off silently (R60)."""
    given = {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": 0.25,
        "max.compaction.lag.ms": 1_000,
        "segment.bytes": 1 << 20,
    }
    assert check_configs(given) == {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25",
        "max.compaction.lag.ms": "1000",
        "segment.bytes": "1048576",
    }
    for name, value in {
        "min.cleanable.dirty.ratio": "1.5",
        "segment.bytes": "0",
        "max.compaction.lag.ms": "soon",
    }.items():
        with pytest.raises(ValueError, match=name):
            check_configs({name: value})
