"""Shared by all commands: global options, output, error reporting, parsing."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txnlog.admin import AdminClient
from txnlog.errors import TxnLogError
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings
from txnlog.settings.values import timestamp_ms

CLIENT_ID = "txnlog-cli"
UNREADABLE = "Unreadable"
PIPE_WIDTH = 100_000


class Output(str, Enum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


@dataclass(slots=True, repr=False)
class Session:
    """The global options; the settings of the store appear in no repr (R67)."""

    root: str | None = None
    storage: StoreSettings = field(default_factory=StoreSettings)
    output: Output = Output.TEXT

    def config(self) -> dict[str, Any]:
        """Settings for a client. Raises BadParameter when there is no root."""
        if not self.root:
            raise typer.BadParameter("The cluster's root is missing: give --root or TXNLOG_ROOT.")
        config: dict[str, Any] = {"txnlog.root": self.root, "client.id": CLIENT_ID}
        config.update({STORAGE_PREFIX + key: value for key, value in self.storage.items()})
        return config

    def admin(self) -> AdminClient:
        """An admin client for the cluster."""
        return AdminClient(self.config())

    @property
    def is_json(self) -> bool:
        return self.output is Output.JSON

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; in JSON a list with one object per row, with the columns as keys."""
        if self.is_json:
            self.show_json([dict(zip(columns, row, strict=True)) for row in rows])
            return
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for column in table.columns:
            column.overflow = "fold"
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row))
        console = Console(file=sys.stdout)
        if console.is_terminal:
            console.print(table)
            return
        # A pipe has no width: print lines of any length without wrapping.
        console = Console(file=sys.stdout, width=PIPE_WIDTH)
        with console.capture() as printed:
            console.print(table)
        for line in printed.get().splitlines():
            typer.echo(line.rstrip())

    def show_json(self, value: object) -> None:
        """One JSON document on a line."""
        typer.echo(json.dumps(value, ensure_ascii=False))

    def finish(self, errors: Mapping[str, BaseException | None]) -> None:
        """After a listing: one line on stderr for each entry with an error, then exit code 1."""
        failed = {name: error for name, error in errors.items() if error is not None}
        for name, error in sorted(failed.items()):
            typer.echo(f"txnlog: {name}: {' '.join(str(error).split())}", err=True)
        if failed:
            raise typer.Exit(1)

    def say(self, line: str) -> None:
        """A message about the result; not printed with JSON output."""
        if not self.is_json:
            typer.echo(line)


def fail(error: TxnLogError, *, is_json: bool) -> None:
    """Print an error on one line of stderr, and one line for each of its `failures`."""
    failures: Any = error.context.get("failures", ())
    if is_json:
        report = _described(error)
        if failures:
            report["errors"] = [{"part": part, **_described(one)} for part, one in failures]
        typer.echo(json.dumps(report), err=True)
        return
    if not failures:
        typer.echo(f"txnlog: {_on_one_line(error.message)}", err=True)
        return
    typer.echo(f"txnlog: {error.message.splitlines()[0]}", err=True)
    for part, one in failures:
        typer.echo(f"txnlog: {part}: {_on_one_line(one.message)}", err=True)


def _described(error: TxnLogError) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": type(error).__name__, "code": error.code}
    store_code = error.context.get("store_code")
    if store_code is not None:
        fields["store_code"] = store_code
    return {**fields, "message": _on_one_line(error.message)}


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def session_of(context: typer.Context) -> Session:
    """The session of a command."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def parse_storage(given: Sequence[str]) -> StoreSettings:
    """key=value settings of the object store.

    Raises BadParameter, which does not contain the value: it may be a secret.
    """
    settings = StoreSettings()
    for pair in given:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(
                "--storage takes key=value; one of its values has no key or =."
            )
        settings[key.removeprefix(STORAGE_PREFIX)] = value
    return settings


def parse_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """key=value arguments of an option. Raises BadParameter."""
    pairs = {}
    for pair in given:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{option} takes key=value, not {pair!r}.")
        pairs[key] = value
    return pairs


def parse_time_ms(option: str, value: str) -> int:
    """Milliseconds since 1970, or an ISO 8601 time (UTC by default)."""
    if value.isascii() and value.isdigit():
        return timestamp_ms(option, value)
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise typer.BadParameter(
            f"{option} takes a time as in 2026-01-31T12:00:00, or ms since 1970, not {value!r}."
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return round(at.timestamp() * 1000)


def format_time(time_ms: int) -> str:
    """A time as ISO 8601, UTC; "-" if it is unknown (negative)."""
    if time_ms < 0:
        return "-"
    try:
        at = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Timestamps may be any 64-bit number; Python's datetime ends at the year 9999.
        return f"{time_ms}ms"
    return at.isoformat("T", "milliseconds").replace("+00:00", "Z")


def parse_numbers(option: str, value: str) -> list[int]:
    """Numbers separated by commas. Raises BadParameter."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers as in 0,1,2, not {value!r}.") from None


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a loop can end at a safe point."""
    stop = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGINT, signal.SIGTERM] if is_main else []
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pipe_closed() -> None:
    """The reader of the pipe has exited: discard what Python flushes at exit, without an error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return str(value)
