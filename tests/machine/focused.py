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

ROUNDS = st.integers(1, 6)
LEAVING_DEEDS = (*DEEDS, *("ask", "go on", "go on", "rival") * 4)
LEAVING_TROUBLES = troubles(LEAVING_DEEDS)


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


class Leaving(Copying):
    """Histories of clients that commit offsets of one partition, transaction after transaction.

    So a decision supersedes what the one before has left, wherever others ask, take over or sweep.
    """

    kinds = tuple(kind for kind in Copying.kinds if kind.how != "eager")
    deeds = LEAVING_DEEDS
    run_job = None  # type: ignore[assignment]

    @rule(at=AT, number=st.integers(0, 9), rounds=ROUNDS, end=ENDS, trouble=LEAVING_TROUBLES)
    def transact(self, at: int, number: int, rounds: int, end: str, trouble: Troubles) -> None:
        self.stream("producer", at, number, rounds, end, trouble)

    @rule(at=AT, number=st.integers(0, 9), rounds=ROUNDS, end=ENDS, trouble=LEAVING_TROUBLES)
    def copy(self, at: int, number: int, rounds: int, end: str, trouble: Troubles) -> None:
        role = ("copier", "job")[number % 2]
        self.stream(role, at, number // 2, rounds, end, trouble)

    def stream(
        self, role: str, at: int, number: int, rounds: int, end: str, trouble: Troubles
    ) -> None:
        """Commits of an actor without a pause, the last one as `end` says, under one trouble."""
        # Mostly of one partition: two may be in the input of one transaction, and one in the next.
        places = [(SOURCE, int(number == 0))] * (3 if role == "producer" else 1)
        actor = self.worker(role, at)

        def act() -> None:
            for _ in range(rounds):
                actor.work(places, "offsets, commit")
            actor.work(places, end)

        self.meet(actor.process, trouble, act)

    @rule(at=AT, is_stable=st.booleans(), trouble=LEAVING_TROUBLES)
    def ask(self, at: int, is_stable: bool, trouble: Troubles) -> None:
        """An operator asks while a client has left offsets, and may go on."""
        reads = ("copier", "job")[at % 2]
        for role, rounds in (("producer", 2), (reads, 3)):
            self.stream(role, at, 1, rounds, "open", ())
        self.ask_offsets(at % 2, is_stable, trouble)


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


FOCUSED = (Producing, Appending, Copying, Leaving, Tidying, Compacting, Vacuuming, Sleeping)
"""Each meets often what histories of everything rarely meet."""
