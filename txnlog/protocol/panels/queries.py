"""Spark's queries, and the flow of records between producers, topics, queries and groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from txnlog.protocol.moments import (
    BatchMoment,
    Edge,
    Flow,
    GroupMoment,
    Node,
    NodeKind,
    QueryMoment,
)
from txnlog.protocol.panels.changes import (
    Changes,
    GroupChange,
    NewRecords,
    Window,
    first_offsets,
)
from txnlog.protocol.problems import BLOCKING, Problem, RootState
from txnlog.protocol.states import TransactionState
from txnlog.protocol.stories import RowChange

# --- Queries --------------------------------------------------------------------------------------


def queries(state: RootState, changes: Mapping[str, Sequence[RowChange]]) -> dict[str, QueryMoment]:
    """Every query that has a row, by its id."""
    found: dict[str, QueryMoment] = {}
    held: dict[str, set[str]] = {}
    for group_id, group in state.groups.items():
        for holder in group.tickets.holders:
            held.setdefault(holder.transactional_id, set()).add(group_id)
    for row in sorted(state.rows, key=lambda row: row.updated_ms):
        owner = row.owner
        if owner.query_id and not owner.one_off:
            batches = list(batch_moments(changes.get(row.transactional_id, ())))
            topics = owner.last_batch.topics if owner.last_batch is not None else ()
            groups = {one.group_id for one in row.pending.tickets}
            found[owner.query_id] = QueryMoment(
                query_id=owner.query_id,
                title=owner.query_name or owner.query_id,
                owner=owner.describe(),
                is_fenced=owner.run_id in owner.former_runs,
                groups=sorted(groups | held.get(row.transactional_id, set())),
                topics=sorted({*topics, *row.topics}),
                batches=batches,
            )
    return found


def batch_moments(changes: Sequence[RowChange]) -> Iterator[BatchMoment]:
    """The micro-batches that were decided, with the phases that a later commit tells."""
    told = {key: found for change in changes for key, found in told_phases(change).items()}
    seen = set()
    for change in changes:
        row = change.row
        if row is None or row.state is not TransactionState.PREPARE_COMMIT:
            continue
        last = row.owner.last_batch
        if last is None or row.transaction in seen:
            continue
        seen.add(row.transaction)
        staged = row.pending.batches
        yield BatchMoment(
            batch_id=last.batch_id,
            at_ms=change.at_ms,
            transaction=row.transaction,
            records=sum(batch.num_records for batch in staged),
            files=len(staged),
            phases=told.get(last.batch_id, {}),
        )


def told_phases(change: RowChange) -> dict[int, dict[str, float]]:
    """The phases in ms that a commit tells of a micro-batch."""
    parameters = change.parameters
    if not parameters.get("batchId", "").isdigit():
        return {}
    return {int(parameters["batchId"]): phases_in(parameters)}


def phases_in(parameters: Mapping[str, str]) -> dict[str, float]:
    """Name -> milliseconds."""
    found = {}
    for name, text in parameters.items():
        if name.endswith("Ms"):
            try:
                found[name[:-2]] = float(text)
            except ValueError:
                continue
    return found


# --- Flow -----------------------------------------------------------------------------------------

Place = tuple[NodeKind, str]
OTHERS = ""
"""The node of producers that have no transactional.id."""


def flow(
    state: RootState,
    records: Mapping[str, Sequence[NewRecords]],
    changes: Changes,
    groups: Mapping[str, GroupMoment],
    found: Mapping[str, QueryMoment],
    problems: Sequence[Problem],
    ids: Mapping[int, str],
    window: Window,
) -> Flow:
    """The graph; `ids`: producer id -> transactional.id, of those that wrote in the window."""
    per_second = 1000 / window.length_ms
    counts: dict[tuple[Place, Place], float] = {}
    of_query = {
        row.transactional_id: row.owner.query_id for row in state.rows if row.owner.query_id
    }
    for topic, some in records.items():
        by_producer: dict[int, int] = {}
        for one in some:
            by_producer[one.producer_id] = by_producer.get(one.producer_id, 0) + one.records
        for producer_id, count in by_producer.items():
            source = _writer(ids.get(producer_id, OTHERS), of_query, found)
            key = source, (NodeKind.TOPIC, topic)
            counts[key] = counts.get(key, 0) + count * per_second
    ends = {
        (topic, number): end
        for topic, some in changes.topics.items()
        for number, end in first_offsets(some).items()
    }
    for group_id, group in groups.items():
        rates = _read(changes.groups.get(group_id, ()), ends, window)
        for topic in sorted({one.topic for one in group.positions}):
            counts[(NodeKind.TOPIC, topic), (NodeKind.GROUP, group_id)] = rates.get(topic, 0.0)
        for holder in state.groups[group_id].tickets.holders:
            target = _writer(holder.transactional_id, of_query, found)
            rate = sum(rates.get(topic, 0.0) for topic in holder.partitions)
            counts[(NodeKind.GROUP, group_id), target] = rate
    blocked = _blocked(problems, groups, of_query, found)
    ordered = sorted(counts.items(), key=_order)
    edges = [Edge(*pair, rate, is_blocked=pair in blocked) for pair, rate in ordered]
    places = {place for edge in edges for place in (edge.source, edge.target)}
    places |= {(NodeKind.TOPIC, name) for name, one in state.topics.items() if not one.is_deleted}
    nodes = [Node(*place, _title(*place, found)) for place in sorted(places, key=_by_name)]
    return Flow(nodes, edges)


def _by_name(place: Place) -> tuple[str, str]:
    return place[0].value, place[1]


def _order(item: tuple[tuple[Place, Place], float]) -> tuple[tuple[str, str], tuple[str, str]]:
    source, target = item[0]
    return _by_name(source), _by_name(target)


def _title(kind: NodeKind, name: str, found: Mapping[str, QueryMoment]) -> str:
    if kind is NodeKind.QUERY and name in found:
        return found[name].title
    if kind is NodeKind.PRODUCER and name == OTHERS:
        return "without a transactional.id"
    return name


def _writer(name: str, of_query: Mapping[str, str], found: Mapping[str, QueryMoment]) -> Place:
    query_id = of_query.get(name, "")
    return (NodeKind.QUERY, query_id) if query_id in found else (NodeKind.PRODUCER, name)


def _read(
    changes: Sequence[GroupChange],
    ends: Mapping[tuple[str, int], int],
    window: Window,
) -> dict[str, float]:
    """Topic -> offsets per second that a group moved over; `ends` of partitions that grew in the
    window are those at its start, where a group that is not behind has begun.
    """
    firsts: dict[tuple[str, int], int] = {}
    lasts: dict[tuple[str, int], int] = {}
    per_second = 1000 / window.length_ms
    for change in changes:
        for topic, numbers in change.positions.items():
            for number, offset in numbers.items():
                known = offset if change.at_ms < window.since_ms else ends.get((topic, number))
                first = offset if known is None else min(known, offset)
                firsts.setdefault((topic, number), first)
                lasts[topic, number] = offset
    found: dict[str, float] = {}
    for key, last in lasts.items():
        found[key[0]] = found.get(key[0], 0.0) + max(0, last - firsts[key]) * per_second
    return found


def _blocked(
    problems: Iterable[Problem],
    groups: Mapping[str, GroupMoment],
    of_query: Mapping[str, str],
    found: Mapping[str, QueryMoment],
) -> set[tuple[Place, Place]]:
    """From who blocks to the topic, and from the topic to the groups that wait there."""
    blocked: set[tuple[Place, Place]] = set()
    for problem in problems:
        if problem.kind in BLOCKING:
            for place in problem.places:
                topic = NodeKind.TOPIC, place.topic
                if problem.row is not None:
                    blocked.add((_writer(problem.row.transactional_id, of_query, found), topic))
    for group_id, group in groups.items():
        for problem in group.blocked_by:
            for place in problem.places:
                blocked.add(((NodeKind.TOPIC, place.topic), (NodeKind.GROUP, group_id)))
    return blocked
