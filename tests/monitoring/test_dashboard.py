"""conf/monitoring and docs/monitoring.md: what they name is exported, and PromQL can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from spark_sink.prometheus import PrometheusMetrics
from spark_sink.reports import QueryReport
from tests.cli.test_docs import commands
from tests.monitoring.worlds import busy
from txnlog.admin import ProblemKind
from txnlog.coordinator.history import CommittedTransaction
from txnlog.messages import TopicPartition
from txnlog.monitoring import ClientCollector, RootCollector

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "conf/monitoring/dashboard.json").read_text())
RULES = yaml.safe_load((ROOT / "conf/monitoring/alerts.yaml").read_text())
PAGE = (ROOT / "docs/monitoring.md").read_text()
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Each series of all exporters, with the labels that it has somewhere."""
    registry = CollectorRegistry()
    disk = busy(tmp_path_factory.mktemp("root") / "lake")
    registry.register(RootCollector(disk.operator))
    made, reader = disk.producer(), disk.consumer("other")
    reader.assign([TopicPartition("orders", 0, 0)])
    assert reader.poll(5) is not None
    registry.register(ClientCollector(made, reader))
    figures = {"totalMs": "9", "publishMs": "2"}
    committed = CommittedTransaction(
        transactional_id="q", version=1, ended_ms=0, parameters=figures
    )
    report = QueryReport(
        query_id="q",
        run_id="r",
        name="copy",
        batch_id=7,
        timestamp="",
        input_rows=1,
        processed_rows_per_second=1.0,
        lag={"orders": {0: 3}},
        transactions=1,
        transaction=committed,
    )
    PrometheusMetrics(registry, None, "").update(report, transactions=1, is_new=True)
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


class Asked(NamedTuple):
    """An expression, and where it is."""

    where: str
    text: str


def panels() -> Iterator[Asked]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield Asked(panel["title"], re.sub(r'"\$\w+"', '".*"', target["expr"]))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[Asked]:
    return [*panels(), *(Asked(rule["alert"], rule["expr"]) for rule in alerts())]


class Selectors(NamedTuple):
    """The series of an expression, with the labels that it selects or groups by."""

    names: list[str]
    labels: set[str]
    matched: list[tuple[str, str]]


def selected(text: str) -> Selectors:
    """Raises for what is no PromQL."""
    found = Selectors([], set(), [])

    def enter(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.names.append(node.name)
            pairs = [(one.name, one.value) for one in node.matchers.matchers]
            found.labels.update(name for name, _ in pairs)
            found.matched.extend(pairs)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.labels.update(node.modifier.labels)
        return True

    promql_parser.walk(promql_parser.parse(text), enter)
    assert found.names, text
    return found


@pytest.mark.parametrize("asked", expressions(), ids=lambda asked: asked.where)
def test_expression_names_only_what_is_exported(
    asked: Asked, exported: dict[str, set[str]]
) -> None:
    """A renamed metric, or a label that it does not have, is an empty panel or a dead alert."""
    found = selected(asked.text)
    for name in found.names:
        assert name in exported, f"{asked.where}: {name}"
    known = SCRAPED.union(*(exported[name] for name in found.names))
    assert found.labels <= known, asked.where


@pytest.mark.parametrize("panel", [p for p in DASHBOARD["panels"] if p["type"] != "row"],
                         ids=lambda panel: panel["title"])  # fmt: skip
def test_legend_of_a_panel_names_labels_that_its_expression_keeps(
    panel: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    """Else all lines have one name."""
    for target in panel["targets"]:
        text = re.sub(r'"\$\w+"', '".*"', target["expr"])
        by = re.findall(r"\bby \(([^)]*)\)", text)
        kept = set(re.split(r",\s*", by[0])) if by else exported[selected(text).names[0]]
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, text


def test_dashboard_is_one_that_grafana_imports() -> None:
    """Ids are unique, panels do not overlap, every variable is defined."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    defined = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all"}
    assert used == defined


def test_every_kind_of_problem_has_one_alert() -> None:
    """A new kind must wake somebody, too."""
    kinds = [
        kind
        for rule in alerts()
        for label, value in selected(rule["expr"]).matched
        if label == "kind"
        for kind in value.split("|")
    ]
    assert sorted(kinds) == sorted(kind.value for kind in ProblemKind)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alert_says_what_to_do_by_a_command_that_exists(rule: dict[str, Any]) -> None:
    """Somebody reads it at night."""
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    said = rule["annotations"]["description"]
    known = commands()
    called = re.findall(r"`txnlog ([a-z -]+?)((?: --[a-z-]+(?:[ =][A-Z]\S*)?)*)`", said)
    assert called or "docs/monitoring.md" in said
    assert len(called) == said.count("`txnlog ")
    for name, options in called:
        assert name in known
        assert set(re.findall(r"--[a-z-]+", options)) <= known[name]
    # A name that any client chooses is nothing to paste into a shell.
    assert "{{" not in said


def test_page_lists_every_metric(exported: dict[str, set[str]]) -> None:
    """And no other."""
    facets = {"txnlog_batch", "txnlog_offsets"}
    listed = set(re.findall(r"`(txnlog_\w+)`", PAGE)) - facets
    made = {
        name.removesuffix("_bucket")
        for name in exported
        if not name.endswith(("_created", "_sum", "_count"))
    }
    assert listed == made
