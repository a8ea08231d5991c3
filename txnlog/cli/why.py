"""`txnlog why`: what is wrong, in the root, or of a group, an id or a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from txnlog.admin import GroupExplanation, IdExplanation, Problem, RecordTrace
from txnlog.cli import completion
from txnlog.cli.problem_lines import problem_lines
from txnlog.cli.session import Session, session_of
from txnlog.cli.times import format_time
from txnlog.messages import TopicPartition
from txnlog.protocol.explanations import count_of
from txnlog.protocol.problems import problem_values, who_of

app = typer.Typer(add_completion=False)

LAGS = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LAST-STABLE-OFFSET", "LOG-END-OFFSET", "LAG")
PIECES = ("TOPIC", "PARTITION", "FIRST-OFFSET", "LAST-OFFSET", "FILES")


@app.command()
def why(
    context: typer.Context,
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC:PARTITION:OFFSET", help="Which transaction wrote this record."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Why it waits or lags.", autocompletion=completion.groups
        ),
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            help="Who fenced it, when and why.", autocompletion=completion.transactional_ids
        ),
    ] = None,
    story: Annotated[
        str | None,
        typer.Option(
            help="What happened to this transactional id.",
            autocompletion=completion.transactional_ids,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="With --key.", autocompletion=completion.topics),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Which transaction wrote the newest record of this key.")
    ] = None,
) -> None:
    """What is wrong, and what ends it: in the root, or of a group, an id or a record.

    It changes nothing. Who decided a transaction, and the story of an id, are known for a day, the
    retention of the logs; which transaction wrote a record, then until it is compacted.
    """
    session = session_of(context)
    asked = [record, group, transactional_id, story, key]
    if sum(one is not None for one in asked) > 1 or (topic is None) != (key is None):
        raise typer.BadParameter(
            "Give nothing, or one of TOPIC:PARTITION:OFFSET, --group, --transactional-id, --story, "
            "and --topic with --key."
        )
    if record is not None:
        _show_record(session, session.admin().trace_record(_parsed(record)).result())
    elif topic is not None and key is not None:
        data = key.encode(errors="surrogateescape")
        _show_record(session, session.admin().trace_key(topic, data).result())
    else:
        _explain(session, group, transactional_id, story)


def _explain(
    session: Session, group: str | None, transactional_id: str | None, story: str | None
) -> None:
    """The root, where nothing is given."""
    admin = session.admin()
    if group is not None:
        _show_group(session, admin.explain_group(group).result())
    elif transactional_id is not None:
        _show_id(session, admin.explain_transactional_id(transactional_id).result())
    elif story is not None:
        _show_story(session, admin.explain_transactional_id(story).result())
    else:
        problems = admin.find_problems().result()
        _show(session, count_of(problems), problems)


def _parsed(record: str) -> TopicPartition:
    topic, _, rest = record.partition(":")
    numbers = rest.split(":")
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() for one in numbers):
        raise typer.BadParameter(f"A record is TOPIC:PARTITION:OFFSET, not {record!r}.")
    return TopicPartition(topic, int(numbers[0]), int(numbers[1]))


def _show(
    session: Session,
    verdict: str,
    problems: Sequence[Problem],
    more: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
) -> None:
    """The verdict comes first, with its notes; `more` is for JSON."""
    if session.is_json:
        values = [problem_values(problem) for problem in problems]
        session.show_json({"verdict": verdict, **more, "problems": values})
        return
    session.say(f"{verdict[:1].upper()}{verdict[1:]}{'' if verdict.endswith('.') else '.'}")
    for note in notes:
        session.say(f"  {note}")
    for problem in problems:
        lines = problem_lines(session, problem)
        session.say("")
        session.say(f"{problem.kind.value}: {lines[0]}")
        for line in lines[1:]:
            session.say(line)


def _show_group(session: Session, found: GroupExplanation) -> None:
    rows = [(*one[:3], one.stable, one.end, one.lag) for one in found.partitions]
    lags = [dict(zip(LAGS, row, strict=True)) for row in rows]
    more = {"group": found.group_id, "partitions": lags}
    _show(session, found.verdict, found.problems, more)
    if rows and not session.is_json:
        session.say("")
        session.show(LAGS, rows)


def _show_id(session: Session, found: IdExplanation) -> None:
    last = None if found.row is None else found.row.owner.fenced
    when = [] if last is None else [f"When: {format_time(last.at_ms)}"]
    more = {
        "transactionalId": found.transactional_id,
        "advice": found.advice,
        "owner": None if found.row is None else who_of(found.row.owner),
        "state": None if found.row is None else found.row.state.kafka_name,
        "fenced": last and {"by": last.by, "atMs": last.at_ms, "reason": last.reason},
    }
    notes = [*when, f"What to do: {found.advice}"]
    _show(session, found.verdict, found.problems, more, notes)


def _show_story(session: Session, found: IdExplanation) -> None:
    if session.is_json:
        told = [{"atMs": one.at_ms, "text": one.text} for one in found.story]
        session.show_json({"transactionalId": found.transactional_id, "story": told})
        return
    for one in found.story:
        session.say(f"{format_time(one.at_ms)}  {one.text}")
    if not found.story:
        session.say(f"The log's history of {found.transactional_id} is gone. {found.verdict}")


def _show_record(session: Session, found: RecordTrace) -> None:
    if session.is_json:
        session.show_json(found.to_values())
        return
    where = f"{found.topic}-{found.partition} at offset {found.offset}"
    session.say(f"The record of {where}: {_said(found)}.")
    if found.file:
        session.say(f"  File: {found.file}")
    if found.producer_id >= 0:
        session.say(f"  Producer: id {found.producer_id}, epoch {found.producer_epoch}")
    if found.owner is not None:
        session.say(f"  Owner: {found.owner.describe()}")
        if found.owner.query_name:
            session.say(f"  Query: {found.owner.query_name}")
    if found.batch_id is not None:
        session.say(f"  Batch: {found.batch_id}")
    if found.decided_ms >= 0:
        session.say(f"  Decided: {format_time(found.decided_ms)}")
    for ticket in found.offsets:
        for topic, numbers in sorted(ticket.offsets.items()):
            for number, offset in sorted(numbers.items()):
                session.say(f"  Offsets of group {ticket.group_id}: {topic}-{number} to {offset}")
    session.say(f"  Read by: {', '.join(found.read_by) or 'no group has committed past it'}")
    if found.pieces:
        session.say("")
        session.show(PIECES, [_row(piece) for piece in found.pieces])


def _row(piece: Any) -> tuple[object, ...]:
    offsets = (piece.first_offset, piece.last_offset)
    shown = (None if offset < 0 else offset for offset in offsets)
    return (piece.topic, piece.partition, *shown, piece.files or None)


def _said(found: RecordTrace) -> str:
    if found.status in ("not written", "removed"):
        return f"it is {found.status}"
    if found.status == "none":
        return "written without a transaction"
    if found.producer_id < 0:
        return found.status
    name = found.transactional_id or "an id that is gone"
    return f"{found.status}, in a transaction of {name}"
