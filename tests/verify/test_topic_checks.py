"""The vectorised checks of a topic against a plain loop, and what explains a gap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.protocol.batches import ABORTED, COMMITTED, NONE, ONGOING, BatchHeader, encode_stats
from txnlog.protocol.verification.findings import FindingKind, Findings
from txnlog.protocol.verification.headers import read_batches
from txnlog.protocol.verification.replay import File, TableMetadata, TableState, differences
from txnlog.protocol.verification.topics import TopicFacts, check_topic

K = FindingKind
PARTITIONS = 2
METADATA = TableMetadata(
    "id",
    "{}",
    ("partition", "base_offset", "last_offset", "producer_id", "producer_epoch",
     "base_sequence", "txn_status"),
    {},
)  # fmt: skip


def header(
    number: int, base: int, last: int, *, partition: int = 0, producer: int = -1, epoch: int = -1,
    sequence: int = -1, status: str = NONE,
) -> BatchHeader:  # fmt: skip
    return BatchHeader(
        f"part-{number}.parquet", partition, base, last, producer, epoch, sequence, status, 10,
        encode_stats(last - base + 1, 1, 2),
    )  # fmt: skip


def state_of(headers: Sequence[BatchHeader], txns: dict[str, int]) -> TableState:
    state = TableState()
    state.metadata = METADATA
    for app_id, version in txns.items():
        state.set_txn(app_id, version, 1_000)
    for one in headers:
        state.add(File(one.path, one.size_bytes, 5_000, one.stats, one.to_values()))
    return state


def checked(
    headers: Sequence[BatchHeader], txns: dict[str, int] | None = None
) -> tuple[list[tuple[FindingKind, str]], TopicFacts]:
    findings = Findings()
    state = state_of(headers, txns or {})
    batches = read_batches("t", state, findings)
    facts = check_topic("t", state, batches, {"partitions": str(PARTITIONS)}, findings)
    return ordered([(f.kind, f.file[2:]) for f in findings]), facts


def ordered(found: list[tuple[FindingKind, str]]) -> list[tuple[FindingKind, str]]:
    return sorted(found, key=lambda one: (one[0].name, one[1]))


def plain(headers: Sequence[BatchHeader], txns: dict[str, int]) -> list[tuple[FindingKind, str]]:
    """The same by a loop: offsets, sequences of transactions, markers."""
    found = []
    for partition in range(PARTITIONS):
        start = txns.get(f"txnlog/start/{partition}", 0)
        reached = None
        seen: dict[tuple[int, int], BatchHeader] = {}
        merged_after: dict[tuple[int, int], bool] = {}
        batches = [one for one in headers if one.partition == partition]
        for one in sorted(batches, key=lambda batch: batch.base_offset):
            if reached is not None and one.base_offset <= reached:
                found.append((K.BATCHES_OVERLAP, one.path))
            if reached is not None and reached + 1 < one.base_offset > start:
                found.append((K.OFFSETS_MISSING, one.path))
            reached = one.last_offset if reached is None else max(reached, one.last_offset)
            if one.producer_id < 0:
                merged_after = dict.fromkeys(merged_after, True)
                continue
            key = one.producer_id, one.producer_epoch
            before = seen.get(key)
            if before is not None:
                is_gone = merged_after[key] or before.last_offset < start
                if one.base_sequence > before.last_sequence + 1 and not is_gone:
                    found.append((K.SEQUENCE_GAP, one.path))
                if one.base_sequence <= before.last_sequence:
                    found.append((K.SEQUENCE_REPEATED, one.path))
            seen[key], merged_after[key] = one, False
            marker = txns.get(f"txnlog/{one.producer_id}", -1)
            if one.status in (COMMITTED, ABORTED) and marker < one.producer_epoch:
                found.append((K.MARKER_MISSING, one.path))
            if one.status == ONGOING and marker >= one.producer_epoch:
                found.append((K.UNDECIDED_AFTER_MARKER, one.path))
    return ordered(found)


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[BatchHeader], dict[str, int]]:
    headers = []
    next_offset = [0] * PARTITIONS
    for number in range(draw(st.integers(0, 12))):
        partition = draw(st.integers(0, PARTITIONS - 1))
        # Same base offsets have no order of their own.
        base = next_offset[partition] + draw(st.sampled_from([0, 0, 0, 2]))
        last = base + draw(st.integers(1, 3))
        next_offset[partition] = last + draw(st.sampled_from([1, 1, 1, 0]))
        producer = draw(st.sampled_from([-1, 1, 2]))
        status = draw(st.sampled_from([COMMITTED, ABORTED, ONGOING])) if producer > 0 else NONE
        headers.append(
            header(
                number, base, last, partition=partition, producer=producer,
                epoch=draw(st.integers(0, 1)) if producer > 0 else -1,
                sequence=draw(st.sampled_from([0, 2, 4, 9])) if producer > 0 else -1,
                status=status,
            )
        )  # fmt: skip
    txns = {"txnlog/1": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        partition = draw(st.integers(0, PARTITIONS - 1))
        bound = draw(st.integers(0, max(next_offset[partition] - 1, 0)))
        txns[f"txnlog/start/{partition}"] = bound
    return headers, txns


@given(topics())
def test_checks_by_column_equal_checks_by_loop(
    topic: tuple[list[BatchHeader], dict[str, int]],
) -> None:
    """A vectorised check that is off by one misses damage, or cries wolf."""
    headers, txns = topic
    found, _ = checked(headers, txns)
    assert [one for one in found if one[0] is not K.BOUND_WRONG] == plain(headers, txns)


def idempotent(number: int, base: int, sequence: int, *, epoch: int = 0) -> BatchHeader:
    return header(number, base, base, producer=5, epoch=epoch, sequence=sequence)


KNOWN = {"txnlog/5-0": 2}


@pytest.mark.parametrize(
    ("headers", "txns", "expected"),
    [
        ([idempotent(0, 0, 0), idempotent(1, 1, 1), idempotent(2, 2, 2)], KNOWN, []),
        # The producer has expired: its remaining batches are not checked (D48).
        ([idempotent(0, 0, 0), idempotent(1, 1, 7), idempotent(2, 2, 2)], {}, []),
        # Small batches in between were merged into a segment.
        ([idempotent(0, 0, 0), header(1, 1, 1), idempotent(2, 2, 2)], KNOWN, []),
        ([idempotent(0, 0, 0), idempotent(1, 1, 2)], KNOWN, [K.SEQUENCE_GAP]),
        ([idempotent(0, 0, 1), idempotent(1, 1, 1), idempotent(2, 2, 2)], KNOWN,
         [K.SEQUENCE_REPEATED]),
        ([idempotent(0, 0, 0), idempotent(1, 1, 1)], KNOWN, [K.SEQUENCE_GAP]),
        # A new epoch begins at sequence 0.
        ([idempotent(0, 0, 8), idempotent(1, 1, 2, epoch=1)], KNOWN, []),
    ],
)  # fmt: skip
def test_sequences_of_an_idempotent_producer(
    headers: list[BatchHeader], txns: dict[str, int], expected: list[FindingKind]
) -> None:
    """Compaction, expiry and new epochs leave no gap (R2, R22)."""
    assert [kind for kind, _ in checked(headers, txns)[0]] == expected


def test_offsets_below_the_log_start_need_no_batch() -> None:
    """Retention keeps an idempotent producer's last batches below it, and nothing else (D42)."""
    headers = [idempotent(0, 3, 2), header(1, 10, 12)]
    assert checked(headers, {**KNOWN, "txnlog/start/0": 10})[0] == []
    assert checked(headers, {**KNOWN, "txnlog/start/0": 9})[0] == [
        (K.OFFSETS_MISSING, "part-1.parquet")
    ]


