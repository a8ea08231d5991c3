"""`txnlog offsets`: earliest and latest offsets of topics, and offsets for timestamps."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import AdminClient, IsolationLevel, OffsetSpec
from txnlog.cli import completion
from txnlog.cli.session import Watch, parse_numbers, session_of
from txnlog.cli.times import parse_time_ms
from txnlog.messages import TopicPartition

app = typer.Typer(add_completion=False)

SPECS = {
    "latest": OffsetSpec.latest(),
    "-1": OffsetSpec.latest(),
    "earliest": OffsetSpec.earliest(),
    "-2": OffsetSpec.earliest(),
}


@app.command()
def offsets(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="May be repeated; default: all.",
            autocompletion=completion.topics,
        ),
    ] = None,
    partitions: Annotated[
        str | None, typer.Option(help="Partitions, as in 0,1; default: all.")
    ] = None,
    time: Annotated[
        str, typer.Option(help="latest (-1), earliest (-2), an ISO 8601 time, or ms since 1970.")
    ] = "latest",
    read_uncommitted: Annotated[
        bool, typer.Option("--read-uncommitted", help="Include open transactions.")
    ] = False,
    watch: Watch = None,
) -> None:
    """Offsets of topics; -1 if there is no record at or after the time."""
    session = session_of(context)
    spec = SPECS.get(time) or OffsetSpec.for_timestamp(parse_time_ms("--time", time))
    level = IsolationLevel.READ_UNCOMMITTED if read_uncommitted else IsolationLevel.READ_COMMITTED

    def show() -> None:
        admin = session.admin()
        wanted, errors = _wanted(admin, topic, partitions)
        found = admin.list_offsets(dict.fromkeys(wanted, spec), isolation_level=level)
        rows = [(asked.topic, asked.partition, found[asked].result().offset) for asked in wanted]
        session.show(("TOPIC", "PARTITION", "OFFSET"), rows)
        session.finish(errors)

    session.watch(watch, show)


def _wanted(
    admin: AdminClient, topics: list[str] | None, partitions: str | None
) -> tuple[list[TopicPartition], dict[str, Exception | None]]:
    """The partitions to show, and the errors of topics that cannot be read."""
    errors: dict[str, Exception | None] = {}
    if topics is None:
        listed = admin.list_topics().topics
        errors = {name: found.error for name, found in listed.items()}
        counts = {name: len(listed[name].partitions) for name in sorted(listed) if not errors[name]}
    elif partitions is None:
        counts = {name: log.partitions for name, log in admin.cluster.topics(topics).items()}
    else:
        counts = dict.fromkeys(topics, 0)
    numbers = None if partitions is None else parse_numbers("--partitions", partitions)
    wanted = [
        TopicPartition(name, number)
        for name, count in counts.items()
        for number in (range(count) if numbers is None else numbers)
    ]
    return wanted, errors
