"""docs/versions.md says what `make versions` found."""

from __future__ import annotations

from tests.versions.__main__ import KILLS, SPARKS
from tests.versions.records import PAGE, read_records, with_tables


def test_tables_of_the_page_are_those_of_the_records() -> None:
    """Figures that are written by hand are those of some earlier run."""
    text = PAGE.read_text()
    assert text == with_tables(text, read_records())


def test_most_kills_of_each_run_were_within_a_batch() -> None:
    """A kill of an idle driver shows nothing, and a row of the table is a promise."""
    records = read_records()
    assert records
    assert not [one for one in records if one["interrupted"] * 2 < max(one["kills"], 10)]


def test_page_has_each_spark_and_its_kills() -> None:
    """A row of a Spark that nobody runs any more is no promise, and the page promises four."""
    records = read_records()
    assert {".".join(one["pyspark"].split(".")[:2]) for one in records} == {*SPARKS}
    assert not [one for one in records if one["kills"] < KILLS]
