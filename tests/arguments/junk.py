"""Invalid argument values, and valid ones."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

from txnlog.messages import ConsumerGroupMetadata, Message, TopicPartition


class Refusing:
    """An object whose methods all raise, but for the repr that Hypothesis shows."""

    def __repr__(self) -> str:
        return "Refusing()"

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __index__(self) -> int:
        raise RuntimeError("no integer")

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


class OtherInt(int):
    """An int with a different text and JSON value."""

    def __str__(self) -> str:
        return "other"

    __repr__ = __str__


class OtherText(str):
    """A str that msgspec does not encode."""

    def __str__(self) -> str:
        return "other"


ODD: Sequence[Any] = (
    None, True, False, 0.0, 1.0, 1.5, -1.0, float("nan"), float("inf"), -7, 99_999, 100_000,
    2**31 - 1, 2**31, 2**63 - 1, 2**63,
    -(2**63) - 1, 2**70, 10**4_000, np.int64(1), np.int8(-1), np.uint64(2**64 - 1), np.float32(1),
    np.bool_(1), np.array([1, 2]), np.array(1), np.datetime64(1, "ms"), Decimal(1), 1j, "", " ",
    "1", "\x00", "\ud800", "a\udfff", "../x", "__cluster", "x" * 300, "x" * 40_000, "ä" * 20_000,
    "^(", "^" + "(" * 2_000, b"", b"1", b"\xff", bytearray(b"1"), memoryview(b"1"), [], [None],
    ["orders"], [["orders"]], {}, {1: 1}, {"orders": 1.0}, {None}, (1, 2), object(), object,
    Refusing(), [Refusing()], OtherInt(1), OtherText("orders"), lambda *_: None, range(3),
    Exception("x"),
)  # fmt: skip

odd = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ),
)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


odd_key = odd.filter(_is_hashable)
"""What can be a key of a dictionary, and should not be one."""


class Turn:
    """Chooses at most one invalid leaf of a call's arguments, so that other checks pass."""

    def __init__(self) -> None:
        self.start(-1)

    def start(self, odd_at: int) -> None:
        """Before a call: the leaf with this number will be invalid, all others valid."""
        self._left = odd_at

    def is_odd(self) -> bool:
        """Whether the current leaf is the invalid one."""
        self._left -= 1
        return self._left == -1


TURN = Turn()


@st.composite
def or_odd(
    draw: st.DrawFn, right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any] = odd
) -> Any:
    """A valid value, or an invalid one if chosen."""
    return draw(wrong if TURN.is_odd() else right)


def mostly(*right: Any) -> st.SearchStrategy[Any]:
    """One of the valid values, or an invalid one if chosen."""
    return or_odd(st.sampled_from(right))


def several(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A list of one or two items, or a value that is not a list if chosen."""
    return or_odd(st.lists(item, min_size=1, max_size=2))


topic = mostly("orders", "stock", "orders", np.str_("stock"), "new")
# What fits Kafka's type and no topic has.
number = or_odd(
    st.sampled_from([0, 1, np.int32(1)]), st.one_of(st.sampled_from([100_000, 2**31 - 1, -2]), odd)
)
offset = mostly(0, 1, 3, np.int64(2), -1)
note = mostly(None, None, "", "note", "x" * 4_096)
group_id = mostly("readers", "others")
transactional_id = mostly("tx", "other")
some_partition = or_odd(st.builds(TopicPartition, topic, number, offset, note))
partitions = several(some_partition)
message = or_odd(st.builds(Message, topic, number, offset, st.none(), st.none(), st.none()))
member = or_odd(
    st.builds(ConsumerGroupMetadata, mostly("others"), mostly(1, np.int64(1)), mostly("", ""))
)
