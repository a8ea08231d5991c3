"""How many requests a copy of a root makes, for each topic and each file: held by counting.

A request costs money, and a root of many topics has many. A copy that is made for the first time is
counted, and its repetition, when nothing has changed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.budgets.test_reads import counting, world
from tests.world import PLAIN
from txnlog.coordinator.copies import copy_root
from txnlog.coordinator.root import Root
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore
from txnlog.verifying.verifier import verify

Calls = list[tuple[str, str]]


def requests(topics: int, files: int, *, again: bool) -> tuple[Calls, Calls]:
    """To the origin, and to the copy: its verification, too."""
    shared, place = world(topics, files), SharedMemory()
    for _ in range(1 + again):
        _, origin = counting(shared)
        target = RoundsStore(place)
        copy_root(
            Root(origin, settings=PLAIN),
            target,
            check=lambda target=target: verify(target).check(),  # type: ignore[misc]
            fsync=False,
            report=lambda *_: None,
        )
    return origin.calls, target.calls


@pytest.mark.parametrize("again", [False, True])
def test_topic_takes_a_constant_number_of_requests(again: bool) -> None:
    """Without files; whoever reads the same log once more, or lists each folder, pays for it."""
    one, many = (requests(topics, 0, again=again) for topics in (1, 11))
    each = [(len(more) - len(few)) / 10 for few, more in zip(one, many, strict=True)]
    assert each == [5, 10 if again else 5]


@pytest.mark.parametrize("again", [False, True])
def test_file_is_read_and_put_once_and_never_again(again: bool) -> None:
    """Commits of its topic are read for the snapshot, and for the copy."""
    origin, target = requests(1, 20, again=again)
    data = [(verb, path) for verb, path in origin + target if path.endswith(".parquet")]
    data = [one for one in data if one[1].startswith("t0/part")]
    assert Counter(verb for verb, _ in data) == ({} if again else {"get": 20, "put": 20})
    read = Counter(path for verb, path in origin if verb == "get")
    assert max(count for path, count in read.items() if path.startswith("t0/_delta_log")) == 2
    assert max(read.values()) <= 3
