"""Random topics against a small model of Kafka's retention, file by file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.housekeeping.retention.worlds import (
    HOUR_MS,
    TOPIC,
    Idempotent,
    bounds,
    commit,
    enforce,
    open_eagerly,
    staged,
    topic,
    world,
)
from tests.world import SETTINGS, process
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.protocol.topic_changes import prepare_delete_records
from txnlog.testing.invariants import check_cluster, read_committed

AGES_MS = st.sampled_from([0, HOUR_MS // 2, HOUR_MS, 3 * HOUR_MS, -HOUR_MS])
SIZES = st.sampled_from([1, 60, 100, 250])
LIMITS = st.sampled_from(["-1", "0", "100", "300"])
RETENTIONS = st.sampled_from(["-1", "0", str(HOUR_MS), str(4 * HOUR_MS)])
POLICIES = st.sampled_from(["delete", "compact", "compact,delete"])
PRODUCERS = 2


@dataclass(frozen=True)
class File:
    """A file whose records a reader can still get; `newest_ms` is of its newest record."""

    first: int
    last: int
    size_bytes: int
    newest_ms: int


class RetentionMachine(RuleBasedStateMachine):
    """One partition. The model holds the files at or above the log start, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = world(settings=SETTINGS, retention_ms=HOUR_MS, retention_bytes=300)
        self.cluster = process(self.shared, settings=SETTINGS)
        self.producers = [Idempotent(self.cluster) for _ in range(PRODUCERS)]
        self.config = {"retention.ms": str(HOUR_MS), "retention.bytes": "300"}
        self.files: list[File] = []
        self.start = self.end = 0
        self.open: TransactionMetadata | None = None
        self.undecided: int | None = None

    def _add(self, age_ms: int, size_bytes: int) -> StagedBatch:
        batch = staged(self.cluster, age_ms=age_ms, size_bytes=size_bytes)
        newest_ms = batch.timestamp_max_us // 1000
        last = self.end + batch.num_records - 1
        self.files.append(File(self.end, last, size_bytes, newest_ms))
        self.end = last + 1
        return batch

    @rule(age_ms=AGES_MS, size_bytes=SIZES)
    def commit(self, age_ms: int, size_bytes: int) -> None:
        commit(self.cluster, self._add(age_ms, size_bytes))

    @rule(age_ms=AGES_MS, size_bytes=SIZES, number=st.integers(0, PRODUCERS - 1))
    def send(self, age_ms: int, size_bytes: int, number: int) -> None:
        self.producers[number].send(self._add(age_ms, size_bytes))

    @precondition(lambda self: self.open is None)
    @rule(age_ms=AGES_MS, size_bytes=SIZES)
    def begin(self, age_ms: int, size_bytes: int) -> None:
        self.undecided = self.end
        self.open = open_eagerly(self.cluster, self._add(age_ms, size_bytes))

    @precondition(lambda self: self.open is not None)
    @rule(is_commit=st.booleans())
    def end_transaction(self, is_commit: bool) -> None:
        coordinator = self.cluster.coordinator
        (coordinator.commit if is_commit else coordinator.abort)(self.open)
        self.open = self.undecided = None

    @rule(part=st.integers(0, 100))
    def delete_records(self, part: int) -> None:
        upto = part * self.end // 100
        topic(self.cluster).transact(
            lambda state: prepare_delete_records(state, topic=TOPIC, before={0: upto})
        )
        self.start = max(self.start, upto)

    @rule(hours=st.integers(1, 5))
    def wait(self, hours: int) -> None:
        self.shared.clock.advance_ms(hours * HOUR_MS)

    @rule(limit=LIMITS, retention=RETENTIONS, policy=POLICIES)
    def configure(self, limit: str, retention: str, policy: str) -> None:
        self.config = {
            "retention.bytes": limit, "retention.ms": retention, "cleanup.policy": policy,
        }  # fmt: skip
        topic(self.cluster).alter(lambda config: {**config, **self.config})

    @rule(files_max=st.sampled_from([1, 2, 10_000]), is_cold=st.booleans())
    def enforce(self, files_max: int, is_cold: bool) -> None:
        keeper = process(self.shared, settings=SETTINGS) if is_cold else self.cluster
        enforce(keeper, files_max=files_max)
        self._expect(self.shared.clock.now_ms())
        assert enforce(keeper) == 0

    def _stable(self) -> int:
        return self.end if self.undecided is None else max(self.undecided, self.start)

    def _expect(self, now_ms: int) -> None:
        """Kafka's three passes over the oldest segments, one after the other."""
        stable = self._stable()
        deletes = "delete" in self.config.get("cleanup.policy", "delete")
        retention_ms = int(self.config["retention.ms"]) if deletes else -1
        limit = int(self.config["retention.bytes"]) if deletes else -1

        def drop(is_due) -> None:
            while self.files and self.files[0].last < stable and is_due(self.files[0]):
                self.start = max(self.start, self.files.pop(0).last + 1)

        drop(lambda file: file.last < self.start)
        if limit >= 0:
            over = sum(file.size_bytes for file in self.files) - limit

            def is_over(file: File) -> bool:
                nonlocal over
                if over < file.size_bytes:
                    return False
                over -= file.size_bytes
                return True

            drop(is_over)
        if retention_ms >= 0:
            drop(lambda file: now_ms - file.newest_ms > retention_ms)

    @rule(number=st.integers(0, PRODUCERS - 1), back=st.integers(0, 4))
    def repeat(self, number: int, back: int) -> None:
        """A producer whose reply was lost sends one of its last five batches again (R2, R22)."""
        producer = self.producers[number]
        if len(producer.sent.get(0, [])) > back:
            again, before = producer.repeat(0, back)
            assert again == before

    @invariant()
    def bounds_and_records_are_the_models(self) -> None:
        start, stable, end = bounds(self.cluster)
        assert (start, end) == (self.start, self.end)
        assert start <= stable == self._stable() <= end
        seen = [(b.base_offset, b.last_offset) for b in read_committed(topic(self.cluster).view)[0]]
        known = [(f.first, f.last) for f in self.files if self.start <= f.last]
        assert set(seen) <= set(known)
        check_cluster(self.cluster)


class TestRetention(RetentionMachine.TestCase):
    """Seeds and steps of a failure are printed; its blob replays it anywhere."""

    settings = hypothesis_settings(max_examples=12, stateful_step_count=20)


@pytest.mark.soak
def test_retention_for_long() -> None:
    """The same with new histories."""
    run_state_machine_as_test(
        RetentionMachine,
        settings=hypothesis_settings(max_examples=100, stateful_step_count=50, derandomize=False),
    )
