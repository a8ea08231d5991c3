"""What a notebook shows of a root, by the page's templates and pictures: `%load_ext txnlog`."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from txnlog.admin.moments import Moments
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.protocol.moments import (
    Flow,
    GroupMoment,
    Lane,
    Moment,
    Origin,
    QueryMoment,
    TopicMoment,
    TransactionMoment,
    UpkeepMoment,
)
from txnlog.settings.roots import redacted_url
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.text import printable
from txnlog.ui import formats, pages
from txnlog.ui.answers import topic_view, transaction_view
from txnlog.ui.pages import Renderer, View, moment_context, skin

LIVE: Final = (Cluster, Moments, TopicLog)
"""They are read when they are shown."""
READ: Final = (
    Moment, TopicMoment, GroupMoment, QueryMoment, Lane, UpkeepMoment, Flow, TransactionMoment,
)  # fmt: skip
_BOX: Final = ".txnlog.txnlog.txnlog"
"""Three times: it wins over the styles that a notebook has for tables in outputs."""
_PLAIN: Final = """
table { color: inherit; font-size: inherit; display: table; table-layout: auto; margin: 0; }
table, tr, pre, code { background: none; border: 0; }
th, td { min-width: 0; }
h1, h2, h3 { color: inherit; }
li { margin-left: 0; }
figcaption { font-style: normal; max-width: none; margin: 0; }
.js { display: none; }
"""
"""What a notebook says of these elements, and the page does not."""
_NARROW: Final = """
& { padding: 12px; border-radius: var(--radius); }
.two.wide-right { grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); }
"""
"""An output is narrower than the window."""


def register(formatters: Any) -> None:
    """Let IPython show these types."""
    for kind in (*LIVE, *READ):
        formatters["text/html"].for_type(kind, html_of)
    for kind in READ:
        formatters["text/plain"].for_type(kind, _print_title)


class Shown(NamedTuple):
    """A page, and the moment that it is of."""

    moment: Moment
    view: View
    is_dated: bool = True


def html_of(one: Any) -> str | None:
    """HTML with a style for itself only; None for a part that no root was read for."""
    try:
        found = _shown(one)
    except TxnLogError as error:
        return str(Markup("<p>{}</p>").format(printable(error.message)))
    if found is None:
        return None
    context = {
        **moment_context(found.moment, lambda *_, **__: None, is_live=not found.is_dated),
        **found.view.context,
        "name": found.view.name,
        "is_server": False,
        "at_ms": found.moment.at_ms,
        "style": Markup(style()),
    }
    return _renderer(redacted_url(found.moment.root)).render("notebook.html", context)


def _print_title(one: Any, printer: Any, cycle: bool) -> None:
    """For terminals: all fields would be pages."""
    found = _shown(one)
    told = repr(one)
    if found is not None:
        when = f" as of {formats.utc(found.moment.at_ms)}" if found.is_dated else ""
        told = f"<{type(one).__name__}: {found.view.title}{when}>"
    printer.text(told)


def _shown(one: Any) -> Shown | None:
    match one:
        case Cluster():
            return _shown(Moments(one).now())
        case Moments():
            return _shown(one.now())
        case TopicLog():
            moment = Moments(Cluster.open(one.store)).now()
            topic = moment.topics.get(one.name)
            return None if topic is None else _topic(moment, topic)
        case Moment():
            return Shown(one, pages.overview(one, {}))
        case TransactionMoment():
            now = _around(Origin("", 0, int(time.time() * 1000)))
            return Shown(now, transaction_view(one, now), is_dated=False)
        case Flow():
            now = replace(_around(Origin("", 0, 0)), flow=one)
            return Shown(now, pages.flow_page(now, {}), is_dated=False)
    return None if one.origin is None else _part(one, _around(one.origin))


def _part(one: Any, around: Moment) -> Shown | None:
    """A part of a moment, in one that holds nothing else."""
    view: View | None = None
    match one:
        case TopicMoment():
            return _topic(around, one)
        case GroupMoment():
            around = replace(around, groups={one.group_id: one}, problems=one.blocked_by)
            view = pages.group_page(around, one.group_id, {})
        case QueryMoment():
            around = replace(around, queries={one.query_id: one})
            view = pages.query_page(around, one.query_id, {})
        case Lane():
            around = replace(around, lanes=[one])
            view = pages.id_page(around, one.transactional_id, {})
        case UpkeepMoment():
            around = replace(around, upkeep=one)
            view = pages.upkeep_page(around, {})
    return None if view is None else Shown(around, view)


def _topic(moment: Moment, topic: TopicMoment) -> Shown:
    return Shown(moment, topic_view(moment, topic, {}, None, None))


def _around(origin: Origin) -> Moment:
    return Moment(
        root=origin.root,
        cluster_id="",
        at_ms=origin.at_ms,
        since_ms=origin.since_ms,
        earliest_ms=origin.since_ms,
    )


@cache
def style() -> str:
    """The page's style, for what is in the box only: a notebook has its own.

    Dark is what JupyterLab or VS Code says, else the browser.
    """
    css = re.sub(r"/\*.*?\*/", "", skin().css, flags=re.DOTALL)
    colours = re.compile(r":root \{(.*?)\}", re.DOTALL)
    light, dark = colours.findall(css)
    rules = colours.sub("", css).replace("\nbody {", "\n& {")
    on_light = f'body:is([data-jp-theme-light="true"], .vscode-light) {_BOX}'
    on_dark = f'body:is([data-jp-theme-light="false"], .vscode-dark) {_BOX}'
    return "\n".join(
        [
            f"{_BOX} {{{light}}}",
            f"@media (prefers-color-scheme: dark) {{ {_BOX} {{{dark}}} }}",
            f"{on_light} {{{light}}}",
            f"{on_dark} {{{dark}}}",
            f"{_BOX} {{{_PLAIN}{rules}{_NARROW}}}",
        ]
    )


@cache
def _renderer(root: str) -> Renderer:
    return Renderer(root)
