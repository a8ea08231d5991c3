"""The searcher itself: a search that misses what is there would make every model worthless."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.search import Pool, search


class Counters:
    """Two counters up to `end`, each step raises one of them; (2, 1) is forbidden if asked."""

    def __init__(self, end: int, forbidden: tuple[int, int] | None = None) -> None:
        self.end = end
        self.forbidden = forbidden

    def initial(self) -> tuple[int, int]:
        return (0, 0)

    def steps(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        left, right = state
        if left < self.end:
            yield "left", (left + 1, right)
        if right < self.end:
            yield "right", (left, right + 1)

    def unsafe(self, before: tuple[int, int], after: tuple[int, int]) -> str | None:
        return "forbidden" if after == self.forbidden else None

    def stuck(self, state: tuple[int, int]) -> str | None:
        return None if state == (self.end, self.end) else f"stuck at {state}"


def test_search_of_a_safe_model_visits_every_state_once() -> None:
    """A state that is skipped may be the broken one."""
    result = search(Counters(3))
    assert result.violation is None
    assert result.complete
    assert (result.states, result.transitions, result.ends) == (16, 24, 1)
    assert result.labels == {"left", "right"}


def test_search_of_a_broken_model_gives_the_shortest_trace() -> None:
    """A trace with detours hides what matters."""
    result = search(Counters(5, forbidden=(2, 1)))
    assert result.violation is not None
    assert sorted(result.violation.trace) == ["left", "left", "right"]
    assert "forbidden" in str(result)
    assert "1. " in str(result)


def test_search_that_meets_its_bound_says_so() -> None:
    """A search that was cut off must not be taken for a proof."""
    result = search(Counters(50), states_max=100)
    assert not result.complete
    assert "cut off" in str(result)


def test_pool_gives_equal_keys_one_number() -> None:
    """Two numbers for one value would double the space for nothing."""
    pool: Pool[str] = Pool(str.lower)
    assert pool.put("a") == pool.put("A") != pool.put("b")
    assert pool[0] == "a"
    assert len(pool) == 2
