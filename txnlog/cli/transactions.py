"""`txnlog transactions`: list, describe, abort and fence transactions."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from txnlog.admin import AbortTransactionSpec, TransactionDescription
from txnlog.cli import completion
from txnlog.cli.problem_lines import problem_lines
from txnlog.cli.session import UNREADABLE, Session, Watch, parse_numbers, session_of
from txnlog.cli.times import format_time
from txnlog.messages import TopicPartition
from txnlog.protocol.states import TransactionState

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, describe, abort and fence transactions.",
)

MINUTE_MS = 60_000
STATES = {state.kafka_name: state for state in TransactionState}
LIST = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState", "QueryName")
PRODUCERS = (
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
)  # fmt: skip
HANGING = (
    "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset",
    "LastTimestamp", "Duration(min)",
)  # fmt: skip

TransactionalId = Annotated[
    str, typer.Option("--transactional-id", autocompletion=completion.transactional_ids)
]
Reason = Annotated[str, typer.Option(help="Appears in the error of the fenced owner.")]


@app.command("list")
def list_all(
    context: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(STATES)}; may be repeated.", autocompletion=completion.states
        ),
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    duration_filter: Annotated[
        int, typer.Option(help="Only transactions open for longer than this, in ms.")
    ] = -1,
    transactional_id_pattern: Annotated[
        str | None, typer.Option(help="Regular expression that the whole id must match.")
    ] = None,
    watch: Watch = None,
) -> None:
    """Transactional ids, their shard, producer id and state."""
    session = session_of(context)
    unknown = sorted(set(state or ()) - set(STATES))
    if unknown:
        raise typer.BadParameter(f"Unknown state {unknown[0]!r}; use one of {', '.join(STATES)}.")

    def show() -> None:
        found = session.admin().list_transactions(
            states=[STATES[name] for name in state or ()],
            producer_ids=producer_id or (),
            duration_ms=duration_filter,
            transactional_id_pattern=transactional_id_pattern,
        )
        listings = found.result()
        rows = [
            (
                t.transactional_id,
                t.coordinator,
                t.producer_id,
                UNREADABLE if t.state is None else t.state.kafka_name,
                t.query_name or None,
            )
            for t in listings
        ]
        session.show(LIST, rows)
        session.finish({t.transactional_id: t.error for t in listings})

    session.watch(watch, show)


@app.command()
def describe(
    context: typer.Context, transactional_id: TransactionalId, watch: Watch = None
) -> None:
    """An id's open transaction, its owner, and who last fenced or aborted it and why."""
    session = session_of(context)

    def show() -> None:
        asked = session.admin().describe_transactions([transactional_id])
        found = asked[transactional_id].result()
        transaction = found.transaction(time.time_ns() // 1_000_000)
        if session.is_json:
            session.show_json([{**transaction, **found.ownership()}])
            return
        session.show(tuple(transaction), [tuple(transaction.values())])
        for line in _ownership_lines(found):
            session.say(line)

    session.watch(watch, show)


def _ownership_lines(found: TransactionDescription) -> list[str]:
    lines = ["", f"Owner: {found.owner}, since {format_time(found.owner_since_ms)}"]
    if found.query_name:
        lines.append(f"  Query: {found.query_name}")
    if found.is_owner_fenced:
        lines.append("  It is fenced: it can no longer write.")
    if found.prepared_by_client:
        lines.append("Prepared by its client: waits for the second phase, without a time-out.")
    if found.decider:
        lines.append(f"Table {found.decider} decides it, once any process has put its change.")
    if found.groups:
        lines.append(f"Commits offsets of: {', '.join(found.groups)}")
    last = found.fenced
    if last is not None:
        lines.append(f"Last fenced or aborted: {format_time(last.at_ms)}, by {last.by}")
        lines.append(f"  Reason: {last.reason}")
    return lines


@app.command("describe-producers")
def describe_producers(
    context: typer.Context,
    topic: Annotated[str, typer.Option("--topic", "-t", autocompletion=completion.topics)],
    partition: Annotated[int, typer.Option("--partition", "-p")],
) -> None:
    """The producers with state in a partition: last sequence, open transaction."""
    session = session_of(context)
    asked = TopicPartition(topic, partition)
    rows = [
        (
            s.producer_id,
            s.producer_epoch,
            s.coordinator_epoch,
            s.last_sequence,
            s.last_timestamp_ms,
            _none(session, s.current_transaction_start_offset),
        )
        for s in session.admin().describe_producers([asked])[asked].result()
    ]
    session.show(PRODUCERS, rows)


def _none(session: Session, value: int | None) -> object:
    """None as Kafka's tool prints it."""
    return "None" if value is None and not session.is_json else value


@app.command("find-hanging")
def find_hanging(
    context: typer.Context,
    max_transaction_timeout: Annotated[
        int, typer.Option(help="Minutes; ignore transactions that are younger.")
    ] = 0,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Default: all.", autocompletion=completion.topics),
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="As in 0,1.")] = None,
    watch: Watch = None,
) -> None:
    """What blocks readers now: who, since when, until when, and the command that ends it."""
    session = session_of(context)
    admin = session.admin()
    partitions = None
    if topic is not None:
        numbers = (
            parse_numbers("--partition", partition)
            if partition is not None
            else range(admin.cluster.topic(topic).partitions)
        )
        partitions = [TopicPartition(topic, number) for number in numbers]
    elif partition is not None:
        raise typer.BadParameter("--partition needs --topic.")

    def show() -> None:
        found = admin.find_hanging(
            partitions, max_transaction_timeout_ms=max_transaction_timeout * MINUTE_MS
        )
        entries = found.result()
        if session.is_json:
            session.show_json([{**one.transaction(), **one.blocking()} for one in entries])
            return
        session.show(HANGING, [tuple(one.transaction().values()) for one in entries])
        for problem in {id(one.problem): one.problem for one in entries}.values():
            session.say("")
            for line in problem_lines(session, problem):
                session.say(line)

    session.watch(watch, show)


