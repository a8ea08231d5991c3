"""The panels say what was done; names are data, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.moments.worlds import EVIL, Lake, Query, comparable, history, taken, written
from tests.why.worlds import Disk, produce
from txnlog.admin.moments import Moments
from txnlog.errors import (
    StorePermissionError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Moment, NodeKind, Phase, TickKind
from txnlog.protocol.problems import ProblemKind
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store.read_only import ReadOnlyStore

DAY_MS = 86_400_000


def last(lake: Lake) -> Moment:
    return taken(lake, lake.moments())[-1]


def phases(moment: Moment, name: str) -> list[Phase]:
    [lane] = [lane for lane in moment.lanes if lane.transactional_id == name]
    return [bar.phase for bar in lane.bars]


def test_timeline_shows_who_wrote_and_who_was_fenced() -> None:
    moment = last(Lake())
    committed = [Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT]
    assert phases(moment, "first") == committed
    assert phases(moment, "opened") == [Phase.ONGOING, *committed]
    assert phases(moment, EVIL) == [Phase.ONGOING, Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT]
    assert phases(moment, "q-1") == committed * 2
    stuck = moment.lanes[0]
    assert stuck.transactional_id == "stuck"
    assert [bar.until_ms for bar in stuck.bars] == [None]
    ticks = {lane.transactional_id: [tick.kind for tick in lane.ticks] for lane in moment.lanes}
    assert ticks[EVIL] == [TickKind.BEGUN, TickKind.FENCED]
    assert ticks["opened"] == [TickKind.BEGUN, TickKind.FENCED]
    [fenced] = [t for lane in moment.lanes for t in lane.ticks if "it hung" in t.text]
    assert fenced.kind is TickKind.FENCED
    assert next(lane.title for lane in moment.lanes if lane.transactional_id == "q-1") == "hourly"


def test_topics_show_who_writes_and_reads_and_how_much() -> None:
    moment = last(Lake())
    assert list(moment.topics) == ["orders", "stock"]
    orders = moment.topics["orders"]
    assert orders.writers == ["first", "opened", "q-1", "stuck"]
    assert orders.readers == {"readers": 8}
    [part] = orders.partitions
    assert (part.log_start_offset, part.last_stable_offset, part.high_watermark) == (0, 12, 13)
    assert (part.num_files, part.num_records) == (5, 13)
    assert orders.rate == pytest.approx(7 / 60), "of the last minute"
    seconds = (moment.at_ms - moment.since_ms) / 1000 / len(orders.rates)
    assert sum(point.value * seconds for point in orders.rates) == pytest.approx(13)


def test_groups_show_their_lag_and_what_blocks_them() -> None:
    group = last(Lake()).groups["readers"]
    assert (group.state, group.lag_records, group.held_records) == ("Stable", 8, 1)
    [position] = group.positions
    assert (position.offset, position.end_offset) == (5, 12)
    assert group.lag_ms > 40_000
    assert [point.value for point in group.lags] == [1, 7, 8, 8]
    [member] = group.members
    assert member.partitions == {"orders": (0,)}
    assert [one.kind for one in group.blocked_by] == [ProblemKind.DEAD_MEMBER]


def test_group_that_has_read_all_is_blocked_by_the_open_transaction() -> None:
    lake = Lake()
    stuck = lake.eager("stuck")
    stuck.begin_transaction()
    stuck.produce("orders", b"never")
    stuck.flush()
    written(lake.producer("other"), {"orders": 2})
    consumer = lake.consumer(session_timeout_ms=300_000)
    assert lake.read(consumer) == 0
    lake.later(40_000)
    moment = lake.moments().now()
    [problem] = moment.problems
    assert (problem.kind, problem.subject) == (ProblemKind.OPEN, "stuck")
    blocked = {(edge.source, edge.target) for edge in moment.flow.edges if edge.is_blocked}
    assert ((NodeKind.PRODUCER, "stuck"), (NodeKind.TOPIC, "orders")) in blocked


def test_queries_show_their_batches_and_phases() -> None:
    query = last(Lake()).queries["q-1"]
    assert (query.title, query.topics, query.is_fenced) == ("hourly", ["orders"], False)
    assert [(batch.batch_id, batch.records, batch.files) for batch in query.batches] == [
        (0, 3, 1),
        (1, 3, 1),
    ]
    assert {"total", "prepare", "publish"} <= set(query.batches[0].phases)
    assert query.batches[1].phases == {}


def test_flow_goes_from_writers_through_topics_to_groups() -> None:
    flow = last(Lake()).flow
    edges = {(edge.source, edge.target): edge for edge in flow.edges}
    orders = NodeKind.TOPIC, "orders"
    assert edges[(NodeKind.QUERY, "q-1"), orders].rate == pytest.approx(6 / 900)
    assert edges[orders, (NodeKind.GROUP, "readers")].rate == pytest.approx(5 / 900)
    assert edges[(NodeKind.PRODUCER, ""), (NodeKind.TOPIC, "stock")].rate == pytest.approx(1 / 900)
    assert edges[(NodeKind.PRODUCER, "stuck"), orders].is_blocked
    assert {node.name: node.title for node in flow.nodes}["q-1"] == "hourly"


def test_transaction_shows_its_siblings_steps_and_phases() -> None:
    lake = Lake()
    moment = last(lake)
    moments = lake.moments()
    ids = {lane.transactional_id: lane.bars[0].transaction for lane in moment.lanes}
    first = moments.transaction(ids["first"])
    assert (first.transactional_id, first.state) == ("first", "CompleteCommit")
    assert [(one.topic, one.first_offset, one.num_records) for one in first.written] == [
        ("orders", 0, 5),
        ("stock", 0, 2),
    ]
    assert any("marker is in topic stock" in step.text for step in first.steps)
    aborted = moments.transaction(ids[EVIL])
    assert aborted.state == "CompleteAbort"
    assert moments.transaction(ids["stuck"]).state == "Ongoing"
    batch = moments.transaction(ids["q-1"])
    assert (batch.query_id, batch.batch_id) == ("q-1", 0)
    assert "publish" in batch.phases
    # As of when it was open.
    began_ms = next(lane.bars[0].since_ms for lane in moment.lanes if lane.title == "opened")
    assert moments.transaction(ids["opened"], at_ms=began_ms + 1).state == "Ongoing"
    assert moments.transaction(ids["opened"]).state == "CompleteCommit"
    with pytest.raises(TransactionalIdNotFoundError, match="Check both numbers"):
        moments.transaction(ProducerIdAndEpoch(987_654, 0))


def test_records_show_their_transactions() -> None:
    lake = Lake()
    moment = last(lake)
    moments = lake.moments()
    ids = {lane.transactional_id: lane.bars[0].transaction for lane in moment.lanes}
    found = moments.records("orders", 0, count=100, with_values=True)
    assert [one.offset for one in found] == list(range(13))
    assert [one.status for one in found] == ["committed"] * 12 + ["ongoing"]
    assert found[0].transaction == ids["first"]
    assert found[-1].transaction == ids["stuck"]
    assert (found[0].key, found[0].value) == (b"key-0", b"value")
    assert [one.offset for one in moments.records("orders", 0, count=2)] == [11, 12]
    assert moments.records("orders", 0, count=1)[0].value is None
    assert [one.offset for one in moments.records("orders", 0, offset=4, count=2)] == [4, 5]
    assert [one.offset for one in moments.records("orders", 0, key=b"key-1")] == [1]
    at_ms = found[-1].timestamp_ms
    assert [one.offset for one in moments.records("orders", 0, timestamp_ms=at_ms)] == [12]
    evil = moments.records("stock", 0, with_values=True, count=100)
    assert EVIL.encode() in [one.value for one in evil if one.status == "aborted"]
    assert [one.transaction for one in evil if one.status == "none"] == [None]
    then = moments.records("orders", 0, at_ms=at_ms - 1)
    assert [one.offset for one in then] == list(range(12))
    with pytest.raises(UnknownTopicOrPartitionError, match="no record with this key"):
        moments.records("orders", 0, key=b"nobody's")


def test_compacted_records_are_of_an_unknown_transaction_once_the_window_is_over() -> None:
    """A guess at who wrote a record would be believed."""
    lake = Lake()
    many = lake.producer("many")
    for _ in range(40):
        written(many, {"orders": 1})
    lake.later(1_000)
    lake.keep_house()
    young = lake.moments().records("orders", 0, offset=0, count=1)
    assert (young[0].status, young[0].transaction) == ("committed", ProducerIdAndEpoch(0, 0))
    lake.later(3_600_000)
    old = lake.moments().records("orders", 0, offset=0, count=1)
    assert (old[0].status, old[0].transaction) == ("compacted, unknown", None)


def test_transaction_is_known_while_the_log_or_its_batches_are_there_and_then_unknown() -> None:
    """Siblings that were compacted away must not be shown as if there had been none."""
    lake = Lake(settings=LogSettings(checkpoint_interval=3, checkpoint_mode="inline"))
    many = lake.producer("many")
    for _ in range(40):
        written(many, {"orders": 1, "stock": 1})
    second = ProducerIdAndEpoch(0, 1)
    known = lake.moments().transaction(second)
    assert (known.transactional_id, len(known.written), known.is_compacted) == ("many", 2, False)
    lake.later(2 * DAY_MS)
    written(many, {"orders": 1, "stock": 1})
    assert LogCleanup(lake.process()).run() > 0
    by_batches = lake.moments().transaction(second)
    assert (by_batches.state, len(by_batches.written)) == ("CompleteCommit", 2)
    assert by_batches.is_compacted
    lake.keep_house()
    gone = lake.moments().transaction(second)
    assert (gone.state, list(gone.written)) == ("compacted, unknown", [])
    assert (gone.transactional_id, gone.is_compacted) == ("many", True)


# --- Damage, no writes ----------------------------------------------------------------------------


def test_damaged_topic_is_a_problem_and_a_note(tmp_path: Path) -> None:
    """One damaged table must not hide all others."""
    disk = Disk(tmp_path)
    produce(disk, records=3)
    for commit in tmp_path.joinpath("orders", "_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-9])
    moment = Moments(disk.process()).now()
    assert [one.kind for one in moment.problems] == [ProblemKind.DAMAGE]
    assert list(moment.topics) == ["stock"]
    assert any(note.startswith("orders cannot be read") for note in moment.notes)


def test_damage_of_now_does_not_hide_what_was_before(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    produce(disk, records=3)
    disk.later(1_000)
    recorded = Moments(disk.process()).now()
    disk.later(1_000)
    produce(disk, "other")
    newest = max(tmp_path.joinpath("orders", "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    # Its time is that of the machine's clock, which is behind that of the test.
    os.utime(newest, (disk.clock.now_ms() / 1000,) * 2)
    moments = Moments(disk.process())
    assert list(moments.now().topics) == ["stock"]
    again = moments.at(recorded.at_ms)
    assert again.topics == recorded.topics
    assert again.problems == []


def test_table_of_another_tool_is_left_out(tmp_path: Path) -> None:
    """Its log may be cleaned up as that tool likes: that must not hide our past."""
    disk = Disk(tmp_path)
    produce(disk)
    disk.later(1_000)
    recorded = Moments(disk.process()).now()
    disk.later(1_000)
    foreign = tmp_path / "foreign" / "_delta_log"
    foreign.mkdir(parents=True)
    commit = '{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n'
    foreign.joinpath(f"{7:020}.json").write_text(commit)
    plain = tmp_path / "other" / "_delta_log"
    plain.mkdir(parents=True)
    plain.joinpath(f"{0:020}.json").write_text(
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
        '{"metaData":{"id":"x","schemaString":"","partitionColumns":[],"configuration":{}}}\n'
    )
    moments = Moments(disk.process())
    moment = moments.now()
    assert "other" not in moment.topics
    assert moment.earliest_ms == recorded.earliest_ms
    assert moments.at(recorded.at_ms).topics == recorded.topics


def test_nothing_is_written() -> None:
    lake = Lake()
    recorded = taken(lake, lake.moments())
    before = {item.path: item for item in lake.process().store.list("")}
    cluster = lake.process()
    cluster.store.calls.clear()  # type: ignore[attr-defined]
    moments = Moments(cluster)
    moment = moments.now()
    moments.at(recorded[3].at_ms)
    moments.transaction(moment.lanes[0].bars[0].transaction)
    moments.records("orders", 0)
    moments.deletable()
    verbs = {verb for verb, _ in cluster.store.calls}  # type: ignore[attr-defined]
    assert verbs <= {"get", "head", "list"}
    assert {item.path: item for item in lake.process().store.list("")} == before


def test_what_housekeeping_would_delete_is_what_its_dry_run_lists(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    produce(disk, records=3)
    left = tmp_path / "orders" / f"part-0-{'a' * 32}.parquet"
    left.write_bytes(b"of a transaction that died")
    os.utime(left, (disk.clock.now_ms() / 1000 - 30 * 86_400,) * 2)
    found = Moments(disk.process()).deletable()
    assert [one.path for one in found] == [f"orders/{left.name}"]
    assert left.exists()
    listed = Housekeeper(disk.process()).find()
    assert [(one.path, one.reason, one.size_bytes) for one in found] == [
        (one.path, one.reason, one.size_bytes) for one in listed
    ]


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("a", b""),
        lambda store: store.put_new("a", b""),
        lambda store: store.put_if_absent("a", b""),
        lambda store: store.delete(["a"]),
        lambda store: store.delete_in_order(["a"]),
        lambda store: store.move("orders/_delta_log/00000000000000000000.json", "b"),
        lambda store: store.open_writer("a"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_each_write_of_a_store_is_refused(
    write: Callable[[ReadOnlyStore], object], is_local: bool, tmp_path: Path
) -> None:
    base = Disk(tmp_path).process() if is_local else Lake().process()
    with pytest.raises(StorePermissionError, match="nothing is written"):
        write(ReadOnlyStore(base.store))


def test_shard_that_was_announced_and_never_created_is_empty() -> None:
    """Its creator died in between; a page that only reads cannot finish it."""
    lake = Lake()
    cluster = lake.process()
    cluster._meta._record("__transaction_state-0", 1)
    assert lake.moments().now().lanes == []


def test_page_that_stays_open_sees_each_step() -> None:
    """What it remembers must not differ from what a new page reads."""
    lake = Lake()
    kept = lake.moments()
    for _ in history(lake):
        lake.later(1_000)
        one, other = kept.now(), lake.moments().now()
        assert one == other
        lake.later(1_000)
    Query(lake, "q-2").batch(0)
    lake.later(1_000)
    assert "q-2" in kept.now().queries


def test_first_moment_of_many_topics_waits_only_for_those_of_open_transactions() -> None:
    """Of a root with a thousand topics, what blocks readers is shown at once, the rest soon."""
    lake = Lake()
    for number in range(40):
        lake.process().create_topic(f"topic-{number:02}", partitions=1)
    written(lake.producer("first"), {"topic-30": 1})
    lake.later(1_000)
    stuck = lake.eager("stuck")
    stuck.begin_transaction()
    stuck.produce("topic-39", b"never")
    stuck.flush()
    lake.later(60_000)
    moments = Moments(lake.process(), open_ms=0)
    first = moments.now()
    assert first.later == 42 - len(first.topics) > 0
    assert {"topic-39", "topic-30"} <= first.topics.keys()
    assert [one.subject for one in first.problems] == ["stuck"]
    assert any("still to be read" in note for note in first.notes)
    past = moments.at(first.at_ms - 30_000)
    assert past.later == first.later
    whole = Lake.moments(lake).now()
    assert (whole.later, len(whole.topics)) == (0, 42)
    for _ in range(3):
        last, past = moments.now(), moments.at(first.at_ms - 30_000)
    assert last.later == past.later == 0
    assert last.topics.keys() == past.topics.keys() == whole.topics.keys()
    assert comparable(last) == comparable(whole)


def test_who_holds_the_last_stable_offset_is_named_at_once() -> None:
    """A transaction of a second is no problem, and yet it is what a reader waits for."""
    lake = Lake()
    reader = lake.consumer()
    written(lake.producer("first"), {"orders": 2})
    assert lake.read(reader) == 2
    young = lake.eager("young")
    young.begin_transaction()
    for _ in range(3):
        young.produce("orders", b"open", timestamp=lake.shared.clock.now_ms())
    young.flush()
    lake.later(4_000)
    moment = lake.moments().now()
    assert not moment.problems
    assert [one.subject for one in moment.waiting] == ["young"]
    [place] = moment.waiting[0].places
    assert (place.topic, place.partition, place.start_offset) == ("orders", 0, 2)
    group = moment.groups["readers"]
    assert (group.lag_records, group.held_records) == (3, 3)
    assert 4_000 <= group.lag_ms <= 5_000
    young.commit_transaction()
    lake.later(1_000)
    group = lake.moments().now().groups["readers"]
    assert (group.lag_records, group.held_records) == (3, 0)
