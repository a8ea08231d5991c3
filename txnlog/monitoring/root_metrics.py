"""A root's metrics, from what was read of it.

Ages are seconds at the time of the reading, by the store's clock: no clock of a machine is compared
with that of another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from txnlog.admin.groups import state_of
from txnlog.monitoring.prometheus import label
from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.group_changes import is_gone
from txnlog.protocol.moments import PartitionMoment
from txnlog.protocol.problems import ProblemKind, RootState, Upkeep
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.waiting import is_published

Samples = Iterable[tuple[Sequence[str], float]]

PARTITION = ("topic", "partition")
POSITION = ("group", "topic", "partition")


class Family(NamedTuple):
    """Samples of one gauge: values of its labels, and a number."""

    name: str
    text: str
    labels: Sequence[str]
    samples: Samples


def root_families(
    state: RootState, topics: Mapping[str, Sequence[PartitionMoment]]
) -> Iterator[Family]:
    """All metrics of a root; `topics` are those that are there."""
    yield from _topics(state, topics)
    yield from _groups(state)
    yield from _transactions(state)
    found = Counter(problem.kind for problem in find_problems(state))
    yield Family(
        "problems",
        "What `txnlog why` reports now",
        ["kind"],
        [([kind.value], found[kind]) for kind in ProblemKind],
    )
    if state.upkeep is not None:
        yield from _housekeeping(state.upkeep, state.now_ms)
    if state.free_bytes is not None:
        yield Family(
            "disk_free_bytes", "Free space of a root on a local disk", [], [([], state.free_bytes)]
        )


def _topics(state: RootState, topics: Mapping[str, Sequence[PartitionMoment]]) -> Iterator[Family]:
    rows = [
        ([label(name), str(one.partition)], one)
        for name, found in sorted(topics.items())
        for one in found
    ]

    def family(name: str, text: str, values: Iterable[int]) -> Family:
        labelled = ((labels, value) for (labels, _), value in zip(rows, values, strict=True))
        return Family(f"topic_partition_{name}", text, PARTITION, list(labelled))

    figures = [one for _, one in rows]
    yield family("start_offset", "First offset", [one.log_start_offset for one in figures])
    yield family(
        "last_stable_offset",
        "Where read_committed readers end",
        [one.last_stable_offset for one in figures],
    )
    yield family("high_watermark", "Next offset", [one.high_watermark for one in figures])
    yield family(
        "last_stable_offset_lag",
        "Records at and after the first one of an open transaction",
        [one.high_watermark - one.last_stable_offset for one in figures],
    )
    yield family("files", "Live data files", [one.num_files for one in figures])
    yield family("size_bytes", "Bytes of the live data files", [one.size_bytes for one in figures])
    small = sorted((name, count) for name, count in state.small_files.items() if name in topics)
    yield Family(
        "topic_small_files",
        "Files that compaction can merge",
        ["topic"],
        [([label(name)], count) for name, count in small],
    )


def _groups(state: RootState) -> Iterator[Family]:
    groups = [one for _, one in sorted(state.groups.items()) if not is_gone(one)]
    offsets = [
        ((group.group_id, topic, number), offset)
        for group in groups
        for topic, numbers in sorted(group.positions().items())
        for number, offset in sorted(numbers.items())
    ]
    lags = [
        (key, max(0, state.topics[key[1]].ends[key[2]] - offset))
        for key, offset in offsets
        if key in state.unread
    ]
    ages = [
        (key, max(0, state.now_ms - state.oldest_ms.get(key, state.now_ms)) / 1000)
        for key, _ in lags
        if state.oldest_ms.get(key, 0) >= 0
    ]
    yield Family("group_offset", "Committed offset", POSITION, _positions(offsets))
    yield Family(
        "group_lag_records",
        "Offsets from the group's to the log end, as Kafka's tools count; also those held back",
        POSITION,
        _positions(lags),
    )
    yield Family(
        "group_lag_seconds",
        "Age of the first record after the group's offset, by its timestamp; 0 without one",
        POSITION,
        _positions(ages),
    )
    names = [(label(group.group_id), group) for group in groups]
    yield Family(
        "group_members", "Members", ["group"], [([name], len(one.members)) for name, one in names]
    )
    yield Family(
        "group_state",
        "1 for the state that the group is in",
        ["group", "state"],
        [([name, state_of(one).value], 1) for name, one in names],
    )


def _positions(values: Iterable[tuple[tuple[str, str, int], float]]) -> Samples:
    return [
        ([label(group), label(topic), str(number)], value)
        for (group, topic, number), value in values
    ]


def _transactions(state: RootState) -> Iterator[Family]:
    # As `txnlog transactions` shows them: a query's COMPLETE comes with its next batch.
    count = Counter(
        TransactionResult.of(row.state).complete if is_published(row, state) else row.state
        for row in state.rows
    )
    yield Family(
        "transactional_ids",
        "Transactional ids by the state of their transaction",
        ["state"],
        [([one.kafka_name], count[one]) for one in TransactionState if one.name != "DEAD"],
    )
    started = [
        row.started_ms
        for row in state.rows
        if row.state is TransactionState.ONGOING and row.started_ms >= 0
    ]
    age_ms = max(0, state.now_ms - min(started)) if started else 0
    yield Family(
        "oldest_open_transaction_age_seconds",
        "Age of the oldest open transaction; 0 without one",
        [],
        [([], age_ms / 1000)],
    )


def _housekeeping(upkeep: Upkeep, now_ms: int) -> Iterator[Family]:
    def family(name: str, text: str, labels: Sequence[str], samples: Samples) -> Family:
        return Family(f"housekeeping_{name}", text, labels, samples)

    def age(time_ms: int) -> float:
        return max(0, now_ms - time_ms) / 1000

    yield family("held", "1 if a process holds the lease", [], [([], bool(upkeep.holder))])
    yield family(
        "lease_renewed_age_seconds",
        "Since the lease was taken, renewed or released",
        [],
        [([], age(upkeep.changed_ms))],
    )
    if upkeep.since_ms >= 0:
        text = "Since a process took the lease, or released it"
        yield family("lease_age_seconds", text, [], [([], age(upkeep.since_ms))])
    runs, overdue = upkeep.duties.items(), upkeep.overdue(now_ms)
    yield family(
        "duty_age_seconds",
        "Since the last run of a duty",
        ["duty"],
        [([label(name)], age(run.at_ms)) for name, run in runs],
    )
    yield family(
        "duty_failed",
        "1 if the last run of a duty failed",
        ["duty"],
        [([label(name)], bool(run.error)) for name, run in runs],
    )
    yield family(
        "duty_overdue",
        "1 if a duty should have run again by now",
        ["duty"],
        [([label(name)], name in overdue) for name, _ in runs],
    )
