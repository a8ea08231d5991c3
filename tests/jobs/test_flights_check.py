"""The check finds each kind of wrong delivery, on small frames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from flights_check import Delivery, Report, check_delivery, offset_problems
from flights_pipeline import by_outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EXPECTED = "position long, topic string, key string, value string"
FOUND = "topic string, partition int, offset long, key string, value string"
INPUT = [
    (0, "departures", "N1", "a"),
    (1, "departures", "N2", "b"),
    (2, "cancellations", None, "c"),
    (3, "departures", "N1", "d"),
    (4, "departures", "N3", "e"),
]
DELIVERED = [
    ("departures", 0, 0, "N1", "a"),
    ("departures", 0, 1, "N1", "d"),
    ("departures", 0, 2, "N3", "e"),
    ("departures", 1, 0, "N2", "b"),
    ("cancellations", 1, 0, None, "c"),
]
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> DataFrame:
    """Five flights, two of one aircraft."""
    return spark.createDataFrame(INPUT, EXPECTED)


@pytest.fixture(scope="module")
def right(expected: DataFrame) -> Delivery:
    return check(expected, DELIVERED)


def check(expected: DataFrame, rows: Rows) -> Delivery:
    return check_delivery("reader", expected.sparkSession.createDataFrame(rows, FOUND), expected)


def moved(index: int, **changes: Any) -> Rows:
    names = ("topic", "partition", "offset", "key", "value")
    changed = dict(zip(names, DELIVERED[index], strict=True)) | changes
    return [*DELIVERED[:index], tuple(changed.values()), *DELIVERED[index + 1 :]]


def test_check_right_delivery_has_no_problems(expected: DataFrame, right: Delivery) -> None:
    """All counts are 0, in whatever order the rows are read."""
    found = check(expected, DELIVERED[::-1])
    assert found.problems() == []
    assert found.rows == 5
    assert found.fingerprint == right.fingerprint


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        pytest.param(
            [*DELIVERED, ("departures", 0, 3, "N1", "d")],
            ["duplicates 1"],
            id="batch replayed with new offsets",
        ),
        pytest.param(
            [*DELIVERED, ("cancellations", 0, 0, "N1", "d")],
            ["duplicates 1", "misplaced 1"],
            id="row in both topics",
        ),
        pytest.param(DELIVERED[:-1], ["missing 1"], id="one topic without its part"),
        pytest.param(moved(1, offset=3), ["offset gaps 1"], id="gap where a file should be"),
        pytest.param(moved(1, offset=2), ["offset gaps 2"], id="offset given out twice"),
        pytest.param(moved(4, topic="departures", offset=1), ["misplaced 1"], id="wrong topic"),
        pytest.param(
            moved(2, value="E"), ["missing 1", "unexpected 1"], id="value with a changed byte"
        ),
        pytest.param(moved(2, key="N4"), ["wrong keys 1"], id="key of another aircraft"),
        pytest.param(moved(4, key="N4"), ["wrong keys 1"], id="key out of nowhere"),
        pytest.param(
            [("departures", 0, 1, "N1", "a"), ("departures", 0, 0, "N1", "d"), *DELIVERED[2:]],
            ["out of order 1"],
            id="two rows of a key swapped",
        ),
        pytest.param(
            [DELIVERED[0], *moved(1, partition=1, offset=1)[1:2], *moved(2, offset=1)[2:]],
            ["scattered keys 1"],
            id="a key in two partitions",
        ),
    ],
)
def test_check_wrong_delivery_is_found(
    expected: DataFrame, right: Delivery, rows: Rows, problems: list[str]
) -> None:
    """A check that misses a fault makes every green demo worthless."""
    found = check(expected, rows)
    assert found.problems() == [f"reader: {problem}" for problem in problems]
    assert found.fingerprint != right.fingerprint


def test_check_empty_topics_miss_everything(expected: DataFrame) -> None:
    """An empty delivery is a problem."""
    assert check(expected, []).problems() == ["reader: missing 5"]


def test_report_is_equal_after_json(right: Delivery) -> None:
    """The supervisor reads the report of the checking process."""
    report = Report(
        deliveries=(right,),
        rows_by_topic={"departures": 4, "cancellations": 1},
        transactions=2,
        problems=("one",),
    )
    assert Report.from_json(report.to_json()) == report
    assert not report.ok


@pytest.mark.parametrize("committed", [{}, {"flights": {"0": 3}}, {"flights": {"0": 3, "1": 3}}])
def test_group_that_has_not_read_all_input_is_a_problem(
    committed: dict[str, dict[str, int]],
) -> None:
    """With wrong offsets the next lost checkpoint would repeat or skip rows (R45)."""
    assert len(offset_problems(committed, rows_fed=5)) == 1
    assert offset_problems({"flights": {"0": 3, "1": 2}}, rows_fed=5) == []


def test_outcome_depends_on_dep_time_alone(spark: SparkSession) -> None:
    """A flight without tail number may have departed; one with it may be cancelled."""
    rows = [
        ("N1", json.dumps({"dep_time": 517}).encode()),
        ("N2", json.dumps({"dep_time": None}).encode()),
        (None, json.dumps({"flight": 1}).encode()),
        (None, json.dumps({"dep_time": 0}).encode()),
    ]
    split = by_outcome(spark.createDataFrame(rows, "key string, value binary"))
    topics = ["departures", "cancellations", "cancellations", "departures"]
    wanted = [(*row, topic) for row, topic in zip(rows, topics, strict=True)]
    assert_df_equality(
        split,
        spark.createDataFrame(wanted, "key string, value binary, topic string"),
        ignore_nullable=True,
    )
