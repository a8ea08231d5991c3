"""What the model tests say about a search."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from txnlog.testing.search import Model, search

S = TypeVar("S", bound=Hashable)


def holds(model: Model[S], *, states_min: int, states_max: int = 2_000_000) -> None:
    """The model's invariants hold in its whole space, which is at least so large.

    The lower bound notices a model that has stopped doing what it is there for.
    """
    result = search(model, states_max=states_max)
    assert result.violation is None, str(result)
    assert result.complete, str(result)
    assert result.states >= states_min, str(result)


def breaks(model: Model[S], what: str, *, states_max: int = 200_000) -> None:
    """The search finds a trace to a violation that says `what`."""
    result = search(model, states_max=states_max)
    assert result.violation is not None, str(result)
    assert what in result.violation.what, str(result)
