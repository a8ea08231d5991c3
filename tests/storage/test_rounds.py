"""The store that counts sequential rounds: tests of budgets rest on it."""

from __future__ import annotations

from functools import partial

import pytest

from txnlog.errors import ObjectNotFoundError
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore


@pytest.fixture
def store() -> RoundsStore:
    return RoundsStore(SharedMemory())


def test_calls_in_turn_count_one_each(store: RoundsStore) -> None:
    store.put("a", b"1")
    store.get("a")
    assert store.rounds == 2


def test_calls_together_count_as_the_longest(store: RoundsStore) -> None:
    def three(number: int) -> None:
        for attempt in range(3):
            store.put(f"{number}/{attempt}", b"1")

    store.put("a", b"1")
    store.together([partial(store.put, "b", b"1"), partial(three, 1), partial(three, 2)])
    assert store.rounds == 1 + 3
    assert len(store.calls) == 1 + 1 + 3 + 3


def test_calls_together_inside_calls_together_count_once(store: RoundsStore) -> None:
    puts = [partial(store.put, str(number), b"1") for number in range(4)]
    store.together([partial(store.together, puts), partial(store.together, puts)])
    assert store.rounds == 1


def test_rounds_of_calls_that_fail_count(store: RoundsStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        store.together([partial(store.get, "missing"), partial(store.put, "a", b"1")])
    assert store.rounds == 1
