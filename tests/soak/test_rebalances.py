"""Random histories of one group's members that stall, die and come back: each record once."""

from __future__ import annotations

import random
import uuid

import pytest

from tests.soak.rebalancing import History, numbered_ids
from txnlog.testing.counts import count


@pytest.mark.parametrize(
    ("histories", "mode"),
    [
        pytest.param(12, "", id="some"),
        pytest.param(600, "", marks=pytest.mark.soak, id="many"),
        *[
            pytest.param(600, "transactions", marks=pytest.mark.soak, id=f"copies{part}")
            for part in range(4)
        ],
    ],
)
def test_random_histories_of_a_group_copy_every_record_once(
    histories: int,
    mode: str,
    seed: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With plain commits each is read, and no position goes back (R45, R46, R48, R49).

    What fails is printed: the seed of the history, and all that happened in it. A member that keeps
    its id when it has lost its partitions (D126) is found by about one in 500 of `copies`.
    """
    first = random.Random(f"{seed} {request.node.name}").randrange(1 << 31)
    for number in range(first, first + histories):
        run(number, mode, monkeypatch)


def run(number: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One history; the same number is the same history."""
    monkeypatch.setattr(uuid, "uuid4", numbered_ids())
    random.seed(number)
    history = History(number, mode=mode)
    try:
        history.run()
    except BaseException:
        print("\n".join(history.log))
        raise
    count("histories", "a group whose members stall and come back")


def test_the_same_seed_is_the_same_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a failure could not be repeated."""
    logs = []
    for _ in range(2):
        monkeypatch.setattr(uuid, "uuid4", numbered_ids())
        random.seed(5)
        history = History(5)
        history.run()
        logs.append(history.log)
    assert logs[0] == logs[1]
