"""The real log code among clean-up, checkpoints, stopped processes and lost replies."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.version_slots import (
    BLIND_DENIAL,
    BLIND_PUT,
    BLIND_READ,
    BLIND_RETRY,
    LONG_DATED,
    NEVER_DISTRUST,
    NEVER_PROVED,
    PROVED_BY_ABSENCE,
    PROVED_LATE,
    UNDATED,
    VersionSlots,
)
from txnlog.storage.delta import delta_log

SOAK_STATES_MAX = 600_000


def test_writer_stopped_anywhere_commits_once_and_knows() -> None:
    """A freed slot takes a commit into the past, or a retry commits twice (R62, R63, R70)."""
    assert_holds(VersionSlots("Wck", commits=1, ticks=2), states_min=2_000)


@pytest.mark.soak
def test_writer_with_lost_replies_commits_once_and_knows() -> None:
    """A put that landed reads as failed (R63)."""
    assert_holds(VersionSlots("W", commits=2, lost_replies=True), states_min=10_000)


@pytest.mark.soak
def test_reader_among_clean_up_hands_out_the_log_as_it_is() -> None:
    """Files vanish between a listing and a read (R66, R70)."""
    assert_holds(VersionSlots("Rck", commits=2, ticks=2, rounds=2), states_min=2_000)


@pytest.mark.soak
def test_reader_far_behind_catches_up_by_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that grew old while its files were read is trusted (R70)."""
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    assert_holds(VersionSlots("Rck", commits=2, ticks=2, rounds=2), states_min=2_000)


