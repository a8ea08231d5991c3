"""`txnlog offsets`: earliest and latest offsets of topics, and offsets for timestamps."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import IsolationLevel, OffsetSpec
from txnlog.cli.session import parse_numbers, parse_time_ms, session_of
from txnlog.messages import TopicPartition

SPECS = {
    "latest": OffsetSpec.latest(),
    "-1": OffsetSpec.latest(),
    "earliest": OffsetSpec.earliest(),
    "-2": OffsetSpec.earliest(),
}


def offsets(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="May be repeated; default: all.")
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
) -> None:
    """Offsets of topics; -1 if there is no record at or after the time."""
    session = session_of(context)
    admin = session.admin()
    spec = SPECS.get(time) or OffsetSpec.for_timestamp(parse_time_ms("--time", time))
    level = IsolationLevel.READ_UNCOMMITTED if read_uncommitted else IsolationLevel.READ_COMMITTED
    wanted: list[TopicPartition] = []
    listed = {} if topic else dict(admin.list_topics().topics)
    errors = {name: found.error for name, found in listed.items()}
    if topic is not None:
        counts = dict.fromkeys(topic, 0)
        if partitions is None:
            counts = {name: log.partitions for name, log in admin.cluster.topics(topic).items()}
    else:
        counts = {name: len(listed[name].partitions) for name in sorted(listed) if not errors[name]}
    for name, count in counts.items():
        numbers = range(count) if partitions is None else parse_numbers("--partitions", partitions)
        wanted += [TopicPartition(name, number) for number in numbers]
    found = admin.list_offsets(dict.fromkeys(wanted, spec), isolation_level=level)
    rows = [(asked.topic, asked.partition, found[asked].result().offset) for asked in wanted]
    session.show(("TOPIC", "PARTITION", "OFFSET"), rows)
    session.finish(errors)
