"""Every page by its name: what it shows of a moment, and its HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote_from_bytes, urlencode

import jinja2
from markupsafe import Markup

from txnlog.process.version import VERSION
from txnlog.protocol.explanations import count_of
from txnlog.protocol.moments import Lane, Moment, NodeKind, TickKind, TopicMoment
from txnlog.protocol.problems import Problem
from txnlog.text import printable, shell_option
from txnlog.ui import charts, flow_layout, formats, timeline

T = TypeVar("T")

ROWS_MAX: Final = 200
OVERVIEW_ROWS: Final = 8
OVERVIEW_LANES: Final = 10
LANES_MAX: Final = 40
TABS: Final = (
    "overview", "timeline", "topics", "groups", "queries", "flow", "records", "upkeep",
)  # fmt: skip
"""The pages of the menu; problems are on the first."""


class Link(Protocol):
    """The address of a page, None where there is none: in a file not every page is embedded."""

    def __call__(self, page: str, /, *steps: object, **query: object) -> str | None: ...


def step_of(page: str, *steps: object) -> str:
    """A page as a path without its first slash, or as an anchor."""
    return "/".join([page, *(formats.slug(str(step)) for step in steps)])


def link_at(at_ms: int | None, moment: Moment | None = None) -> Link:
    """Links of the server's pages that stay at a moment; of things that are not in it, none."""
    known: dict[str, Collection[object]] = {}
    if moment is not None:
        ids = {lane.transactional_id for lane in moment.lanes}
        known = {"topic": moment.topics, "group": moment.groups, "query": moment.queries, "id": ids}

    def link(page: str, /, *steps: object, **query: object) -> str | None:
        named = query.get("topic") if page == "records" else next(iter(steps), None)
        there = known.get("topic" if page == "records" else page)
        if there is not None and named is not None and named not in there:
            return None
        given = {key: value for key, value in query.items() if value not in (None, "")}
        if at_ms is not None and "at" not in query:
            given["at"] = at_ms
        path = "/" if page == "overview" else f"/{step_of(page, *steps)}"
        return f"{path}?{encoded(given)}" if given else path

    return link


def encoded(query: Mapping[str, object]) -> str:
    def quoted(text: Any, *_: Any) -> str:
        return quote_from_bytes(str(text).encode(errors="surrogatepass"), safe="")

    return urlencode(query, quote_via=quoted)


class Listed(NamedTuple, Generic[T]):
    """A page of a list: `matched` of `total` rows contain the text `q`."""

    rows: Sequence[T]
    total: int
    matched: int
    page: int
    pages: int
    q: str


