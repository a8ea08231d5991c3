"""Verify beside all kinds of clients and housekeeping: no false alarm, and not one write."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.machine.machine import DEEDS, SALT, Clients
from tests.machine.world import Process
from tests.verify.roots import shown
from txnlog.errors import TxnLogError
from txnlog.protocol.verification.findings import Severity
from txnlog.testing.faults import Fault
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify

CALLS_MAX = 250
"""Roughly the number of storage calls of one pass."""
STEPS = 30
Deeds = Mapping[int, tuple[str, int]]


class VerifiedClients(Clients):
    """Random histories; between any two storage calls of verify others may act."""

    @rule(
        deeds=st.dictionaries(
            st.integers(0, CALLS_MAX), st.tuples(st.sampled_from(DEEDS), SALT), max_size=4
        ),
        deep=st.booleans(),
    )
    def verify(self, deeds: Deeds, deep: bool) -> None:
        """Undecided batches, commits under way and clean-up are no damage."""
        process = self.world.process(0)
        calls = 0

        def plan(verb: str, path: str) -> Fault:
            nonlocal calls
            deed = deeds.get(calls)
            calls += 1
            if deed is not None:
                # What the others are refused is not verify's.
                with suppress(TxnLogError):
                    self.do(process, *deed, path)
            return Fault.NONE

        process.store.plan = plan
        check(process, deep=deep)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "world"):
            check(self.world.process(0), deep=True)


def check(process: Process, *, deep: bool) -> None:
    """No damage is found, and nothing is written."""
    before = len(process.store.calls)
    found = verify(process.store, VerifySettings(deep=deep))
    wrong = [finding for finding in found.findings if finding.severity is Severity.ERROR]
    assert not wrong, shown(wrong)
    assert found.is_complete, found.errors
    verbs = {verb for verb, _ in process.store.calls[before:]}
    assert verbs <= {"get", "head", "list"}


class TestVerifiedClients(VerifiedClients.TestCase):
    """Nothing of what clients do, in whatever order and however often they die, is damage."""

    settings = settings(max_examples=6, stateful_step_count=STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(5))
def test_verify_beside_clients_for_long(part: int) -> None:
    """300 new histories."""
    run_state_machine_as_test(
        VerifiedClients,
        settings=settings(max_examples=60, stateful_step_count=STEPS, derandomize=False),
    )
