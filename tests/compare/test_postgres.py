"""Topics, Delta tables and a real PostgreSQL: all or nothing, whichever process dies or sleeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compare.running import RUNS, number_of, run_example
from txnlog.testing.counts import count

EXAMPLE = "postgres_two_phase.py"
CHANGES = "postgres_changes.py"
BOTH = pytest.mark.parametrize("decided_by", ["database", "log"])


def killed(folder: Path, decided_by: str, kills: int, zombies: int, crashes: int) -> None:
    line = run_example(
        EXAMPLE,
        folder,
        f"--decided-by={decided_by}",
        f"--kills={kills}",
        f"--zombies={zombies}",
        f"--crashes={crashes}",
    )
    assert number_of("differences", line) == 0
    assert number_of("orders", line) > 0
    # The successor of a zombie is killed, too.
    assert number_of("kills", line) == kills + zombies
    count("kills", f"shop beside PostgreSQL, decided by the {decided_by}", kills + 2 * zombies)
    count("kills", "PostgreSQL server", crashes)


@BOTH
def test_record_and_row_are_both_there_or_neither(decided_by: str, tmp_path: Path) -> None:
    """Killed once at each step, replaced while it sleeps, and after a crash of the server."""
    killed(tmp_path, decided_by, kills=9, zombies=3, crashes=1)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(RUNS))
@BOTH
def test_record_and_row_agree_after_200_kills_at_each_step(
    decided_by: str, run: int, tmp_path: Path
) -> None:
    """All runs together. Also at random moments, and with the state of all the lives before."""
    killed(tmp_path, decided_by, kills=250, zombies=6, crashes=4)


def test_without_a_protocol_the_kills_leave_differences(tmp_path: Path) -> None:
    """What the two phases are for; and the comparison would notice."""
    line = run_example(EXAMPLE, tmp_path, "--decided-by=nobody", "--kills=4", exit_code=1)
    assert number_of("differences", line) > 0


def copied(folder: Path, kills: int, zombies: int, crashes: int) -> None:
    line = run_example(
        CHANGES, folder, f"--kills={kills}", f"--zombies={zombies}", f"--crashes={crashes}"
    )
    assert number_of("differences", line) == 0
    assert number_of("orders", line) > 0
    assert number_of("kills", line) == kills + zombies
    count("kills", "relay of PostgreSQL's changes", kills + 2 * zombies)
    count("kills", "PostgreSQL server", crashes)


def test_each_source_transaction_is_whole_in_topic_and_table(tmp_path: Path) -> None:
    """Killed once at each step, replaced while it sleeps, and after a crash of the server."""
    copied(tmp_path, kills=5, zombies=1, crashes=1)


@pytest.mark.soak
def test_each_source_transaction_is_whole_after_300_kills(tmp_path: Path) -> None:
    copied(tmp_path, kills=300, zombies=10, crashes=10)


@pytest.mark.soak
def test_relay_that_forgets_its_lsn_copies_twice(tmp_path: Path) -> None:
    """What the LSN in the transaction is for; and the comparison would notice."""
    line = run_example(CHANGES, tmp_path, "--forgetful", "--kills=4", exit_code=1)
    assert number_of("differences", line) > 0
