"""Random histories of all kinds of clients, see tests.machine.machine, and of broken variants."""

from __future__ import annotations

from inspect import signature
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.broken import BROKEN
from tests.machine.focused import FOCUSED
from tests.machine.machine import Clients
from tests.machine.world import seen
from txnlog.errors import CorruptLogError, ObjectNotFoundError, UnexpectedError

STEPS = 30
BREAKING_EXAMPLES_MAX = 4_000
ROUNDS_MAX = 10
HAPPENS = (
    "COMPACT",
    "Conflict",
    "DELETE EXPIRED",
    "DELETE RECORDS",
    "DELETE TOPIC",
    "EXPEL MEMBERS",
    "EXPIRE PRODUCERS",
    "EXPIRE TRANSACTIONAL ID",
    "FENCE",
    "FORGET TICKET",
    "OFFSET COMMIT",
    "PREPARE_ABORT",
    "RAISE FLOOR",
    "REGISTER TICKET",
    "TIME OUT",
    "Unknown",
    "a decision completed one with offsets",
    "a file was read that has been replaced",
    "a takeover in the middle of a call, at ONGOING",
    "a takeover in the middle of a call, at PREPARE_COMMIT",
    "a time-out in the middle of a call, at ONGOING",
    "a time-out in the middle of a call, at PREPARE_COMMIT",
    "copier: IllegalGenerationError",
    "copier: commit",
    "files vacuumed",
    "job: commit",
    "landed late",
    "offsets asked for",
    "opened cold",
    "producer: OperationTimedOutError",
    "producer: ProducerFencedError",
    "producer: abort",
    "producer: complete",
    "query: IllegalGenerationError",
    "query: commit",
)


class TestClients(Clients.TestCase):
    """No record is lost, doubled, torn, out of order, or read though aborted (R2, R10-R12, R14-R20,
    R22, R27, R31, R32, R34-R36, R41, R43-R49, R70-R73), wherever processes die, pause or clean up.
    """

    settings = settings(max_examples=12, stateful_step_count=STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("histories", [*[Clients] * 6, *FOCUSED])
def test_clients_for_long(histories: type[Clients]) -> None:
    """New histories, in parts that the workers share."""
    run_state_machine_as_test(
        histories,
        settings=settings(max_examples=60, stateful_step_count=STEPS, derandomize=False),
    )


@pytest.mark.soak
def test_histories_contain_every_kind_of_event() -> None:
    """Machines that never cause these events would find nothing, unnoticed."""
    seen.clear()
    some = settings(
        max_examples=50,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        derandomize=False,
    )
    for _ in range(ROUNDS_MAX):
        for histories in (Clients, *FOCUSED):
            run_state_machine_as_test(histories, settings=some)
        missing = [event for event in HAPPENS if not seen[event]]
        if not missing:
            break
    assert not missing, dict(seen)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_variant_takes_the_place_of_what_it_breaks(name: str) -> None:
    """What is called instead takes the same arguments; the search below would find a TypeError."""
    replaced: list[tuple[Any, Any]] = []

    class Recorded(pytest.MonkeyPatch):
        def setattr(self, target: Any, name: Any, value: Any = None, **_: Any) -> None:  # type: ignore[override]
            if isinstance(target, str):
                target, value = target.rpartition("."), name
                target, name = resolve_name(target[0]), target[2]
            replaced.append((getattr(target, name), value))

    BROKEN[name][1](Recorded())
    for old, new in replaced:
        if not callable(old):
            continue
        parameters = signature(old).parameters.values()
        by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        signature(new).bind(*by_place, **dict.fromkeys(by_name))
    assert replaced


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_variant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variant lacks one rule (R2, R4, R5, R10, R12, R16, R31, R32, R36, R45, R46, R48, R70,
    R71, R73), and a reader or an invariant shows it.
    """
    histories, break_it = BROKEN[name]
    break_it(monkeypatch)
    # A reader that finds a file gone, or a commit that is not of the chain, raises. A promise that
    # an account finds broken in the midst of a call comes out of it as an UnexpectedError.
    shown_by = (AssertionError, ObjectNotFoundError, CorruptLogError, UnexpectedError)
    with pytest.raises(shown_by) as caught:
        run_state_machine_as_test(
            histories,
            settings=settings(
                max_examples=BREAKING_EXAMPLES_MAX,
                stateful_step_count=STEPS,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    cause: BaseException | None = caught.value
    while isinstance(cause, UnexpectedError):
        cause = cause.__cause__
    assert isinstance(cause, shown_by), caught.value
