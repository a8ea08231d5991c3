"""Random histories of fewer kinds of clients, in which rare meetings of these are frequent."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.machine.actors import Kind
from tests.machine.machine import (
    AT,
    DEEDS,
    ENDS,
    KINDS,
    SALT,
    SLEEPS_MS,
    TROUBLES,
    Clients,
    Troubles,
)
from tests.machine.world import SOURCE
from txnlog.testing.strategies import troubles

CHAINING_DEEDS = (*DEEDS, *("ask", "rival") * 4)
CHAINING_TROUBLES = troubles(CHAINING_DEEDS)


def of_roles(*roles: str) -> Sequence[Kind]:
    return tuple(kind for kind in KINDS if kind.role in roles)


class Producing(Clients):
    """Histories of transactions only: owners, zombies, operators and the sweeper."""

    kinds = of_roles("producer")
    copy = run_job = read = write_batch = tidy = None  # type: ignore[assignment]


class Appending(Producing):
    """Histories of transactions whose batches are appended before their end."""

    kinds = tuple(kind for kind in of_roles("producer", "plain") if kind.how != "deferred")
    be_odd = None  # type: ignore[assignment]


class Copying(Clients):
    """Histories of copiers, jobs and what they copy: most of them are about a group."""

    kinds = of_roles("producer", "copier", "job", "query")
    read = write_batch = tidy = be_odd = None  # type: ignore[assignment]


class Chaining(Copying):
    """Histories of clients that commit offsets, transaction after transaction: each decision
    completes the one before, wherever others ask for offsets, take over or sweep.
    """

    kinds = tuple(kind for kind in Copying.kinds if kind.how != "eager")
    deeds = CHAINING_DEEDS
    run_job = None  # type: ignore[assignment]

    @rule(at=AT, rounds=st.integers(1, 6), end=ENDS, trouble=CHAINING_TROUBLES)
    def copy(self, at: int, rounds: int, end: str, trouble: Troubles) -> None:
        actor = self.worker(("copier", "job")[rounds % 2], at)

        def act() -> None:
            for number in range(rounds):
                actor.work([(SOURCE, 0)], "commit" if number + 1 < rounds else end)

        self.meet(actor.process, trouble, act)

    @rule(number=st.integers(0, 1), is_stable=st.booleans())
    def ask(self, number: int, is_stable: bool) -> None:
        self.ask_offsets(number, is_stable)


class Tidying(Clients):
    """Histories of producers beside compaction, retention, vacuum and log clean-up."""

    kinds = of_roles("producer", "plain")
    copy = run_job = read = None  # type: ignore[assignment]


class Compacting(Clients):
    """Histories of compaction beside idempotent producers, retention and another compactor."""

    kinds = of_roles("plain")
    deeds = ("tidy", "work")
    copy = run_job = read = write_batch = keep_house = tidy = None  # type: ignore[assignment]
    be_odd = None  # type: ignore[assignment]

    @rule(number=st.integers(0, 1), trouble=TROUBLES)
    def compact(self, number: int, trouble: Troubles) -> None:
        self.chores(number, SOURCE, "compact", trouble=trouble)


class Vacuuming(Clients):
    """Histories of vacuum beside producers whose files wait for a commit for days."""

    kinds = tuple(kind for kind in Producing.kinds if kind.how == "deferred")
    deeds = ("night",)
    copy = run_job = read = write_batch = keep_house = tidy = None  # type: ignore[assignment]
    be_odd = None  # type: ignore[assignment]

    @rule(number=st.integers(0, 1), salt=SALT)
    def vacuum(self, number: int, salt: int) -> None:
        self.world.shared.clock.advance_ms(SLEEPS_MS[salt % 3])
        self.chores(number, SOURCE, "vacuum")


class Sleeping(Producing):
    """Histories of transactions in whose midst a night passes, in which logs are cleaned up."""

    deeds = ("night",)
    be_odd = keep_house = None  # type: ignore[assignment]


FOCUSED = (Producing, Appending, Copying, Chaining, Tidying, Compacting, Vacuuming, Sleeping)
"""Each meets often what histories of everything rarely meet."""
