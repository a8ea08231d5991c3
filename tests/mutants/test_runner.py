"""What the runner calls killed and survived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import ERROR, HARMLESS, KILLED, SURVIVED, Runner
from tests.mutants.table import ROOT, Mutant

STATES = Mutant(
    id="complete-without-prepare",
    area="test",
    file="txnlog/protocol/states.py",
    old="S.COMPLETE_COMMIT: frozenset({S.PREPARE_COMMIT}),",
    new="S.COMPLETE_COMMIT: frozenset({S.PREPARE_COMMIT, S.ONGOING}),",
    breaks="R25",
    tests=("tests/protocol/test_states.py",),
)


@pytest.mark.slow
def test_mutant_is_killed_only_by_a_test_that_fails(tmp_path: Path) -> None:
    """A runner that tests something else than the mutant would call everything sound."""
    before = (ROOT / STATES.file).read_text()
    runner = Runner(tmp_path, 1)
    assert runner.check_tests([STATES]) == ""
    verdict, output = runner.run(STATES)
    assert (verdict, "FAILED" in output) == (KILLED, True)
    same = replace(STATES, new=f"{STATES.old}  # as it was")
    assert runner.run(same)[0] == SURVIVED
    assert runner.run(replace(same, harmless="it is the same"))[0] == HARMLESS
    assert runner.run(replace(STATES, old="what is not there"))[0] == ERROR
    assert runner.run(replace(STATES, new="S.COMPLETE_COMMIT: frozenset(,"))[0] == ERROR
    assert runner.run(replace(STATES, tests=("tests/protocol/nothing.py",)))[0] == ERROR
    assert "nothing" in runner.check_tests([replace(STATES, tests=("tests/nothing.py",))])
    assert (ROOT / STATES.file).read_text() == before
