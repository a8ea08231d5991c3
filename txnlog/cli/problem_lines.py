"""A problem as lines for people."""

from __future__ import annotations

from txnlog.cli.session import Session
from txnlog.cli.times import format_time
from txnlog.protocol.problems import BLOCKING, Place, Problem


def problem_lines(session: Session, problem: Problem) -> list[str]:
    """Who, why, since when, until when, whom it blocks, and what ends it."""
    since = f", since {format_time(problem.since_ms)}" if problem.since_ms >= 0 else ""
    lines = [f"{problem.subject}: {problem.why}{since}"]
    if problem.who:
        lines.append(f"  Owner: {problem.who}")
    row = problem.row
    if row is not None and row.owner.query_name:
        lines.append(f"  Query: {row.owner.query_name}")
    if problem.batch_id is not None:
        lines.append(f"  Batch: {problem.batch_id}")
    until = "" if problem.until_ms is None else f"{format_time(problem.until_ms)}, "
    ends, do = ("Until", "End it now") if problem.kind in BLOCKING else ("What ends it", "Type")
    lines.append(f"  {ends}: {until}{problem.ends}")
    lines += [f"  Blocks: {_blocked(place)}" for place in problem.places]
    if problem.command:
        lines.append(f"  {do}: {session.pasted(problem.command)}")
    return lines


def _blocked(place: Place) -> str:
    where = f"{place.topic}-{place.partition}"
    if place.start_offset is not None:
        return f"read_committed readers of {where} at offset {place.start_offset}"
    if place.groups:
        return f"readers of the committed offsets of {where} of {', '.join(place.groups)}"
    return f"readers of {where}, which has none of its records yet"
