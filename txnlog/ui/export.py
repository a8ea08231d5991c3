"""The page as one file: up to fifty moments, which open without server or network.

Each moment's pages are packed beside each other, the newest also as they are, for a browser without
script. Transactions and records are embedded once, as of the last moment.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Moment
from txnlog.ui import formats, timeline
from txnlog.ui.answers import counts, newest_partition, topic_view, transaction_view
from txnlog.ui.pages import (
    LISTS,
    NAMED,
    Link,
    Renderer,
    View,
    busiest,
    moment_context,
    skin,
    step_of,
)
from txnlog.ui.reading import Reader, Wanted

MOMENTS_MAX: Final = 50
EACH_MAX: Final = 50
"""Pages of one kind: topics, groups, queries and ids of each moment."""
TRANSACTIONS_MAX: Final = 200
TOPICS_WITH_RECORDS: Final = 20

OnProgress = Callable[[int, int], None]
"""What is done, of how much."""


def times_between(first_ms: int, last_ms: int) -> list[int]:
    """Evenly spread, both included; no two in one second."""
    steps = min(MOMENTS_MAX - 1, max(0, last_ms - first_ms) // 1_000)
    if steps <= 0:
        return [last_ms]
    return [first_ms + (last_ms - first_ms) * step // steps for step in range(steps + 1)]


def exported(
    reader: Reader,
    renderer: Renderer,
    times: Sequence[int],
    *,
    written_ms: int,
    with_values: bool,
    on_progress: OnProgress = lambda done, total: None,
) -> str:
    """The HTML of the file. Raises what the reader raises."""
    packed, newest = [], ""
    last = reader.moment(times[-1])
    fixed = _Fixed.read(reader, last, with_values)
    for done, at_ms in enumerate(times):
        on_progress(done, len(times))
        moment = last if at_ms == times[-1] else reader.moment(at_ms)
        newest = _pages(renderer, moment, fixed)
        data = gzip.compress(newest.encode(errors="backslashreplace"), mtime=0)
        packed.append({"at": at_ms, "pages": base64.b64encode(data).decode()})
    on_progress(len(times), len(times))
    link = file_link({step_of(name) for name in LISTS})
    return renderer.render(
        "file.html",
        {
            **moment_context(last, link, is_live=False),
            "title": f"As of {formats.utc(times[-1])}",
            "policy": skin().policy(""),
            "times": times,
            "written_ms": written_ms,
            "newest": Markup(newest),
            "fixed": Markup("\n".join(_transactions(renderer, last, fixed))),
            "data": Markup(json.dumps(packed)),
            "with_values": with_values,
            "counts": counts(last),
        },
    )


def file_link(anchors: set[str]) -> Link:
    """Links to what the file holds."""

    def link(page: str, /, *steps: object, **query: object) -> str | None:
        if page == "records" and "topic" in query:
            page, steps = "topic", (query["topic"],)
        anchor = step_of(page, *steps)
        return f"#{anchor}" if anchor in anchors else None

    return link


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What is embedded once: transactions, and the newest records of topics."""

    transactions: Mapping[ProducerIdAndEpoch, Any]
    records: Mapping[str, tuple[int, Sequence[Any]]]
    errors: Mapping[str, str]
    with_values: bool

    @classmethod
    def read(cls, reader: Reader, last: Moment, with_values: bool) -> _Fixed:
        transactions, records, errors = {}, {}, {}
        for one in _newest_transactions(last):
            try:
                transactions[one] = reader.transaction(one, last.at_ms)
            except TxnLogError:
                continue  # Its log has gone since: then there is no link to it.
        for topic in busiest(last)[:TOPICS_WITH_RECORDS]:
            partition = newest_partition(topic)
            if partition is None:
                continue
            wanted = Wanted(topic=topic.name, partition=partition, with_values=with_values)
            try:
                records[topic.name] = partition, reader.records(wanted, last.at_ms)
            except TxnLogError as error:
                errors[topic.name] = error.message
        return cls(
            transactions=transactions, records=records, errors=errors, with_values=with_values
        )


def _newest_transactions(last: Moment) -> list[ProducerIdAndEpoch]:
    """Open ones first, then the newest of each lane in turns."""
    found: dict[ProducerIdAndEpoch, None] = {}
    lives = [timeline.lives(lane)[::-1] for lane in timeline.ordered(last)[:EACH_MAX]]
    for some in lives:
        found.update((life.transaction, None) for life in some if not life.is_complete)
    for turn in range(max(map(len, lives), default=0)):
        if len(found) >= TRANSACTIONS_MAX:
            break
        found.update((some[turn].transaction, None) for some in lives if turn < len(some))
    return list(found)[:TRANSACTIONS_MAX]


def _pages(renderer: Renderer, moment: Moment, fixed: _Fixed) -> str:
    """All pages of one moment, but for those that are embedded once."""
    views = list(_views(moment, fixed))
    anchors = {anchor for anchor, _ in views}
    anchors |= {step_of("transaction", *one) for one in fixed.transactions}
    link = file_link(anchors)
    return "\n".join(_page(renderer, moment, link, *each) for each in views)


def _views(moment: Moment, fixed: _Fixed) -> Iterator[tuple[str, View]]:
    for name, made in LISTS.items():
        yield step_of(name), made(moment, {})
    lanes = [lane.transactional_id for lane in timeline.ordered(moment)[:EACH_MAX]]
    named = {"group": [*moment.groups], "query": [*moment.queries], "id": lanes}
    for page, names in named.items():
        for name in names[:EACH_MAX]:
            view = NAMED[page](moment, name, {})
            if view is not None:
                yield step_of(page, name), view
    for topic in busiest(moment)[:EACH_MAX]:
        partition, records = fixed.records.get(topic.name, (None, ()))
        error = fixed.errors.get(topic.name, "")
        # Records are those of the last moment: an earlier one may have fewer.
        until = {one.partition: one.high_watermark for one in topic.partitions}
        there = [one for one in records if one.place.offset < until.get(partition or 0, 0)]
        view = topic_view(moment, topic, {}, partition, there, error, with_values=fixed.with_values)
        yield step_of("topic", topic.name), view


def _transactions(renderer: Renderer, last: Moment, fixed: _Fixed) -> Iterator[str]:
    anchors = {anchor for anchor, _ in _views(last, fixed)}
    link = file_link(anchors | {step_of("transaction", *one) for one in fixed.transactions})
    for one, found in fixed.transactions.items():
        anchor = step_of("transaction", *one)
        yield _page(renderer, last, link, anchor, transaction_view(found, last))


def _page(renderer: Renderer, moment: Moment, link: Link, anchor: str, view: View) -> str:
    context = {
        **moment_context(moment, link, is_live=False),
        **view.context,
        "name": view.name,
        "anchor": anchor,
        "is_server": False,
        "at_ms": moment.at_ms,
    }
    return renderer.render("embedded.html", context)
