"""Whose turn it is to make a checkpoint, from what it is made, and what that costs."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.number_log import HOUR_MS, TABLE, created, opened, write
from txnlog.errors import StorageError
from txnlog.storage.delta import checkpoints, log_files
from txnlog.storage.delta.delta_log import Committed, DeltaLog, LogSettings
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory

INLINE = LogSettings(checkpoint_interval=5, checkpoint_mode="inline", log_retention_ms=HOUR_MS)


class Calls:
    """A plan in which nothing fails, and each call is remembered."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def __call__(self, verb: str, path: str) -> Fault:
        self.made.append((verb, path.rsplit("/", 1)[-1]))
        return Fault.NONE

    def count(self, verb: str) -> int:
        return sum(made == verb for made, _ in self.made)


def process(shared: SharedMemory) -> tuple[FaultyStore, DeltaLog, Calls]:
    store = shared.open()
    log, _ = opened(store, INLINE)
    calls = store.plan = Calls()
    return store, log, calls


def put_many(log: DeltaLog, first: int, end: int) -> None:
    for number in range(first, end):
        log.refresh()
        assert isinstance(write(log, number), Committed)


def checkpointed(store: ObjectStore) -> list[int]:
    return log_files.list_whole_log(store, TABLE).checkpoints


def test_writer_lists_the_log_for_its_first_checkpoint_only() -> None:
    """A local disk reads all of a day's commits for a listing."""
    shared = SharedMemory()
    created(shared.open())
    _, log, calls = process(shared)
    put_many(log, 1, 6)
    # One to make it, and one to look for what has expired.
    assert calls.count("list") == 2
    put_many(log, 6, 51)
    assert calls.count("list") == 2
    assert checkpointed(shared.open()) == list(range(5, 51, 5))
    assert opened(shared.open())[1].numbers == {f"{n}": n for n in range(1, 51)}


def test_checkpoint_costs_the_same_calls_however_long_the_log_is() -> None:
    shared = SharedMemory()
    created(shared.open())
    _, log, calls = process(shared)
    put_many(log, 1, 11)
    taken = []
    for first in range(11, 61, 5):
        before = len(calls.made)
        put_many(log, first, first + 5)
        taken.append(len(calls.made) - before)
    assert len(set(taken)) == 1


def test_what_was_known_longer_ago_than_it_is_trusted_is_looked_up_again() -> None:
    """By then clean-up may have freed the slots, and a sleeper may have filled one (R70)."""
    shared = SharedMemory()
    created(shared.open())
    _, log, calls = process(shared)
    put_many(log, 1, 6)
    listings = calls.count("list")
    shared.clock.advance_ms(INLINE.trust_ms + 1)
    put_many(log, 6, 7)
    opening = calls.count("list") - listings
    assert opening == 1
    put_many(log, 7, 11)
    assert calls.count("list") == listings + opening + 1 + 1
    assert checkpointed(shared.open()) == [5, 10]


def test_next_checkpoint_is_made_from_another_process() -> None:
    """Its commits may be gone; and the writer's own must not be made a second time."""
    shared = SharedMemory()
    created(shared.open())
    _, log, calls = process(shared)
    put_many(log, 1, 6)
    other, theirs, _ = process(shared)
    put_many(theirs, 6, 9)
    assert checkpoints.create_checkpoint(other, TABLE, trust_ms=INLINE.trust_ms) == 8
    log.refresh()
    other.delete([commit_path(TABLE, version) for version in range(8)])
    put_many(log, 9, 11)
    assert checkpointed(shared.open()) == [5, 8]
    listings = calls.count("list")
    put_many(log, 11, 16)
    assert checkpointed(shared.open()) == [5, 8, 15]
    assert calls.count("list") == listings
    assert opened(shared.open())[1].numbers == {f"{n}": n for n in range(1, 16)}
    assert ("get", f"{8:020}.checkpoint.parquet") in calls.made


