"""`%load_ext txnlog`: what IPython is given for each type, and that it stays within its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.formatters import DisplayFormatter

from tests.docs.test_browser import browser as browser
from tests.moments.worlds import Lake
from tests.ui.moments import HOSTILE, NOW_MS, P, empty, rich
from tests.ui.test_pages import Page
from txnlog import Cluster
from txnlog.admin import Moments
from txnlog.errors import ConfigError
from txnlog.protocol.moment_tables import MOMENT_TABLES
from txnlog.protocol.moments import Flow, Moment, TransactionMoment, Written, with_origins
from txnlog.text import printable
from txnlog.ui.notebook import register, style

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
BOX = ".txnlog.txnlog.txnlog"


@pytest.fixture
def formatter() -> DisplayFormatter:
    """That of a notebook with the extension."""
    found = DisplayFormatter()
    register(found.formatters)
    return found


def shown(formatter: DisplayFormatter, one: object) -> dict[str, str]:
    data, _ = formatter.format(one)
    return data


def parts(moment: Moment) -> Iterator[Any]:
    """Everything of a moment that shows itself."""
    moment = with_origins(moment, moment.earliest_ms)
    yield from (moment, moment.upkeep, moment.flow, *moment.lanes)
    yield from (*moment.topics.values(), *moment.groups.values(), *moment.queries.values())


def transaction(name: str = "") -> TransactionMoment:
    return TransactionMoment(
        transaction=P(14, 3),
        transactional_id=f"shop{name}",
        state="CompleteCommit",
        owner=f"producer on node-1{name}",
        written=[Written(f"orders{name}", 0, -1, -1, 3, [f"part-1{name}"])],
        phases={"prepare": 4.0},
    )


def test_each_type_shows_itself_with_a_title_for_terminals(formatter: DisplayFormatter) -> None:
    """Without HTML a notebook shows a repr of many pages."""
    for one in (*parts(rich()), transaction()):
        data = shown(formatter, one)
        assert '<div class="txnlog">' in data["text/html"], one
        told = data["text/plain"]
        assert re.fullmatch(rf"<{type(one).__name__}: [^\n]+>", told), told
        is_dated = not isinstance(one, TransactionMoment | Flow)
        assert ("As of" in Page(data["text/html"]).text) == is_dated


def test_hostile_names_are_text_and_nothing_is_loaded_or_run(formatter: DisplayFormatter) -> None:
    """An output is trusted: its HTML runs in the notebook, beside the user's session."""
    for one in (*parts(rich(name=HOSTILE)), transaction(HOSTILE)):
        page = Page(shown(formatter, one)["text/html"])
        for tag, given in page.elements:
            assert tag not in ("script", "iframe", "img", "link", "form", "object", "embed"), tag
            assert not [name for name in given if name.startswith("on")]
            for name in ("href", "src", "xlink:href", "action"):
                assert given.get(name, "#").startswith("#"), given
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text
    hostile = Page(shown(formatter, transaction(HOSTILE))["text/html"])
    assert printable(f"producer on node-1{HOSTILE}")[:40] in hostile.text


def test_style_is_for_the_output_only() -> None:
    """A rule that is not below the box would restyle the user's notebook."""
    assert "@import" not in style()
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", style())
    depth, at_top = 0, ""
    for char in style():
        depth += {"{": 1, "}": -1}.get(char, 0)
        at_top += char if depth == 0 else ""
    selectors = [line for line in at_top.replace("}", "\n").split("\n") if line.strip()]
    assert len(selectors) == 5
    for selector in selectors:
        # The media query has the box within.
        assert BOX in selector or selector.strip().startswith("@media (prefers-color-scheme"), (
            at_top
        )
    assert f"@media (prefers-color-scheme: dark) {{ {BOX} {{" in style()
    assert ":root" not in style().replace(":root {", "", 2)


