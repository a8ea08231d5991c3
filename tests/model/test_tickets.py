"""Every interleaving of runs that commit offsets by tickets, and what each rule prevents.

The decisions are those of txnlog.protocol.tickets and of the transitions with tickets and floors.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.cases import Some
from tests.model import tickets_rules as rules
from tests.model.search import assert_breaks, assert_holds, search
from tests.model.tickets import Tickets
from tests.model.tickets_transactions import Client

JOINING = ("init", "join", "fence", "read", "reg")
"""A member of a generation that another one has begun."""
OLD = Client("O", "old", 0, dies=True, size=1)
HOLDING = OLD._replace(holds=True)
EAGER = OLD._replace(eager=True)
RESUMED = Client("R", "resume", 0)
AGAIN = OLD._replace(again=True)
GROWING = OLD._replace(grows=True)
PART = Client("N", "copy", 1, ("init", "reg", "read"), part=0)
OTHER_PART = PART._replace(letter="M", part=1)
RESET = Client("X", "reset", 1)
PLAIN = Client("X", "plain", 1)
READER = Client("V", "reader", 2)
PUBLISHER = Client("V", "publisher", 2)

Case = Callable[[], Tickets]


def new(id: int, mode: str = "new", **more: object) -> Client:
    return Client("N", mode, id, **more)  # type: ignore[arg-type]


def late(id: int, mode: str = "new", **more: object) -> Client:
    return Client("M", mode, id, **more)  # type: ignore[arg-type]


HOLDING_CASES: dict[str, Case] = {
    "a query without its checkpoint": lambda: Tickets(OLD, new(1), inputs=3),
    "the same with the old id": lambda: Tickets(OLD, new(0), inputs=3),
    "a member and its producer": lambda: Tickets(OLD, new(1, "member"), inputs=3),
    "the same with the id of the old run": lambda: Tickets(OLD, new(0, "member"), inputs=3),
    "a sweeper forgets whom it may": lambda: Tickets(OLD, new(1), inputs=3, forgets=True),
    "it forgets while the row expires": lambda: Tickets(OLD, new(1), expiries=1, forgets=True),
    "the row expires under the old run": lambda: Tickets(OLD, new(1), expiries=1),
    "it expires, and the old query starts again": lambda: Tickets(
        OLD, new(1), RESUMED, expiries=1, helpers=0
    ),
    "a static member is replaced": lambda: Tickets(OLD, new(1, "replace"), inputs=3, seats=True),
    "it is replaced under its id": lambda: Tickets(OLD, new(0, "replace"), inputs=3, seats=True),
    "another producer of its consumer": lambda: Tickets(OLD, new(1, "copy"), inputs=3),
    "two others": lambda: Tickets(OLD, new(1, "copy"), late(2, "copy"), helpers=0),
    "another and a newcomer": lambda: Tickets(OLD, new(1, "copy"), late(2), helpers=0),
    "an operator resets": lambda: Tickets(OLD, RESET, inputs=3),
    "a client has prepared": lambda: Tickets(HOLDING, new(1)),
    "the old run lets go": lambda: Tickets(OLD, new(1), inputs=3, lets_go=True),
    "it lets go, and its id comes again": lambda: Tickets(OLD, new(0), inputs=3, lets_go=True),
    "an eager transaction has sent offsets": lambda: Tickets(EAGER, new(1), inputs=3),
    "an eager one, and its id comes again": lambda: Tickets(EAGER, new(0)),
    "a plain commit beside a holder": lambda: Tickets(OLD, PLAIN, inputs=3),
    "a plain commit and a newcomer": lambda: Tickets(OLD, PLAIN, new(1)),
    "a reader without a generation": lambda: Tickets(OLD, READER, inputs=3),
    "a reader that publishes": lambda: Tickets(OLD, PUBLISHER, inputs=3),
    "a transaction without the offsets of the one before": lambda: Tickets(OLD, PART, split=True),
    "a run that registers again for less": lambda: Tickets(AGAIN, PART, split=True),
    "a run that registers for more": lambda: Tickets(GROWING, PART, split=True),
    "for what another reads": lambda: Tickets(GROWING, OTHER_PART, split=True),
    "it grows beside a newcomer": lambda: Tickets(GROWING, new(1, part=0), split=True),
    "beside one of its id": lambda: Tickets(GROWING, new(0, part=0), split=True),
}

LARGE_CASES: dict[str, Case] = {
    "three inputs, two sweepers": lambda: Tickets(OLD, new(1), inputs=3, helpers=2),
    "the same with the old id": lambda: Tickets(OLD, new(0), inputs=3, helpers=2),
    "two newcomers": lambda: Tickets(OLD, new(1, dies=True), late(2)),
    "two newcomers, the first with the old id": lambda: Tickets(OLD, new(0, dies=True), late(1)),
    "two newcomers with the old id": lambda: Tickets(OLD, new(0, dies=True), late(0)),
    "three newcomers": lambda: Tickets(
        OLD, new(1, dies=True), late(2, dies=True), Client("L", "new", 3), helpers=0, inputs=1
    ),
    "a newcomer and the old query": lambda: Tickets(OLD, new(1), RESUMED),
    "a newcomer with the old id, and the old query": lambda: Tickets(OLD, new(0), RESUMED),
    "two newcomers and the old query": lambda: Tickets(OLD, new(1), RESUMED, late(2), helpers=0),
    "two members take over two partitions": lambda: Tickets(
        OLD, new(1, part=0), late(2, part=1, flow=JOINING), split=True
    ),
    "the first of them with the old id": lambda: Tickets(
        OLD, new(0, part=0), late(2, part=1, flow=JOINING), split=True
    ),
    "an eager transaction and two newcomers": lambda: Tickets(EAGER, new(1, dies=True), late(2)),
    "a reader beside a newcomer": lambda: Tickets(OLD, new(1), READER),
    "a publishing one beside a newcomer": lambda: Tickets(OLD, new(1), PUBLISHER),
}


def test_every_input_is_committed_once(some: Some[str]) -> None:
    """With its offset, by a run that nobody had replaced (R45, R46, R48)."""
    for case in some(HOLDING_CASES):
        print(case)
        result = assert_holds(HOLDING_CASES[case](), states_min=1_000)
        assert any(re.fullmatch(r"\w PREPARE T[^:]*", label) for label in result.labels)


@pytest.mark.soak
@pytest.mark.parametrize("case", LARGE_CASES)
def test_every_input_is_committed_once_by_many(case: str) -> None:
    """With its offset, by a run that nobody had replaced (R45, R46, R48)."""
    assert_holds(LARGE_CASES[case](), states_min=50_000)


def test_cases_meet_what_they_are_about() -> None:
    """A fence meets a decided transaction, a late PREPARE meets a floor, a chain lands."""
    labels = search(Tickets(OLD, new(1), inputs=3)).labels
    for wanted in (
        "meets T0.1",
        "late PREPARE T0.1[0,1): IllegalGenerationError",
        "leaves COMPLETE",
    ):
        assert any(wanted in label for label in labels), wanted


def broken(*left_out: str) -> frozenset[str]:
    return frozenset(left_out)


BROKEN: dict[str, tuple[Case, str]] = {
    "registers after its first PREPARE": (
        lambda: Tickets(OLD._replace(flow=("prep",)), new(1), broken=broken(rules.REGISTERS_LATE)),
        "twice",
    ),
    "reads before it fences": (
        lambda: Tickets(OLD, new(1, flow=("bump", "read", "fence", "init", "reg"))),
        "twice",
    ),
    "fences before its generation begins": (
        lambda: Tickets(OLD, new(1, flow=("look", "fence", "late", "read", "init", "reg"))),
        "twice",
    ),
    "fences the holders of an earlier read": (
        lambda: Tickets(OLD, new(1, flow=("look", "late", "fence", "read", "init", "reg"))),
        "twice",
    ),
    "a newcomer does not register": (
        lambda: Tickets(OLD, new(1, flow=("bump", "fence", "read", "init")), late(2)),
        "twice",
    ),
    "a reset writes before it fences": (
        lambda: Tickets(OLD, RESET._replace(flow=("bump", "set", "fence"))),
        "set to 0, then moved",
    ),
    rules.NO_FLOOR_CHECK: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.NO_FLOOR_CHECK)),
        "twice",
    ),
    rules.OFFSETS_FIRST: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.OFFSETS_FIRST)),
        "the output is not there",
    ),
    rules.CHAINS_EARLY: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.CHAINS_EARLY)),
        "never published",
    ),
    rules.COMPLETE_CLEARS_FLOOR: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.COMPLETE_CLEARS_FLOOR)),
        "twice",
    ),
    "a run goes on with the ticket of the one before, whose floors are gone": (
        lambda: Tickets(OLD, new(1), RESUMED, broken=broken(rules.REGISTERS_BEFORE_INIT)),
        "twice",
    ),
    "an id that expired goes on with its ticket": (
        lambda: Tickets(
            OLD,
            new(1),
            RESUMED,
            expiries=1,
            helpers=0,
            broken=broken(rules.REGISTERS_BEFORE_INIT),
        ),
        "twice",
    ),
    rules.START_DROPS_HOLDERS: (
        lambda: Tickets(OLD, new(1, dies=True), late(2), broken=broken(rules.START_DROPS_HOLDERS)),
        "twice",
    ),
    rules.ABSENT_ACCEPTS: (
        lambda: Tickets(OLD, new(1), expiries=1, broken=broken(rules.ABSENT_ACCEPTS)),
        "twice",
    ),
    rules.REGISTERS_UNCHECKED: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.REGISTERS_UNCHECKED)),
        "twice",
    ),
    rules.OWN_UNFENCED: (
        lambda: Tickets(OLD, new(0), broken=broken(rules.OWN_UNFENCED)),
        "twice",
    ),
    rules.NO_OVERLAP_CHECK: (
        lambda: Tickets(OLD, new(1, "copy"), broken=broken(rules.NO_OVERLAP_CHECK)),
        "twice",
    ),
    "a member fences nobody": (
        lambda: Tickets(
            OLD,
            new(1, part=0),
            late(2, part=1, flow=("init", "join", "read", "reg")),
            split=True,
            broken=broken(rules.NO_OVERLAP_CHECK),
        ),
        "twice",
    ),
    rules.NO_START_CHECK: (
        lambda: Tickets(OLD, new(1, "copy"), broken=broken(rules.NO_START_CHECK)),
        "twice",
    ),
    "an expired id starts where it was": (
        lambda: Tickets(
            OLD, new(1), RESUMED, expiries=1, helpers=0, broken=broken(rules.NO_START_CHECK)
        ),
        "twice",
    ),
    rules.FENCES_BY_OLD_READ: (
        lambda: Tickets(
            OLD,
            new(1, flow=("rows", "bump", "fence", "read", "init", "reg")),
            RESUMED,
            expiries=1,
            helpers=0,
            broken=broken(rules.FENCES_BY_OLD_READ),
        ),
        "twice",
    ),
    rules.LOOKS_ONCE: (
        lambda: Tickets(
            OLD, new(1, "copy"), late(2, "copy"), helpers=0, broken=broken(rules.LOOKS_ONCE)
        ),
        "twice",
    ),
    rules.FORGETS_DECIDED: (
        lambda: Tickets(
            OLD, new(1), late(2), forgets=True, helpers=0, broken=broken(rules.FORGETS_DECIDED)
        ),
        "twice",
    ),
    rules.FORGETS_OWN: (
        lambda: Tickets(AGAIN, PART, split=True, helpers=0, broken=broken(rules.FORGETS_OWN)),
        "twice",
    ),
    rules.FLOOR_FALLS: (
        lambda: Tickets(
            OLD._replace(dies=False),
            new(1),
            late(0),
            Client("L", "new", 2),
            helpers=0,
            inputs=1,
            lost=False,
            broken=broken(rules.FLOOR_FALLS),
        ),
        "twice",
    ),
    rules.FENCES_PREPARED: (
        lambda: Tickets(HOLDING, new(1), broken=broken(rules.FENCES_PREPARED)),
        "what a client had prepared was refused",
    ),
    rules.FENCE_WITHOUT_FINISH: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.FENCE_WITHOUT_FINISH)),
        "twice",
    ),
    rules.FINISHES_FIRST: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.FINISHES_FIRST)),
        "twice",
    ),
    rules.FLOOR_BEFORE_DONE: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.FLOOR_BEFORE_DONE)),
        "said aborted, yet decided",
    ),
    rules.INIT_DROPS_DECIDED: (
        lambda: Tickets(OLD, new(0, "member"), broken=broken(rules.INIT_DROPS_DECIDED)),
        "never published",
    ),
    rules.INIT_RENAMES_DECIDED: (
        lambda: Tickets(OLD, new(0, "member"), broken=broken(rules.INIT_RENAMES_DECIDED)),
        "never published",
    ),
    rules.CHAIN_IGNORES_OWNER: (
        lambda: Tickets(OLD, new(0, "member"), inputs=3, broken=broken(rules.CHAIN_IGNORES_OWNER)),
        "said aborted, yet decided",
    ),
    rules.FLOOR_ONLY_DECIDED: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.FLOOR_ONLY_DECIDED)),
        "twice",
    ),
    rules.MARKER_REPEATS: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.MARKER_REPEATS)),
        "settled at another offset",
    ),
    rules.LETS_GO_ACKED: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.LETS_GO_ACKED)),
        "twice",
    ),
    rules.LETS_GO_FLYING: (
        lambda: Tickets(OLD, new(1), broken=broken(rules.LETS_GO_FLYING)),
        "twice",
    ),
    "a plain commit fences nobody": (
        lambda: Tickets(OLD, PLAIN, broken=broken(rules.NO_OVERLAP_CHECK)),
        "set to 2, then moved",
    ),
    rules.READS_GROUP_ONCE: (
        lambda: Tickets(OLD, READER, inputs=3, broken=broken(rules.READS_GROUP_ONCE)),
        "said stable",
    ),
}


def test_search_finds_what_a_missing_rule_of_tickets_breaks(some: Some[str]) -> None:
    """A model that holds without a rule says nothing about it."""
    for case in some(BROKEN):
        print(case)
        model, what = BROKEN[case]
        assert_breaks(model(), what)


COVERED: dict[str, Case] = {
    # The floor alone refuses the eager transaction: the abort lets readers of stable offsets go on.
    rules.FENCE_LEAVES_ONGOING: lambda: Tickets(
        EAGER, new(1), broken=broken(rules.FENCE_LEAVES_ONGOING)
    ),
    # The floor refuses what was read under an older generation.
    rules.READ_UNCHECKED: lambda: Tickets(
        OLD, new(1), late(2), helpers=0, broken=broken(rules.READ_UNCHECKED)
    ),
}


@pytest.mark.parametrize("case", COVERED)
def test_rule_that_another_one_covers(case: str) -> None:
    """Left out alone it breaks nothing."""
    assert_holds(COVERED[case](), states_min=1_000)