@pytest.mark.parametrize(("actor", "commits"), [("R", 2), ("W", 1)])
def test_process_far_behind_on_a_local_disk_reads_on_by_number(
    actor: str, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up frees the slots meanwhile that it began with, and it is paused at any of them (R70).

    W looks into its slot before its put: it may belong to the log no more.
    """
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    model = VersionSlots(
        f"{actor}ck", commits=commits, ticks=3, rounds=commits, frozen=True, local=True
    )
    assert_holds(model, states_min=500)


@pytest.mark.soak
def test_search_finds_what_is_read_on_by_number_without_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last version that is there may be a stray far below the head (R70)."""
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    broken = frozenset({BLIND_READ})
    model = VersionSlots(
        "RTck", commits=2, ticks=3, rounds=1, frozen=True, local=True, broken=broken
    )
    assert_breaks(model, "R hands out")


@pytest.mark.soak
@pytest.mark.parametrize("actor", ["W", "S", "T", "L", "M"])
def test_longer_histories_on_a_local_disk_hold(actor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with writers that have read it, and with commits that are proved later (R70)."""
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    model = VersionSlots(f"{actor}ck", commits=2, ticks=3, rounds=2, frozen=True, local=True)
    assert_holds(model, states_min=2_000)


@pytest.mark.soak
def test_clean_up_that_is_stopped_anywhere_leaves_no_hole() -> None:
    """A cleaner deletes, file by file, by a listing of long ago (R66, R70)."""
    assert_holds(VersionSlots("cK", commits=2, ticks=3), states_min=2_000)


def test_search_finds_the_commit_into_a_freed_slot() -> None:
    """Trusting an absence for ever acknowledges what no reader will see (R70)."""
    broken = frozenset({NEVER_DISTRUST, BLIND_PUT})
    model = VersionSlots("Wck", commits=2, ticks=2, broken=broken)
    assert_breaks(model, "acknowledged, and not in the log")


def test_writer_in_a_paused_guest_commits_once_and_knows() -> None:
    """All its clocks stop while the others clean up the slot that it commits to (R70)."""
    assert_holds(VersionSlots("Wck", commits=1, ticks=3, frozen=True), states_min=500)


@pytest.mark.soak
def test_reader_in_a_paused_guest_hands_out_the_log_as_it_is() -> None:
    """The slot it waits for was freed long ago: it would wait for ever (R70)."""
    assert_holds(VersionSlots("Rck", commits=2, ticks=3, rounds=2, frozen=True), states_min=500)


def test_search_finds_the_commit_of_a_paused_guest_into_a_freed_slot() -> None:
    """No clock shows it; only the slot before does (R70)."""
    broken = frozenset({BLIND_PUT})
    model = VersionSlots("Wck", commits=2, ticks=3, frozen=True, broken=broken)
    assert_breaks(model, "acknowledged, and not in the log")


@pytest.mark.parametrize("actor", ["W", "S"])
def test_writer_in_a_paused_guest_is_told_by_the_dates_of_its_requests(actor: str) -> None:
    """It wakes up with a clock that is behind, or set: no slot before is looked at (R70)."""
    assert_holds(VersionSlots(f"{actor}ck", commits=1, ticks=3, dated=True), states_min=20_000)


@pytest.mark.parametrize(
    ("actor", "broken"),
    [("W", LONG_DATED), ("W", UNDATED), ("S", PROVED_BY_ABSENCE), ("T", PROVED_LATE)],
)
def test_search_finds_what_dates_do_not_show(actor: str, broken: str) -> None:
    """Relied on for too long, not checked by the store, or begun at a freed slot (R70)."""
    model = VersionSlots(
        f"{actor}ck", commits=2, ticks=3, rounds=1, dated=True, broken=frozenset({broken})
    )
    assert_breaks(model, "acknowledged, and not in the log")


@pytest.mark.soak
@pytest.mark.parametrize("actor", ["W", "S", "T", "L", "M"])
def test_longer_histories_of_dated_requests_hold(actor: str) -> None:
    """The same with two commits of others, and with commits that are proved later (R70)."""
    model = VersionSlots(f"{actor}ck", commits=2, ticks=3, rounds=1, dated=True)
    assert_holds(model, states_min=100_000)


@pytest.mark.soak
@pytest.mark.parametrize("actor", ["L", "M"])
def test_nothing_rests_on_a_commit_that_is_not_proved_yet(actor: str) -> None:
    """It may be in a freed slot, as all that is read or written after it (R70)."""
    model = VersionSlots(f"{actor}ck", commits=2, ticks=3, rounds=1, frozen=True)
    assert_holds(model, states_min=2_000)


@pytest.mark.soak
@pytest.mark.parametrize(("actor", "commits"), [("L", 3), ("M", 2)])
def test_search_finds_what_rests_on_a_commit_that_is_never_proved(actor: str, commits: int) -> None:
    """The slot before holds our own stray, which proves nothing (R70)."""
    broken = frozenset({NEVER_PROVED})
    model = VersionSlots(
        f"{actor}ck", commits=commits, ticks=3, rounds=1, frozen=True, broken=broken
    )
    assert_breaks(model, f"{actor} ")


@pytest.mark.soak
def test_search_finds_the_denial_by_a_stray_of_the_same_guest() -> None:
    """Ours landed, its reply was lost, and the slot was freed and taken again (R63, R70)."""
    model = VersionSlots(
        "WVck",
        commits=1,
        ticks=3,
        rounds=1,
        lost_replies=True,
        frozen=True,
        broken=frozenset({BLIND_DENIAL}),
    )
    assert_breaks(model, "W is denied, and in the log")


def test_search_finds_the_second_commit_of_a_blind_retry() -> None:
    """A retry that does not look for its own effect writes it twice (R63)."""
    model = VersionSlots("W", commits=1, lost_replies=True, broken=frozenset({BLIND_RETRY}))
    assert_breaks(model, "twice")


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "Wck", "commits": 2, "ticks": 2},
        {"actors": "Wck", "commits": 1, "ticks": 3, "lost_replies": True},
        {"actors": "Rck", "commits": 2, "ticks": 3},
        {"actors": "Cck", "commits": 2, "ticks": 2},
        {"actors": "WCk", "commits": 1, "ticks": 2},
        {"actors": "WRck", "commits": 1, "ticks": 2, "rounds": 2},
        {"actors": "WRck", "commits": 1, "ticks": 3, "rounds": 2, "frozen": True},
        {
            "actors": "WVck",
            "commits": 1,
            "ticks": 3,
            "rounds": 1,
            "lost_replies": True,
            "frozen": True,
        },
        {"actors": "Wck", "commits": 2, "ticks": 5, "rounds": 1, "dated": True, "skew": 1},
        {"actors": "Sck", "commits": 2, "ticks": 5, "rounds": 1, "dated": True, "skew": 1},
        {"actors": "Tck", "commits": 2, "ticks": 5, "rounds": 1, "dated": True, "skew": 1},
        {"actors": "Sck", "commits": 2, "ticks": 3, "dated": True, "lost_replies": True},
    ],
    ids=str,
)
def test_larger_worlds_hold(model: dict[str, object]) -> None:
    """The same hazards with more time, more commits, or a slow checkpoint (R62, R63, R70)."""
    held = VersionSlots(**model)  # type: ignore[arg-type]
    assert_holds(held, states_min=2_000, states_max=SOAK_STATES_MAX, whole=False)
