"""Patterns of topics and ids: matched in linear time, with the lookahead that users write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_source.settings import source_settings
from tests.world import process, world
from txnlog.admin.transactions import list_transactions
from txnlog.consuming.subscriptions import check_subscription, resolve
from txnlog.errors import ConfigError
from txnlog.settings.patterns import Pattern

NAMES = (
    *("orders", "orders.eu", "Orders", "test-orders", "test", "a]b", "x|y", "", "ord\nrs"),
    *("a(b", "payments-2026", "_schemas", "é", "orders\n"),
)


@pytest.mark.parametrize(
    "expression",
    [
        *("orders.*", "^orders", "(?i)ORDERS", "orders|payments-\\d+", "[a-z]+", ".*", "o.ders"),
        *(
            "(?!test).*",
            "^(?!test-|_).*",
            "(?=ord)(?!orders\\.).*",
            "(?!a[])]b)(?!a\\(b).*",
            "(?!)x",
        ),
        *("[]a]+[^]x]b", "(?:a|(?:x\\|y))", "(?!x[|]y)(?:x.y|test)", "a\\(b|x"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_pattern_matches_as_pythons_re_does(expression: str, whole: bool) -> None:
    """A subscription that moves over from another client must select the same topics."""
    ours = Pattern("subscribePattern", expression, whole=whole)
    theirs = re.compile(expression)
    for name in NAMES:
        expected = theirs.fullmatch(name) if whole else theirs.match(name)
        assert ours.matches(name) is (expected is not None), name


@pytest.mark.parametrize("expression", ["(a+)+", "(a|a)*", "(a|aa)+", "a*a*a*a*a*a*a*a*a*a*b"])
def test_pattern_that_would_backtrack_for_ever_answers(tmp_path: Path, expression: str) -> None:
    """2^200 steps in an engine that backtracks: a consumer's poll, close and heartbeats waited."""
    long = "a" * 200 + "-"
    assert not Pattern("subscribePattern", expression).matches(long)
    cluster = process(world())
    cluster.create_topic(long, partitions=1)
    assert resolve(cluster, [f"^{expression}$"]) == ((), None)
    assert list_transactions(cluster, pattern=expression) == []
    settings = source_settings({"path": str(tmp_path), "subscribePattern": expression}, "read")
    assert not settings.subscription.matches(long)


@pytest.mark.parametrize(
    "expression", ["(", "[", "a(?!b)", "(a)\\1", "(?<=a)b", "(?!a", "(?!a)b|c", "a++", "\\"]
)
def test_pattern_that_is_not_matched_is_refused_by_its_option(
    tmp_path: Path, expression: str
) -> None:
    """Taken for another expression, it would subscribe to other topics."""
    with pytest.raises(ConfigError, match=r"subscribePattern.*RE2") as failure:
        source_settings({"path": str(tmp_path), "subscribePattern": expression}, "read")
    assert failure.value.context["option"] == "subscribePattern"
    with pytest.raises(ConfigError, match="RE2"):
        check_subscription([f"^{expression}"])
    with pytest.raises(ConfigError, match="RE2"):
        list_transactions(process(world()), pattern=expression)


def test_folder_whose_name_is_no_text_matches_nothing() -> None:
    """Any program may make such a folder below the root."""
    assert not Pattern("subscribePattern", ".*").matches("bad\udcff")