def test_root_and_its_topics_are_read_when_they_are_shown(formatter: DisplayFormatter) -> None:
    """A cell that is run again shows what is there now."""
    lake = Lake()
    cluster = lake.process()
    assert "There are no topics" not in shown(formatter, cluster)["text/html"]
    producer = lake.producer("shop")
    producer.begin_transaction()
    producer.produce("orders", "apple")
    producer.commit_transaction()
    lake.later(5_000)
    log = cluster.topic("orders")
    for one in (cluster, Moments(cluster), Moments(cluster).now(), log):
        page = Page(shown(formatter, one)["text/html"])
        assert "orders" in page.text
    [record] = Moments(cluster).records("orders", 0)
    assert record.transaction is not None
    found = Moments(cluster).transaction(record.transaction)
    page = Page(shown(formatter, found)["text/html"])
    assert "shop" in page.text
    assert found.to_arrow().column("topic").to_pylist() == ["orders"]
    group = Moments(cluster).now()
    assert group.topics["orders"].origin is not None
    past = Moments(cluster).at(group.earliest_ms)
    assert "CompleteCommit" not in {bar.phase.value for lane in past.lanes for bar in lane.bars}


def test_root_that_is_gone_is_a_sentence(formatter: DisplayFormatter, tmp_path: Path) -> None:
    """A traceback of the formatter hides what is wrong."""
    cluster = Cluster.open(str(tmp_path / "lake"), create=True)
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    text = Page(shown(formatter, cluster)["text/html"]).text
    assert "lake" in text
    assert "Traceback" not in text


def test_part_without_a_root_is_shown_as_any_value(formatter: DisplayFormatter) -> None:
    """Made by hand, in a test: there is no time to show it as of."""
    data = shown(formatter, rich().topics["orders"])
    assert "text/html" not in data
    assert data["text/plain"].startswith("TopicMoment(")