@app.command()
def abort(
    context: typer.Context,
    transactional_id: Annotated[
        str | None, typer.Option(autocompletion=completion.transactional_ids)
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", autocompletion=completion.topics)
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p")] = None,
    producer_id: Annotated[int | None, typer.Option()] = None,
    producer_epoch: Annotated[int | None, typer.Option()] = None,
    reason: Reason = "aborted by an operator",
) -> None:
    """Abort the open transaction of an id, or of a producer in a partition; fence its owner.

    Give --transactional-id; or, for a transaction listed by find-hanging, --topic, --partition,
    --producer-id and --producer-epoch.
    """
    session = session_of(context)
    spec: str | AbortTransactionSpec
    hanging = (topic, partition, producer_id, producer_epoch)
    if transactional_id is not None and hanging == (None,) * 4:
        spec = transactional_id
        said = f"Fenced the owner of {transactional_id}; what it had open is aborted."
    elif transactional_id is None and topic is not None and None not in hanging:
        spec = AbortTransactionSpec(
            topic_partition=TopicPartition(topic, partition or 0),
            producer_id=producer_id or 0,
            producer_epoch=producer_epoch or 0,
        )
        said = (
            f"Aborted the transaction of producer {producer_id} epoch {producer_epoch} in "
            f"{topic}-{partition}."
        )
    else:
        raise typer.BadParameter(
            "Give --transactional-id, or all of --topic, --partition, --producer-id and "
            "--producer-epoch."
        )
    session.admin().abort_transaction(spec, reason=reason).result()
    session.say(said)


@app.command()
def fence(
    context: typer.Context,
    transactional_id: TransactionalId,
    reason: Reason = "fenced by an operator",
) -> None:
    """Fence the owner of an id, a producer or a Spark query."""
    session = session_of(context)
    fenced = session.admin().fence_producers([transactional_id], reason=reason)
    epoch = fenced[transactional_id].result().producer_epoch
    session.say(f"Fenced the owner of {transactional_id}; the producer epoch is now {epoch}.")


@app.command()
def delete(context: typer.Context, transactional_id: TransactionalId) -> None:
    """Delete an unreadable state row, by its id or file; the id can be used again.

    A transaction that it had decided but not yet published is lost, and so are offsets that no
    group's row has yet: the group reads those records again.
    """
    session = session_of(context)
    session.admin().delete_transactions([transactional_id])[transactional_id].result()
    session.say(f"Deleted the state row of {transactional_id}.")