def test_failed_checkpoint_is_made_by_a_listing_next_time() -> None:
    shared = SharedMemory()
    created(shared.open())
    store, log, _ = process(shared)
    put_many(log, 1, 6)
    store.delete([checkpoint_path(TABLE, 5)])
    put_many(log, 6, 11)
    assert checkpointed(store) == []
    put_many(log, 11, 16)
    assert checkpointed(store) == [15]
    assert opened(shared.open())[1].numbers == {f"{n}": n for n in range(1, 16)}


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"version":"5"}',
        b'{"version":2}',
        b'{"version":900}',
        b'{"version":5,"size":999999999}',
        None,
    ],
)
def test_hint_that_is_wrong_does_no_harm(hint: bytes | None) -> None:
    """`_last_checkpoint` may be old, or anything (R66)."""
    shared = SharedMemory()
    created(shared.open())
    store, log, _ = process(shared)
    put_many(log, 1, 6)
    path = f"{TABLE}/_delta_log/_last_checkpoint"
    if hint is None:
        store.delete([path])
    else:
        store.put(path, hint)
    put_many(log, 6, 11)
    assert checkpointed(store) == [5, 10]
    assert opened(shared.open())[1].numbers == {f"{n}": n for n in range(1, 11)}
    assert opened(shared.open(), INLINE)[0].version == 10


def test_checkpoint_that_took_too_long_is_thrown_away() -> None:
    """It was suspended while it read: clean-up may have freed slots, and others filled them."""
    shared = SharedMemory()
    created(shared.open())
    store, log, _ = process(shared)
    put_many(log, 1, 6)
    put_many(log, 6, 10)
    log.refresh()
    asleep = FaultsAt({}, interlude=lambda: shared.clock.advance_ms(HOUR_MS), interlude_at=4)
    store.plan = asleep
    assert isinstance(write(log, 10), Committed)
    assert asleep.calls > 4
    assert checkpointed(shared.open()) == [5]


def test_large_tables_get_checkpoints_less_often() -> None:
    """One of 500 actions is worth 20 commits: the share of time they take stays the same."""
    shared = SharedMemory()
    created(shared.open(), 500)
    _, log, _ = process(shared)
    put_many(log, 501, 601)
    made = checkpointed(shared.open())
    gaps = [b - a for a, b in pairwise(made)]
    assert gaps
    assert all(20 <= gap <= 30 for gap in gaps)


STEPS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 7))
    | st.tuples(st.just("wait"), st.just(0), st.integers(1, 70))
    | st.tuples(st.just("checkpoint"), st.just(0), st.just(0))
    | st.tuples(st.just("fail"), st.integers(0, 2), st.integers(0, 12)),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS, fault=st.sampled_from([Fault.FAIL_BEFORE, Fault.LOSE_REPLY]))
def test_whatever_turns_are_taken_the_log_is_what_was_written(
    steps: list[tuple[str, int, int]], fault: Fault
) -> None:
    """Three writers, clean-up by an hour's retention, waits up to 70 minutes, lost calls (R11).

    No writer sleeps between its read and its put: test_log_sleepers and the model have those.
    """
    shared = SharedMemory()
    created(shared.open())
    writers = []
    for _ in range(3):
        store = shared.open()
        writers.append((store, opened(store, INLINE)[0]))
    tried: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    for kind, who, amount in steps:
        store, log = writers[who]
        if kind == "wait":
            shared.clock.advance_ms(amount * 60_000)
        elif kind == "checkpoint":
            checkpoints.create_checkpoint(shared.open(), TABLE, trust_ms=INLINE.trust_ms)
        elif kind == "fail":
            store.plan = FaultsAt({amount: fault})
        else:
            for _ in range(amount):
                number = len(tried) + 1
                tried[f"{number}"] = number
                with suppress(StorageError):
                    log.refresh()
                    if isinstance(write(log, number), Committed):
                        acknowledged[f"{number}"] = number
        found = opened(shared.open())[1].numbers
        assert acknowledged.items() <= found.items() <= tried.items()