def in_ipython(code: str, **variables: str) -> str:
    """What a session of its own prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    made = "from IPython.core.interactiveshell import InteractiveShell as S\ns = S.instance()\n"
    run = subprocess.run(
        [sys.executable, "-c", f"{made}{code}"], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_extension_gives_spark_the_python_of_the_kernel(tmp_path: Path) -> None:
    """PYSPARK_DRIVER_PYTHON=jupyter, as in many tutorials, hides the format from Spark."""
    code = (
        "s.run_cell('%load_ext txnlog')\nimport os\n"
        "print(os.environ['PYSPARK_DRIVER_PYTHON'], os.environ['PYSPARK_PYTHON'])"
    )
    given = {"IPYTHONDIR": str(tmp_path), "PYSPARK_DRIVER_PYTHON": "jupyter"}
    told = in_ipython(f"import os\nos.environ.pop('PYSPARK_PYTHON', None)\n{code}", **given)
    assert told.split() == [sys.executable, sys.executable]
    told = in_ipython(code, **given, PYSPARK_PYTHON="/opt/python")
    assert told.split() == [sys.executable, "/opt/python"]


def test_extension_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    """One sentence, no traceback."""
    code = "import sys\nsys.modules['jinja2'] = None\ns.run_cell('%load_ext txnlog')"
    told = in_ipython(code, IPYTHONDIR=str(tmp_path))
    assert "Run: pip install 'txnlog[ui]'." in told
    assert "Traceback" not in told


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "is_dark"),
    [
        ('data-jp-theme-light="true"', False),
        ('data-jp-theme-light="false"', True),
        ('class="vscode-light"', False),
        ('class="vscode-dark"', True),
        ("", True),
    ],
)
def test_output_is_as_light_as_the_notebook_and_leaves_it_alone(
    browser: Browser, formatter: DisplayFormatter, body: str, is_dark: bool
) -> None:
    """The browser prefers dark: what the notebook says wins."""
    plain = "<h1>Mine</h1><table><tr><td>1</td></tr></table>"
    html = shown(formatter, with_origins(rich(), 0).groups["billing"])["text/html"]
    colours = "e => [...getComputedStyle(e).backgroundColor.matchAll(/\\d+/g)].map(Number)"
    looks = "e => JSON.stringify(Object.fromEntries([...getComputedStyle(e)].map(n => [n, getComputedStyle(e)[n]])))"  # noqa: E501
    tab = browser.new_page(color_scheme="dark")
    tab.set_content(f"<body {body}><div id=mine>{plain}</div>")
    before = [tab.eval_on_selector(f"#mine {tag}", looks) for tag in ("h1", "table", "td")]
    tab.set_content(f"<body {body}><div id=mine>{plain}</div>{html}")
    after = [tab.eval_on_selector(f"#mine {tag}", looks) for tag in ("h1", "table", "td")]
    assert before == after
    red, green, blue = tab.eval_on_selector(".txnlog .panel", colours)[:3]
    assert (red + green + blue < 3 * 128) == is_dark
    tab.close()


def test_tables_of_a_moment_have_what_the_moment_has() -> None:
    """A column that is shifted by one would be believed."""
    moment = rich()
    found = moment.to_arrow("partitions").to_pylist()
    wanted = [(topic, one) for topic in moment.topics.values() for one in topic.partitions]
    assert len(found) == len(wanted) > 0
    for row, (topic, one) in zip(found, wanted, strict=True):
        stamp = row.pop("last_timestamp")
        assert stamp.timestamp() * 1000 == one.last_timestamp_ms
        named = {key: value for key, value in one._asdict().items() if key != "last_timestamp_ms"}
        assert row == {"topic": topic.name, **named}
    for row, one in zip(
        moment.to_arrow("positions").to_pylist(),
        [one for group in moment.groups.values() for one in group.positions],
        strict=True,
    ):
        assert row.pop("group_id") in moment.groups
        assert row == one._asdict()
    bars = [(lane, bar) for lane in moment.lanes for bar in lane.bars]
    rows = moment.to_arrow("transactions").to_pylist()
    for row, (lane, bar) in zip(rows, bars, strict=True):
        assert (row["transactional_id"], row["title"], row["owner"]) == lane[:3]
        assert (row["producer_id"], row["epoch"]) == bar.transaction
        assert row["phase"] == bar.phase.value
        assert row["since"].timestamp() * 1000 == bar.since_ms
        assert (row["until"] is None) == (bar.until_ms is None)
    assert None in [row["until"] for row in rows]


def test_other_tables_of_a_moment_have_a_row_for_each_value() -> None:
    """Charts are made from them."""
    moment = rich()
    queries = list(moment.queries.values())
    rates = [(t.name, *p) for t in moment.topics.values() for p in t.rates]
    lags = [(g.group_id, *p) for g in moment.groups.values() for p in g.lags]
    for table, points in (("rates", rates), ("lags", lags)):
        rows = [list(row.values()) for row in moment.to_arrow(table).to_pylist()]
        assert [(name, at.timestamp() * 1000, value) for name, at, value in rows] == points
        assert points
    events = [(lane.transactional_id, tick) for lane in moment.lanes for tick in lane.ticks]
    rows = moment.to_arrow("events").to_pylist()
    assert [(row["transactional_id"], row["kind"], row["text"]) for row in rows] == [
        (name, tick.kind.value, tick.text) for name, tick in events
    ]
    batches = [(query.query_id, one) for query in queries for one in query.batches]
    rows = moment.to_arrow("batches").to_pylist()
    assert [
        (row["query_id"], row["batch_id"], (row["producer_id"], row["epoch"]), row["records"])
        for row in rows
    ] == [(name, one.batch_id, one.transaction, one.records) for name, one in batches]
    assert [list(row.values()) for row in moment.to_arrow("phases").to_pylist()] == [
        [name, one.batch_id, phase, ms] for name, one in batches for phase, ms in one.phases.items()
    ]


def test_tables_of_an_empty_root_have_their_columns_and_unknown_is_null() -> None:
    """A plot of a new root must not fail for a missing column."""
    for table, schema in MOMENT_TABLES.items():
        assert empty(NOW_MS).to_arrow(table).schema == schema
        assert rich().to_arrow(table).schema == schema
    page = (ROOT / "docs/howto/show.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\w, ]+) \|$", page, re.MULTILINE))
    assert told == {table: ", ".join(schema.names) for table, schema in MOMENT_TABLES.items()}
    assert transaction().to_arrow().to_pylist() == [
        {"topic": "orders", "partition": 0, "first_offset": None, "last_offset": None}
        | {"num_records": 3, "files": ["part-1"]}
    ]
    with pytest.raises(ConfigError, match="partitions, rates, positions"):
        rich().to_arrow("lag")