def listed(
    items: Iterable[T],
    text_of: Callable[[T], str],
    query: Mapping[str, str],
    rows_max: int = ROWS_MAX,
) -> Listed[T]:
    """The rows that contain ?q=, of page ?page=."""
    everything, q = list(items), query.get("q", "").strip()
    found = [one for one in everything if q.casefold() in text_of(one).casefold()]
    pages = max(1, -(-len(found) // rows_max))
    page = min(max(1, formats.parsed_integer(query.get("page", "")) or 1), pages)
    rows = found[(page - 1) * rows_max : page * rows_max]
    return Listed(rows, len(everything), len(found), page, pages, q)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page of one moment: `name` is its template, `title` what it is about."""

    name: str
    title: str
    context: Mapping[str, Any]


# --- Pages that need the moment only --------------------------------------------------------------


def overview(moment: Moment, query: Mapping[str, str]) -> View:
    """All panels, the longer ones cut."""
    lanes = timeline.ordered(moment)
    return View(
        name="overview",
        title="Overview",
        context={
            **_timeline_of(moment, lanes[:OVERVIEW_LANES], len(lanes)),
            "topics": listed(busiest(moment), _topic_text, {}, OVERVIEW_ROWS),
            "groups": listed(_groups(moment), lambda one: one.group_id, {}, OVERVIEW_ROWS),
            "queries": listed(_queries(moment), lambda one: one.title, {}, OVERVIEW_ROWS),
            "picture": flow_layout.drawn(moment.flow),
            "tables": listed(_tables(moment), lambda one: one.table, {}, OVERVIEW_ROWS),
            "open_count": sum(map(timeline.is_open, moment.lanes)),
            "rate": sum(topic.rate for topic in moment.topics.values()),
            "behind": [one for one in _groups(moment) if one.lag_records],
            "size_bytes": sum(map(size_of, moment.topics.values())),
        },
    )


def timeline_page(moment: Moment, query: Mapping[str, str]) -> View:
    """All lanes, a page at a time."""
    found = listed(timeline.ordered(moment), lane_text, query, LANES_MAX)
    context = {**_timeline_of(moment, found.rows, found.total), "lanes": found}
    return View(name="timeline", title="Timeline", context=context)


def _timeline_of(moment: Moment, lanes: Sequence[Lane], total: int) -> dict[str, Any]:
    return {
        "axis": timeline.axis_of(moment),
        "tracks": timeline.drawn(lanes, moment),
        "lanes_total": total,
    }


def topics_page(moment: Moment, query: Mapping[str, str]) -> View:
    """All topics."""
    found = listed(busiest(moment), _topic_text, query)
    return View(name="topics", title="Topics", context={"topics": found})


def groups_page(moment: Moment, query: Mapping[str, str]) -> View:
    """All groups."""
    found = listed(_groups(moment), lambda one: one.group_id, query)
    return View(name="groups", title="Groups", context={"groups": found})


def queries_page(moment: Moment, query: Mapping[str, str]) -> View:
    """All queries."""
    found = listed(_queries(moment), lambda one: f"{one.title} {one.query_id}", query)
    return View(name="queries", title="Queries", context={"queries": found})


def flow_page(moment: Moment, query: Mapping[str, str]) -> View:
    """The graph, also as a table."""
    edges = sorted(moment.flow.edges, key=lambda edge: (not edge.is_blocked, -edge.rate))
    found = listed(edges, lambda edge: f"{edge.source[1]} {edge.target[1]}", query)
    context = {
        "picture": flow_layout.drawn(moment.flow),
        "edges": found,
        "titles": {(node.kind, node.name): node.title for node in moment.flow.nodes},
    }
    return View(name="flow", title="Flow", context=context)


def upkeep_page(moment: Moment, query: Mapping[str, str]) -> View:
    """All tables."""
    found = listed(_tables(moment), lambda one: one.table, query)
    return View(name="upkeep", title="Upkeep", context={"tables": found})


def group_page(moment: Moment, name: str, query: Mapping[str, str]) -> View | None:
    """One group; None if there is none."""
    group = moment.groups.get(name)
    if group is None:
        return None
    positions = sorted(group.positions, key=lambda one: (-one.lag_records, one.topic))
    axis = timeline.axis_of(moment)
    context = {
        "group": group,
        "positions": listed(positions, lambda one: one.topic, query),
        "members": listed(group.members, lambda one: f"{one.client_id} {one.host}", query),
        "axis": axis,
        "lags": charts.chart(group.lags, axis),
    }
    return View(name="group", title=f"Group {formats.short(name)}", context=context)


def query_page(moment: Moment, name: str, query: Mapping[str, str]) -> View | None:
    """One query with its batches; None if there is none."""
    found = moment.queries.get(name)
    if found is None:
        return None
    context = {
        "query": found,
        "columns": charts.stacked(found.batches),
        "phases": charts.phase_names(found.batches),
        "batches": listed(found.batches[::-1], lambda one: str(one.batch_id), query),
    }
    return View(name="query", title=f"Query {formats.short(found.title)}", context=context)


def id_page(moment: Moment, name: str, query: Mapping[str, str]) -> View | None:
    """One transactional id: what happened to it, and its transactions; None if there is none."""
    lane = next((one for one in moment.lanes if one.transactional_id == name), None)
    if lane is None:
        return None
    context = {
        **_timeline_of(moment, [lane], 1),
        "lane": lane,
        "lives": listed(
            timeline.lives(lane)[::-1],
            lambda life: f"{life.transaction.producer_id}:{life.transaction.epoch}",
            query,
        ),
        "ticks": list(lane.ticks[::-1][:ROWS_MAX]),
        "about": [one for one in moment.problems if _is_about(one, name)],
    }
    return View(name="id", title=f"Id {formats.short(lane.title)}", context=context)


def topic_context(moment: Moment, topic: TopicMoment, query: Mapping[str, str]) -> dict[str, Any]:
    """One topic, but for its records."""
    axis = timeline.axis_of(moment)
    return {
        "topic": topic,
        "partitions": listed(topic.partitions, lambda one: str(one.partition), query),
        "holders": holders(moment.waiting, topic.name),
        "axis": axis,
        "rates": charts.chart(topic.rates, axis),
        "readers": listed(sorted(topic.readers.items()), lambda one: one[0], {}),
        "writers": listed(topic.writers, str, {}),
        "queries_by_id": moment.queries,
    }


def holders(problems: Iterable[Problem], topic: str) -> dict[int, list[Problem]]:
    """Partition -> the transactions that hold its last stable offset."""
    found: dict[int, list[Problem]] = {}
    for problem in problems:
        for place in problem.places:
            if place.topic == topic and place.start_offset is not None:
                found.setdefault(place.partition, []).append(problem)
    return found


def size_of(topic: TopicMoment) -> int:
    """Of all files of a topic."""
    return sum(one.size_bytes for one in topic.partitions)


def lane_text(lane: Lane) -> str:
    return f"{lane.title} {lane.transactional_id} {lane.owner}"


def _is_about(problem: Problem, name: str) -> bool:
    return problem.subject == name or (
        problem.row is not None and problem.row.transactional_id == name
    )


def busiest(moment: Moment) -> list[TopicMoment]:
    """The topics, by their rate."""
    return sorted(moment.topics.values(), key=lambda one: (-one.rate, one.name))


def _topic_text(topic: TopicMoment) -> str:
    return topic.name


def _groups(moment: Moment) -> list[Any]:
    found = moment.groups.values()
    return sorted(found, key=lambda one: (not one.blocked_by, -one.lag_ms, one.group_id))


def _queries(moment: Moment) -> list[Any]:
    def newest(one: Any) -> int:
        return max((batch.at_ms for batch in one.batches), default=0)

    return sorted(moment.queries.values(), key=lambda one: (-newest(one), one.title))


def _tables(moment: Moment) -> list[Any]:
    found = () if moment.upkeep is None else moment.upkeep.tables
    return sorted(found, key=lambda one: (-one.small_files, -one.size_bytes, one.table))


LISTS: Final[Mapping[str, Callable[[Moment, Mapping[str, str]], View]]] = {
    "overview": overview,
    "timeline": timeline_page,
    "topics": topics_page,
    "groups": groups_page,
    "queries": queries_page,
    "flow": flow_page,
    "upkeep": upkeep_page,
}
NAMED: Final[Mapping[str, Callable[[Moment, str, Mapping[str, str]], View | None]]] = {
    "group": group_page,
    "query": query_page,
    "id": id_page,
}


# --- HTML -----------------------------------------------------------------------------------------


class Skin(NamedTuple):
    """The style and the script, which are in every page, and the policy that allows no others."""

    css: str
    script: str

    def policy(self, more: str) -> str:
        """Content-Security-Policy; `more` is what else is allowed or forbidden."""
        return (
            f"default-src 'none'; script-src {_digest(self.script)}; "
            f"style-src {_digest(self.css)}; img-src data:; base-uri 'none'; {more}"
        )


@cache
def skin() -> Skin:
    folder = files("txnlog.ui").joinpath("templates")
    return Skin(folder.joinpath("page.css").read_text(), folder.joinpath("page.js").read_text())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class Renderer:
    """The templates, for one root: the commands to paste name it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("txnlog.ui"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            short=formats.short,
            number=formats.number,
            rate=formats.rate,
            size=formats.size,
            duration=formats.duration,
            ago=formats.ago,
            utc=formats.utc,
            iso=formats.iso,
            field=formats.field,
            clock=formats.clock,
        )
        self._templates.globals.update(
            root=root,
            version=VERSION,
            pasted=self.pasted,
            why_id=lambda name: self.pasted(
                f"txnlog why {shell_option('--transactional-id', name)}"
            ),
            size_of=size_of,
            step_of=step_of,
            kinds=NodeKind,
            tick_kinds=TickKind,
            tabs=TABS,
            css=Markup(skin().css),
            script=Markup(skin().script),
            box=flow_layout.BOX,
            parts_of=charts.parts,
            colour_of=charts.colour_of,
        )

    def pasted(self, command: str) -> str:
        """A command `txnlog ...` with the root, which another terminal may not have."""
        return f"txnlog {shell_option('--root', self._root)} {command.partition(' ')[2]}"

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        return self._templates.get_template(template).render(context)


def moment_context(moment: Moment, link: Link, *, is_live: bool) -> dict[str, Any]:
    """What the frame of every page shows, and its panels use."""
    return {
        "moment": moment,
        "now": moment.at_ms,
        "link": link,
        "is_live": is_live,
        "verdict": verdict_of(moment),
    }


def verdict_of(moment: Moment) -> str:
    """In a few words."""
    found = count_of(moment.problems).capitalize()
    return f"{found} so far: {moment.later} topics are still to be read" if moment.later else found


def _printable(value: object) -> object:
    """Whatever a template shows, but for HTML that a macro made."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
