"""What the server answers to an address: a page, another address, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from txnlog.errors import TransactionalIdNotFoundError, TxnLogError
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Moment, TopicMoment, TransactionMoment
from txnlog.protocol.partitioner import partition_for_key
from txnlog.protocol.vacuum import Deletable
from txnlog.text import printable
from txnlog.ui import charts, formats, pages
from txnlog.ui.formats import parsed_integer
from txnlog.ui.pages import LISTS, NAMED, Link, Renderer, View, link_at, moment_context
from txnlog.ui.reading import RECORDS, Reader, Wanted

HITS_MAX: Final = 50
TOPIC_NAMES_MAX: Final = 500
TIMES: Final = "A time is 09:00, -2 min, 2026-01-31 09:00:00 or milliseconds since 1970"


class Answer(NamedTuple):
    """A page with its status, or, with a `location`, where to look instead."""

    status: int
    html: str = ""
    location: str = ""


class NotThereError(Exception):
    """There is no such page; the message says what is missing."""


class Answers:
    """Every page of a root by its address; no two threads may ask `answer` at once."""

    def __init__(self, reader: Reader, renderer: Renderer) -> None:
        self._reader = reader
        self._renderer = renderer

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """The page, or one that says why there is none. Raises only for a defect."""
        try:
            return self._answer([*filter(None, path.split("/"))] or ["overview"], query)
        except NotThereError as error:
            return self.refused(404, "Not found", str(error))
        except TransactionalIdNotFoundError as error:
            return self.refused(404, "Not found", error.message)
        except TxnLogError as error:
            advice = "The page tries again by itself; `txnlog verify` says what is damaged."
            return self.refused(503, "The root cannot be read", error.message, advice)

    def refused(self, status: int, title: str, text: str, advice: str = "") -> Answer:
        """A page with a sentence; its link leads to the start, where there is one."""
        context = {
            "title": title,
            "text": text,
            "advice": advice,
            "href": "" if status == 403 else "/",
            "link": link_at(None),
            "now": 0,
        }
        return Answer(status, self._renderer.render("error.html", context))

    def _answer(self, path: Sequence[str], query: Mapping[str, str]) -> Answer:
        name, steps = path[0], [formats.unslug(step) for step in path[1:]]
        now = self._reader.moment(None)
        if "time" in query:
            return Answer(303, location=_at_time(path, query, now))
        at_ms = _as_of(query, now)
        moment = now if at_ms is None else self._reader.moment(at_ms)
        found = self._view(name, steps, moment, query, at_ms)
        if isinstance(found, str):
            return Answer(303, location=found)
        asked = {key: text for key, text in query.items() if key not in ("at", "page") and text}
        here = f"/{'/'.join(path)}" if name != "overview" else "/"
        context = {
            **moment_context(moment, link_at(at_ms, moment), is_live=at_ms is None),
            **found.context,
            "name": found.name,
            "page_name": found.name,
            "title": found.title,
            "at_ms": at_ms,
            "asked": asked,
            "slider_max": _slider_max(now),
            "live_href": f"{here}?{pages.encoded(asked)}" if asked else here,
            "is_server": True,
            "counts": counts(moment),
        }
        return Answer(200, self._renderer.render("page.html", context))

    def _view(
        self,
        name: str,
        steps: Sequence[str | None],
        moment: Moment,
        query: Mapping[str, str],
        at_ms: int | None,
    ) -> View | str:
        """A page, or an address."""
        match name, *steps:
            case _ if name in LISTS and not steps:
                return LISTS[name](moment, query)
            case _, str(one) if name in NAMED:
                found = NAMED[name](moment, one, query)
                if found is None:
                    raise NotThereError(_missing(name, one, moment))
                return found
            case "topic", str(one):
                return self._topic(moment, one, query, at_ms)
            case "transaction", str(first), str(second):
                ids = parsed_integer(first), parsed_integer(second)
                if ids[0] is None or ids[1] is None:
                    raise NotThereError("A transaction is two numbers: producer id and epoch.")
                transaction = ProducerIdAndEpoch(*ids)  # type: ignore[arg-type]
                return transaction_view(self._reader.transaction(transaction, at_ms), moment)
            case ("records",):
                return self._records(moment, query, at_ms)
            case ("deletable",) if at_ms is not None:
                return str(link_at(at_ms)("upkeep"))  # It is known of now only.
            case ("deletable",):
                return deletable_view(self._reader.deletable(), query)
            case ("find",):
                return find(moment, query.get("q", "").strip(), link_at(at_ms))
        raise NotThereError(f"There is no page {printable('/'.join([name, *map(str, steps)]))}.")

    def _topic(
        self, moment: Moment, name: str, query: Mapping[str, str], at_ms: int | None
    ) -> View:
        topic = moment.topics.get(name)
        if topic is None:
            raise NotThereError(_missing("topic", name, moment))
        partition = parsed_integer(query.get("partition", ""))
        if partition is None:
            partition = newest_partition(topic)
        records, error = [], ""
        if partition is not None:
            try:
                wanted = Wanted(topic=name, partition=partition)
                records = self._reader.records(wanted, at_ms)
            except TxnLogError as failed:
                # What is damaged is one file: the page has more to tell.
                error = failed.message
        return topic_view(moment, topic, query, partition, records, error)

    def _records(self, moment: Moment, query: Mapping[str, str], at_ms: int | None) -> View:
        fields = {
            name: query.get(name, "") for name in ("topic", "partition", "offset", "from", "key")
        }
        names = sorted(moment.topics)[:TOPIC_NAMES_MAX]
        context: dict[str, Any] = {
            "fields": fields,
            "topic_names": names,
            "problem": "",
            "wanted": None,
            "records": [],
            "told": "",
            "marked": None,
            "with_values": True,
            "older": None,
            "newer": None,
        }
        if fields["topic"]:
            try:
                wanted, told = _wanted(fields, moment)
                found = self._reader.records(wanted, at_ms)
                context.update(_around(wanted, told, found))
            except NotThereError as error:
                context["problem"] = str(error)
            except TxnLogError as error:
                context["problem"] = error.message
        return View(name="records", title="Records", context=context)


# --- Records --------------------------------------------------------------------------------------


def _wanted(fields: Mapping[str, str], moment: Moment) -> tuple[Wanted, str]:
    """What the form asks for, and in words. Raises NotThereError."""
    name, key = fields["topic"], fields["key"]
    topic = moment.topics.get(name)
    if topic is None:
        raise NotThereError(_missing("topic", name, moment))
    data = key.encode(errors="surrogatepass") if key else None
    partition = _number(fields, "partition")
    if partition is None:
        partition = newest_partition(topic) or 0
        if data is not None:
            partition = partition_for_key(data, len(topic.partitions))
    if all(one.partition != partition for one in topic.partitions):
        raise NotThereError(f"Topic {printable(name)} has no partition {partition}.")
    offset, since_ms = _number(fields, "offset"), None
    if fields["from"]:
        since_ms = formats.parsed_time_ms(fields["from"], moment.at_ms)
        if since_ms is None:
            raise NotThereError(f"{TIMES}, not {printable(fields['from'])}.")
    if sum(one is not None for one in (offset, since_ms, data)) > 1:
        raise NotThereError("Give an offset, a time, or a key.")
    told = "newest"
    if offset is not None:
        told = f"from offset {offset}"
    elif since_ms is not None:
        told = f"from {formats.utc(since_ms)}"
    elif data is not None:
        told = f"newest with key {formats.short(key)}"
    wanted = Wanted(topic=name, partition=partition, offset=offset, timestamp_ms=since_ms, key=data)
    return wanted, told


def _around(wanted: Wanted, told: str, found: Sequence[Any]) -> dict[str, Any]:
    offsets = [one.place.offset for one in found]
    first, last = (min(offsets), max(offsets)) if offsets else (0, 0)
    return {
        "wanted": wanted,
        "told": told,
        "records": found,
        "marked": wanted.offset,
        "older": max(0, first - RECORDS) if first > 0 else None,
        "newer": last + 1,
    }


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields[name].strip().replace(",", "")
    if not text:
        return None
    found = parsed_integer(text)
    if found is None:
        raise NotThereError(f"The {name} is a number, not {printable(text)}.")
    return found


def newest_partition(topic: TopicMoment) -> int | None:
    """The partition that was written last; None of a topic without partitions."""
    newest = max(topic.partitions, key=lambda one: one.last_timestamp_ms, default=None)
    return None if newest is None else newest.partition


def topic_view(
    moment: Moment,
    topic: TopicMoment,
    query: Mapping[str, str],
    partition: int | None,
    records: Sequence[Any] | None,
    error: str = "",
    *,
    with_values: bool = True,
) -> View:
    """One topic with its newest records, or without (None)."""
    context = {
        **pages.topic_context(moment, topic, query),
        "partition": partition,
        "records": records,
        "records_error": error,
        "marked": None,
        "with_values": with_values,
    }
    return View(name="topic", title=f"Topic {formats.short(topic.name)}", context=context)


def transaction_view(found: TransactionMoment, moment: Moment) -> View:
    """One transaction."""
    names = [name for name in charts.PHASES if name in found.phases]
    names += sorted(set(found.phases) - {*names, "total"})
    context = {
        "found": found,
        "phases": names,
        "total_ms": sum(found.phases[name] for name in names) or 1,
        "about": [one for one in moment.problems if one.transaction == found.transaction][:5],
    }
    title = f"Transaction {found.transaction.producer_id}:{found.transaction.epoch}"
    return View(name="transaction", title=title, context=context)


def deletable_view(found: Sequence[Deletable], query: Mapping[str, str]) -> View:
    """What housekeeping would delete, the largest first, and the sums by reason."""
    sums: dict[str, tuple[int, int]] = {}
    for one in found:
        files, size_bytes = sums.get(one.reason, (0, 0))
        sums[one.reason] = files + 1, size_bytes + one.size_bytes
    rows = sorted(found, key=lambda one: (-one.size_bytes, one.path))
    context = {
        "sums": sorted(sums.items(), key=lambda one: -one[1][1]),
        "files": pages.listed(rows, lambda one: f"{one.path} {one.reason}", query),
    }
    return View(name="deletable", title="What housekeeping would delete", context=context)


# --- Addresses ------------------------------------------------------------------------------------


def find(moment: Moment, q: str, link: Link) -> View | str:
    """The address of the one thing that is named so, or all whose names contain it."""
    topic, _, rest = q.partition(":")
    numbers = [parsed_integer(one) for one in rest.split(":")]
    match numbers:
        case [int(partition), int(offset)] if topic in moment.topics:
            return str(link("records", topic=topic, partition=partition, offset=offset))
        case [int(epoch)] if parsed_integer(topic) is not None:
            return str(link("transaction", topic, epoch))
    places: Mapping[str, Callable[[], list[tuple[str, str]]]] = {
        "topic": lambda: [(one, one) for one in moment.topics],
        "group": lambda: [(one, one) for one in moment.groups],
        "query": lambda: [(one.query_id, one.title) for one in moment.queries.values()],
        "id": lambda: [(one.transactional_id, one.title) for one in moment.lanes],
    }
    hits = []
    for page, named in places.items():
        for name, title in named():
            if q in (name, title):
                return str(link(page, name))
            if q.casefold() in f"{name} {title}".casefold():
                hits.append((page, title, link(page, name)))
    context = {"q": q, "hits": hits[:HITS_MAX], "left_out": max(0, len(hits) - HITS_MAX)}
    return View(name="find", title="Find", context=context)


def counts(moment: Moment) -> dict[str, int]:
    """Beside the names of the menu."""
    return {
        "topics": len(moment.topics),
        "groups": len(moment.groups),
        "queries": len(moment.queries),
    }


def _as_of(query: Mapping[str, str], now: Moment) -> int | None:
    """The time of ?at=, within what the logs know; None for now."""
    text = query.get("at", "")
    if not text:
        return None
    at_ms = formats.parsed_time_ms(text, now.at_ms)
    if at_ms is None:
        raise NotThereError(f"{TIMES}, not {printable(text)}.")
    return min(max(at_ms, now.earliest_ms), now.at_ms)


def _at_time(path: Sequence[str], query: Mapping[str, str], now: Moment) -> str:
    """The same page as of the time of the form."""
    left = {key: text for key, text in query.items() if key not in ("time", "at", "page") and text}
    at_ms = formats.parsed_time_ms(query["time"], now.at_ms)
    if query["time"] and at_ms is None:
        raise NotThereError(f"{TIMES}, not {printable(query['time'])}.")
    if at_ms is not None:
        left["at"] = str(max(0, at_ms))
    here = "/" if path[0] == "overview" else f"/{'/'.join(path)}"
    return f"{here}?{pages.encoded(left)}" if left else here


def _slider_max(now: Moment) -> int:
    """A whole number of seconds after its other end, as its steps are."""
    return now.earliest_ms + -(-(now.at_ms - now.earliest_ms) // 1_000) * 1_000


def _missing(kind: str, name: str, moment: Moment) -> str:
    told = f"There is no {kind} {formats.short(name, 80)} as of {formats.utc(moment.at_ms)}"
    return f"{told}, in what has been read; try again." if moment.later else f"{told}."
