"""Random histories of a compacted topic, against a model: all that was ever committed (R23)."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.housekeeping.compaction.key_passes import (
    CONFIG,
    RETENTION_MS,
    SMALL,
    key_compact,
    values,
)
from tests.housekeeping.compaction.logs import (
    TOPIC,
    Idempotent,
    Record,
    Seen,
    append,
    begin,
    bounds,
    commit,
    records_of,
    remembered,
    world,
)
from tests.world import process
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite
from txnlog.protocol.compaction import plan
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster

keys = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", ""]), st.booleans()), min_size=1, max_size=4
)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["deferred", "idempotent"]), keys),
        st.tuples(st.just("eager"), keys),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(
            st.just("key_compact"), st.none() | st.integers(1, 6), st.sampled_from([64, 1 << 20])
        ),
        st.tuples(st.just("merge")),
        st.tuples(st.just("wait"), st.sampled_from([1, 400, 2_000])),
        st.tuples(st.just("restart")),
    ),
    min_size=5,
    max_size=40,
)


class Model:
    """All that was ever committed, and when each record was first cleaned."""

    def __init__(self, lag_ms: int) -> None:
        config = {**CONFIG, "min.compaction.lag.ms": str(lag_ms)}
        self.lag_ms = lag_ms
        self.shared: SharedMemory = world(config=config)
        self.shared.clock.advance_ms(1_000_000)
        self.writer, self.compactor = process(self.shared), process(self.shared)
        self.row, self.eager = begin(self.writer, "deferred"), begin(self.writer, "eager")
        self.open = 0
        self.idempotent = Idempotent.start(self.writer)
        self.written = 0
        self.history: dict[int, Record] = {}
        self.cleaned_ms: dict[int, int] = {}

    def run(self, op: tuple[object, ...]) -> None:
        name, *arguments = op
        act: Callable[..., None] = getattr(self, f"do_{name}")
        act(*arguments)
        self.check()

    def records(self, wanted: list[tuple[str, bool]]) -> list[Record]:
        now_ms = self.writer.store.now_ms()
        found = []
        for key, has_value in wanted:
            self.written += 1
            value = b"%d" % self.written if has_value else None
            found.append(Record(key.encode() or None, value, now_ms * 1000))
        return found

    def do_write(self, how: str, wanted: list[tuple[str, bool]]) -> None:
        if how == "deferred":
            self.row = commit(self.writer, self.row, self.records(wanted))
        else:
            self.idempotent.send(self.records(wanted))

    def do_eager(self, wanted: list[tuple[str, bool]]) -> None:
        records = self.records(wanted)
        self.eager = append(self.writer, self.eager, records, sequence=self.open)
        self.open += len(records)

    def do_end(self, is_commit: bool) -> None:
        if self.open:
            end = self.writer.coordinator
            self.eager = end.commit(self.eager, []) if is_commit else end.abort(self.eager)
            self.open = 0

    def do_wait(self, duration_ms: int) -> None:
        self.shared.clock.advance_ms(duration_ms)

    def do_restart(self) -> None:
        self.compactor = process(self.shared)

    def do_merge(self) -> None:
        before = records_of(self.compactor.topic(TOPIC))
        for group in plan(self.compactor.topic(TOPIC).view, TOPIC, SMALL):
            commit_segment(self.compactor, group, rewrite(self.compactor.store, group))
        assert records_of(self.compactor.topic(TOPIC)) == before

    def do_key_compact(self, steps: int | None, buffer_bytes: int) -> None:
        log = self.writer.topic(TOPIC)
        before = bounds(log.view), remembered(log.view)
        key_compact(self.compactor, steps=steps, buffer_bytes=buffer_bytes)
        log = self.writer.topic(TOPIC)
        assert (bounds(log.view), remembered(log.view)) == before
        check_cluster(self.writer)
        now_ms = self.writer.store.now_ms()
        for offset in range(log.view.partitions[0].cleaned_offset):
            self.cleaned_ms.setdefault(offset, now_ms)

    def check(self) -> None:
        log = self.writer.topic(TOPIC)
        seen = records_of(log)
        known = max(self.history, default=-1)
        self.history.update((offset, record) for offset, record in seen if offset > known)
        whole = [Seen(offset, record) for offset, record in sorted(self.history.items())]
        assert all(self.history[offset] == record for offset, record in seen)
        assert values(seen) == values(whole)
        self.check_tombstones(seen, whole)
        self.check_key_compacted(seen, log.view.partitions[0].cleaned_offset)

    def check_tombstones(self, seen: list[Seen], whole: list[Seen]) -> None:
        """A reader that returns within delete.retention.ms reads every tombstone."""
        there = {offset for offset, _ in seen}
        newest = {record.key: offset for offset, record in whole if record.key is not None}
        now_ms = self.writer.store.now_ms()
        for offset in newest.values():
            if offset not in there:
                assert self.history[offset].value is None
                assert now_ms >= self.cleaned_ms[offset] + RETENTION_MS
        for offset in self.cleaned_ms:
            if self.lag_ms and offset in self.history:
                age_ms = self.cleaned_ms[offset] - self.history[offset].timestamp_us // 1000
                assert age_ms >= self.lag_ms

    def check_key_compacted(self, seen: list[Seen], cleaned_offset: int) -> None:
        """Behind a pass there is one record of each key, and none without."""
        cleaned = [record.key for offset, record in seen if offset < cleaned_offset]
        assert None not in cleaned
        assert len(set(cleaned)) == len(cleaned)


@given(OPS, st.sampled_from([0, 300]))
@settings(max_examples=settings().max_examples // 3)
def test_key_compaction_keeps_the_newest_committed_record_of_each_key(
    ops: list[tuple[object, ...]], lag_ms: int
) -> None:
    """Aborted values shadow nothing, tombstones outlive what they delete, killed passes (R23)."""
    model = Model(lag_ms)
    for op in ops:
        model.run(op)
    model.do_end(is_commit=False)
    for _ in range(3):
        model.do_wait(2 * RETENTION_MS)
        model.run(("write", "deferred", [("z", True)]))
        model.do_wait(lag_ms + 1)
        model.run(("key_compact", None, 1 << 20))
    left = {record.key: record.value for _, record in records_of(model.writer.topic(TOPIC))}
    whole = [Seen(offset, record) for offset, record in sorted(model.history.items())]
    assert left == values(whole)