def test_an_end_without_batches_is_a_log_that_retention_has_emptied() -> None:
    """And with batches that do not reach it, the newest are missing."""
    found, facts = checked([], {"txnlog/end/1": 7})
    assert (found, facts.starts, facts.ends) == ([], [0, 7], [0, 7])
    found, _ = checked([header(0, 0, 4, partition=1)], {"txnlog/end/1": 7})
    assert found == [(K.OFFSETS_MISSING, "part-0.parquet")]


def test_an_expired_marker_is_not_missing() -> None:
    """Markers of ids without a row go after a week (D41)."""
    batch = header(0, 0, 1, producer=1, epoch=0, sequence=0, status=COMMITTED)
    assert checked([batch], {"txnlog/expired/transactions": 6_000})[0] == []
    assert checked([batch], {"txnlog/expired/transactions": 4_000})[0] == [
        (K.MARKER_MISSING, "part-0.parquet")
    ]


def test_differences_name_what_differs() -> None:
    """A checkpoint that lost a file must not pass as equal."""
    first, second, third = header(0, 0, 1), header(1, 2, 3), header(2, 4, 5)
    whole = state_of([first, second], {"txnlog/1": 3})
    assert differences(whole, state_of([second, first], {"txnlog/1": 3})) == []
    assert "lacks 1 live files" in str(differences(whole, state_of([first], {"txnlog/1": 3})))
    more = state_of([first, second, third], {"txnlog/1": 3})
    assert "names 1 files that are not live" in str(differences(whole, more))
    other = state_of([first, header(1, 2, 9)], {"txnlog/1": 3})
    assert "last_offset of 1 files" in str(differences(whole, other))
    assert "txn txnlog/1" in str(differences(whole, state_of([first, second], {"txnlog/1": 4})))
    assert "txn txnlog/1 is missing" in str(differences(whole, state_of([first, second], {})))
    lighter = state_of([first, second], {"txnlog/1": 3})
    lighter.metadata = METADATA._replace(configuration={"a": "b"})
    assert "metaData" in str(differences(whole, lighter))
