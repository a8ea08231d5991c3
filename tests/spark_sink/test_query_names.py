"""The name of a query, from the description that Spark gives to its jobs."""

from __future__ import annotations

import pytest

from spark_sink.messages import QUERY_NAME_LENGTH_MAX, query_name

QUERY = "6b1f0c1e-0000-4000-8000-000000000000"
IDS = f"id = {QUERY}\nrunId = r\nbatch = 3"


@pytest.mark.parametrize(
    ("description", "name"),
    [
        (f"orders\n{IDS}", "orders"),
        (f"orders<br/>id = {QUERY}<br/>runId = r", "orders"),
        (f"two words\n{IDS}", "two words"),
        (IDS, ""),
        (f"\n{IDS}", ""),
        ("what the application set itself", ""),
        ("", ""),
        (None, ""),
        ("x" * 1000 + f"\n{IDS}", "x" * QUERY_NAME_LENGTH_MAX),
    ],
)
def test_query_name_is_what_comes_before_the_ids(description: str | None, name: str) -> None:
    """A description without the ids is not Spark's: no name is better than a wrong one."""
    assert query_name(description, QUERY) == name
