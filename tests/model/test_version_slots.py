"""The real log code among clean-up, checkpoints, stopped processes and lost replies."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.version_slots import (
    BLIND,
    BLIND_RETRY,
    BY_BOOT_CLOCK,
    NEVER_DISTRUST,
    VersionSlots,
)
from txnlog.storage.delta import delta_log

SOAK_STATES_MAX = 600_000
LOST = "acknowledged, and not in the log"


@pytest.mark.parametrize("still", [False, True])
def test_writer_stopped_anywhere_commits_once_and_knows(still: bool) -> None:
    """A freed slot takes a commit into the past, or a retry commits twice (R62, R63, R70)."""
    assert_holds(VersionSlots("Wck", commits=1, ticks=2, still=still), states_min=2_000)


@pytest.mark.soak
def test_writer_with_lost_replies_commits_once_and_knows() -> None:
    """A put that landed reads as failed (R63)."""
    assert_holds(VersionSlots("W", commits=2, lost_replies=True), states_min=10_000)


@pytest.mark.soak
@pytest.mark.parametrize("still", [False, True])
def test_reader_among_clean_up_hands_out_the_log_as_it_is(still: bool) -> None:
    """Files vanish between a listing and a read (R66, R70)."""
    model = VersionSlots("Rck", commits=2, ticks=2, rounds=2, still=still)
    assert_holds(model, states_min=2_000)


@pytest.mark.soak
def test_reader_far_behind_catches_up_by_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that grew old while its files were read is trusted (R70)."""
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    assert_holds(VersionSlots("Rck", commits=2, ticks=2, rounds=2), states_min=2_000)


@pytest.mark.soak
@pytest.mark.parametrize(("actor", "commits"), [("R", 2), ("W", 1)])
def test_process_far_behind_on_a_local_disk_reads_on_by_number(
    actor: str, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up frees the slots meanwhile that it began with; it is stopped at any of them (R70).

    W looks into its slot before its put: it may belong to the log no more.
    """
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 1)
    model = VersionSlots(f"{actor}ck", commits=commits, ticks=3, rounds=commits, local=True)
    assert_holds(model, states_min=500)


@pytest.mark.soak
def test_clean_up_that_is_stopped_anywhere_leaves_no_hole() -> None:
    """A cleaner deletes, file by file, by a listing of long ago (R66, R70)."""
    assert_holds(VersionSlots("cK", commits=2, ticks=3), states_min=2_000)


@pytest.mark.parametrize(("still", "broken"), [(False, NEVER_DISTRUST), (True, BY_BOOT_CLOCK)])
def test_search_finds_the_commit_into_a_freed_slot(still: bool, broken: str) -> None:
    """Trusting an absence for ever acknowledges what no reader will see (R70)."""
    model = VersionSlots(
        "Wck", commits=2, ticks=2, rounds=1, still=still, broken=frozenset({broken})
    )
    assert_breaks(model, LOST)


@pytest.mark.parametrize("local", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_guest_paused_while_idle_commits_once_and_knows(local: bool) -> None:
    """No clock shows it that the others have cleaned up the slot that is next (R70)."""
    model = VersionSlots("Wck", commits=2, ticks=2, rounds=1, guests="W", local=local)
    # As many as the search needs for its broken variants, and more; all of them are for `soak`.
    assert_holds(model, states_min=500, states_max=4_000, whole=False)


def test_search_finds_the_branch_of_a_guest_that_does_not_look() -> None:
    """It would go on in slots that were freed, and read back what it writes (R70)."""
    model = VersionSlots("Wck", commits=2, ticks=2, rounds=1, guests="W", broken=frozenset({BLIND}))
    assert_breaks(model, LOST)


def test_search_finds_that_a_guest_paused_just_after_a_look_is_not_told() -> None:
    """The limit of the promise, as the documents say it (R70)."""
    assert_breaks(VersionSlots("Wck", commits=2, ticks=2, rounds=1, guests="W", recent=True), LOST)


@pytest.mark.soak
@pytest.mark.parametrize("local", [False, True])
def test_reader_in_a_paused_guest_hands_out_the_log_as_it_is(local: bool) -> None:
    """The slot it waits for was freed long ago, and has the stray of another guest (R70)."""
    model = VersionSlots("RWck", commits=2, ticks=3, rounds=2, guests="R", local=local)
    assert_holds(model, states_min=500, states_max=SOAK_STATES_MAX, whole=False)


@pytest.mark.soak
def test_search_finds_the_stray_that_a_guest_reads_without_a_look() -> None:
    """A put that came too late is in a freed slot, where the guest reads on (R70)."""
    broken = frozenset({BLIND})
    model = VersionSlots("RWck", commits=2, ticks=3, rounds=2, guests="R", broken=broken)
    assert_breaks(model, "R hands out")


def test_search_finds_the_second_commit_of_a_blind_retry() -> None:
    """A retry that does not look for its own effect writes it twice (R63)."""
    model = VersionSlots("W", commits=1, lost_replies=True, broken=frozenset({BLIND_RETRY}))
    assert_breaks(model, "twice")


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "Wck", "commits": 2, "ticks": 2},
        {"actors": "Wck", "commits": 2, "ticks": 3, "still": True},
        {"actors": "Wck", "commits": 2, "ticks": 3, "rounds": 1, "guests": "W"},
        {"actors": "Wck", "commits": 2, "ticks": 3, "guests": "W"},
        {"actors": "Wck", "commits": 2, "ticks": 3, "guests": "W", "local": True},
        {"actors": "Wck", "commits": 1, "ticks": 3, "lost_replies": True},
        {"actors": "Rck", "commits": 2, "ticks": 3},
        {"actors": "Cck", "commits": 2, "ticks": 2},
        {"actors": "WCk", "commits": 1, "ticks": 2},
        {"actors": "WRck", "commits": 1, "ticks": 2, "rounds": 2},
        {"actors": "WRck", "commits": 1, "ticks": 3, "rounds": 2, "guests": "W"},
        {"actors": "WVck", "commits": 1, "ticks": 3, "rounds": 1, "lost_replies": True},
        {"actors": "WVck", "commits": 1, "ticks": 3, "rounds": 2, "guests": "WV"},
    ],
    ids=str,
)
def test_larger_worlds_hold(model: dict[str, object]) -> None:
    """The same hazards with more time, more commits, or a slow checkpoint (R62, R63, R70)."""
    held = VersionSlots(**model)  # type: ignore[arg-type]
    assert_holds(held, states_min=2_000, states_max=SOAK_STATES_MAX, whole=False)
