"""`txnlog produce`: write the lines of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import typer

from txnlog.cli import completion
from txnlog.cli.record_lines import from_json
from txnlog.cli.session import Session, parse_pairs, session_of, stopped_by_signals, warn
from txnlog.errors import InvalidRecordError, TxnLogError
from txnlog.messages import Message
from txnlog.producer import Producer
from txnlog.text import shell_option

app = typer.Typer(add_completion=False)


class Tally:
    """Counts sent and failed records, and keeps the first error."""

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.error: Exception | None = None

    def on_delivery(self, error: Exception | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self.error = self.error or error

    def check(self) -> None:
        """Raises TxnLogError when a record was not written."""
        if self.error is not None:
            raise TxnLogError(
                f"{self.failed} of {self.sent} records were not written: {self.error}"
            )


@app.command()
def produce(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Of every record; with --json, if it is not given, each line's own.",
            autocompletion=completion.topics,
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Separates key and value; default: no keys."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="name=value, for every record; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", help="Of every record, -1: by key; default: a JSON line's, or -1."
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Read lines in the format of `consume --output json`.")
    ] = False,
    transactional_id: Annotated[
        str | None, typer.Option(help="Write all of stdin as one transaction, or nothing.")
    ] = None,
) -> None:
    """Write the lines of stdin as records. All are written when the command exits with 0."""
    session = session_of(context)
    if topic is None and not json_lines:
        raise typer.BadParameter("Give --topic.")
    headers = [(k, v.encode()) for k, v in parse_pairs("--header", header or ())]
    tally = Tally()
    config = {**session.config(), "on_delivery": tally.on_delivery}
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
    given = {"topic": topic, "partition": partition}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with Producer(config) as producer:
        lines = _records(sys.stdin.buffer, key_separator, json_lines)
        if transactional_id is None:
            try:
                _send(producer, lines, chosen, headers, tally)
            finally:
                # Records before an invalid line or Ctrl-C are written, too.
                producer.flush()
        else:
            producer.init_transactions()
            with producer.transaction():
                _send(producer, lines, chosen, headers, tally)
                _commit(session, producer, transactional_id)
    tally.check()


def _send(
    producer: Producer,
    records: Iterator[dict[str, Any]],
    chosen: dict[str, Any],
    headers: list[tuple[str, bytes]],
    tally: Tally,
) -> None:
    for record in records:
        wanted = {**record, **chosen, "headers": [*record.get("headers", ()), *headers]}
        if "topic" not in wanted:
            raise InvalidRecordError(f"Record {tally.sent + 1} has no topic; give --topic.")
        try:
            producer.produce(**wanted)
        except TypeError as error:
            raise InvalidRecordError(f"Record {tally.sent + 1}: {error}") from None
        tally.sent += 1
        producer.poll(0)


def _commit(session: Session, producer: Producer, transactional_id: str) -> None:
    """Commit; the first Ctrl-C or SIGTERM waits for it: all records are written by then."""
    try:
        with stopped_by_signals():
            producer.commit_transaction()
    except BaseException as error:
        if not isinstance(error, TxnLogError) or error.retriable:
            named = shell_option("--transactional-id", transactional_id)
            look = session.pasted(f"txnlog transactions describe {named}")
            warn(f"The transaction may be committed. Before you repeat the command: {look}")
        raise


def _records(
    stdin: BinaryIO, key_separator: str | None, json_lines: bool
) -> Iterator[dict[str, Any]]:
    separator = None if key_separator is None else _unescaped(key_separator)
    for number, raw in enumerate(stdin, start=1):
        line = raw[:-1] if raw.endswith(b"\n") else raw
        if json_lines:
            if line.strip():
                yield from_json(line, number)
        elif separator is None:
            yield {"value": line}
        else:
            key, found, value = line.partition(separator)
            if not found:
                raise InvalidRecordError(
                    f"Line {number} has no key separator {separator.decode()!r}."
                )
            yield {"key": key, "value": value}


def _unescaped(separator: str) -> bytes:
    r"""The separator, with \t as a tab. Raises BadParameter when it is empty."""
    if not separator:
        raise typer.BadParameter("--key-separator is empty.")
    return separator.replace("\\t", "\t").encode()
