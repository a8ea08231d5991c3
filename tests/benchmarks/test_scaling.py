"""docs/scaling.md is what benchmarks/scaling.py computes, from constants that hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import scaling

CONSTANTS = scaling.load_constants()
RENEW = "run `python -m benchmarks.scaling --measure`, and read the page again"


def test_page_holds_the_computed_tables() -> None:
    """A table that was edited by hand, or not renewed, is a promise about nothing."""
    page = scaling.PAGE.read_text()
    assert page == scaling.with_tables(page, CONSTANTS), RENEW
    assert scaling.BEGIN in page


def test_recorded_constants_are_those_of_this_code() -> None:
    """The page describes a protocol of a year ago. Bytes vary by a few digits, requests do not."""
    recorded, now = CONSTANTS.shapes[0], scaling.measure_shape(1, 1)
    for name in ("puts", "gets", "rounds", "topic_log_bytes", "state_log_bytes"):
        assert getattr(now, name) == pytest.approx(getattr(recorded, name), rel=0.1), RENEW


def test_measured_shapes_are_points_of_the_line() -> None:
    """An extrapolation that misses what it was made from is wrong everywhere."""
    for measured in CONSTANTS.shapes:
        assert scaling.shape(CONSTANTS, measured.topics, measured.files) == replace(
            measured,
            offsets_log_bytes=CONSTANTS.shapes[0].offsets_log_bytes,
            gets=pytest.approx(measured.gets),
            topic_log_bytes=pytest.approx(measured.topic_log_bytes, rel=0.01),
        )


def test_cost_grows_with_the_number_of_transactions() -> None:
    """Half the trigger interval is twice the transactions, requests and price."""
    load = scaling.LOADS[0]
    slow = scaling.cost(CONSTANTS, load)
    fast = scaling.cost(CONSTANTS, replace(load, trigger_s=load.trigger_s / 2))
    assert fast.usd_per_month == pytest.approx(2 * slow.usd_per_month)
    assert fast.commits_per_s == pytest.approx(2 * slow.commits_per_s)
    assert fast.records_per_file == pytest.approx(slow.records_per_file / 2)


def test_limits_follow_the_latency() -> None:
    """All limits but S3's own are rounds of a latency."""
    twice = replace(CONSTANTS, latency_ms=2 * CONSTANTS.latency_ms)
    before, after = dict_of(scaling.limits(CONSTANTS)), dict_of(scaling.limits(twice))
    for what, most in before.items():
        factor = 1 if "prefix" in what else 2
        assert after[what] == pytest.approx(most / factor)


def dict_of(rows: list[tuple[str, float, str]]) -> dict[str, float]:
    """Transactions per second at most, by what limits them."""
    return {what: most for what, most, _ in rows}
