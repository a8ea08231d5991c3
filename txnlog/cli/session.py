"""Shared by all commands: global options, output, error reporting, parsing."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txnlog.cli.times import format_time, pause_s
from txnlog.errors import NonEmptyGroupError, TxnLogError
from txnlog.text import json_text, printable, shell_option

if TYPE_CHECKING:
    # The clients, pyarrow and rich are imported where they are used: --version, and completion
    # without names of the cluster, do without.
    from txnlog.admin import AdminClient
    from txnlog.settings.storage_options import StoreSettings

CLIENT_ID = "txnlog-cli"
UNREADABLE = "Unreadable"
PIPE_WIDTH = 100_000
SECOND_S = 0.5
"""Two signals that are closer are one."""
_RELATIVE = re.compile(r"[^/~:@\s][^:@]*", re.DOTALL)
_NEXT_PAIR = re.compile(r",\s*(?=[A-Za-z0-9._-]+=)")
CLEAR_SCREEN = "\x1b[H\x1b[2J\x1b[3J"

Watch = Annotated[
    float | None,
    typer.Option(
        help="Show it again every so many seconds, until Ctrl-C.",
        parser=pause_s(0.05),
        metavar="SECONDS",
    ),
]


class Output(str, Enum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


@dataclass(slots=True, repr=False)
class Session:
    """The global options; the settings of the store appear in no repr (R67)."""

    root: str | None = None
    storage: StoreSettings | None = None
    output: Output = Output.TEXT
    _admin: AdminClient | None = None
    _page: str = ""
    """What comes before the next output: it clears the screen of `watch`."""

    def config(self) -> dict[str, Any]:
        """Settings for a client. Raises BadParameter when there is no root."""
        if not self.root:
            raise typer.BadParameter("The cluster's root is missing: give --root or TXNLOG_ROOT.")
        config: dict[str, Any] = {"txnlog.root": self.root, "client.id": CLIENT_ID}
        config.update({f"storage.{key}": value for key, value in (self.storage or {}).items()})
        return config

    def admin(self) -> AdminClient:
        """The admin client of this command."""
        if self._admin is None:
            from txnlog.admin import AdminClient

            self._admin = AdminClient(self.config())
        return self._admin

    @property
    def is_json(self) -> bool:
        return self.output is Output.JSON

    def pasted(self, command: str) -> str:
        """A command `txnlog ...` for the root of this one, where the environment names another."""
        if not self.root or self.root == os.environ.get("TXNLOG_ROOT"):
            return command
        return f"txnlog {shell_option('--root', self.root)} {command.partition(' ')[2]}"

    def watch(self, every_s: float | None, show: Callable[[], None]) -> None:
        """Call `show` once, or again and again until Ctrl-C or SIGTERM.

        The first error ends the command, as a name may be wrong; later ones are shown.
        """
        if every_s is None:
            show()
            return
        is_first = True
        with stopped_by_signals() as stop:
            while not stop.is_set():
                self._page = self._header(every_s)
                try:
                    show()
                except typer.Exit:
                    pass
                except TxnLogError as error:
                    if is_first:
                        raise
                    self._begin_page()
                    fail(error, is_json=self.is_json)
                is_first = False
                sys.stdout.flush()
                stop.wait(every_s)

    def _header(self, every_s: float) -> str:
        if self.is_json:
            return ""
        line = f"Every {every_s:g} s: {format_time(time.time_ns() // 1_000_000)}\n\n"
        return CLEAR_SCREEN + line if sys.stdout.isatty() else line

    def _begin_page(self) -> None:
        typer.echo(self._page, nl=False)
        self._page = ""

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; in JSON a list with one object per row, with the columns as keys."""
        if self.is_json:
            self.show_json([dict(zip(columns, row, strict=True)) for row in rows])
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        self._begin_page()
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for column in table.columns:
            column.overflow = "fold"
        for row in rows:
            table.add_row(*(Text(printable(_cell(value))) for value in row))
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
        typer.echo(json_text(value))

    def finish(self, errors: Mapping[str, BaseException | None]) -> None:
        """After a listing: one line on stderr for each entry with an error, then exit code 1."""
        failed = {name: error for name, error in errors.items() if error is not None}
        for name, error in sorted(failed.items()):
            text = error.message if isinstance(error, TxnLogError) else str(error)
            warn(f"{name}: {text}")
        if failed:
            raise typer.Exit(1)

    def say(self, line: str) -> None:
        """A message about the result; not printed with JSON output."""
        if not self.is_json:
            self._begin_page()
            echo(line)


def echo(line: str) -> None:
    """Print a line for people: the only way for a text with an id or a name (D137)."""
    typer.echo(printable(line))


def warn(line: str) -> None:
    """Print a line for people on stderr."""
    typer.echo(f"txnlog: {printable(line)}", err=True)


def confirm(what: str) -> None:
    """Ask on a terminal whether to continue; raises Abort for no.

    Raises NonEmptyGroupError where nobody can answer, as in a script.
    """
    if not sys.stdin.isatty():
        raise NonEmptyGroupError(f"{what}. Nothing was deleted. Stop them first, or give --yes.")
    typer.confirm(f"{printable(what)}. Delete it?", abort=True, err=True)


def fail(error: TxnLogError, *, is_json: bool) -> None:
    """Print an error on one line of stderr, and one line for each of its `failures`."""
    failures: Any = error.context.get("failures", ())
    if is_json:
        report = _described(error)
        if failures:
            report["errors"] = [{"part": part, **_described(one)} for part, one in failures]
        typer.echo(json_text(report), err=True)
        return
    if not failures:
        warn(error.message)
        return
    warn(error.lines[0])
    for part, one in failures:
        warn(f"{part}: {one.message}")


def _described(error: TxnLogError) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": type(error).__name__, "code": error.code}
    store_code = error.context.get("store_code")
    if store_code is not None:
        fields["store_code"] = store_code
    return {**fields, "message": error.message}


def session_of(context: typer.Context) -> Session:
    """The session of a command."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def given_root(context: typer.Context) -> str | None:
    """The root of the line, or of TXNLOG_ROOT, for one session.

    A relative path on the line is one of the working directory, as people type it. In a variable it
    would be another folder after each `cd`; that, a `~`, and what may be a mistyped URL are left
    for the check of every client to refuse (D64).
    """
    main = context.find_root()
    root: str | None = main.params.get("root")
    source = main.get_parameter_source("root")
    is_typed = source is not None and source.name == "COMMANDLINE"
    return root if root is None or not is_typed else typed_root(root)


def typed_root(root: str) -> str:
    """A root that was typed: a relative path is one of the working directory."""
    return os.path.abspath(root) if _RELATIVE.fullmatch(root) else root


def parse_storage(given: Sequence[str]) -> StoreSettings | None:
    """key=value settings of the object store; None if there are none.

    Raises BadParameter, which does not contain the value: it may be a secret.
    """
    if not given:
        return None
    from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings

    settings = StoreSettings()
    for pair in given:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(
                "--storage takes key=value; one of its values has no key or =."
            )
        _add_once("--storage", settings, key.removeprefix(STORAGE_PREFIX), value)
    return settings


def parse_pairs(option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    """key=value arguments of an option. Raises BadParameter."""
    pairs = []
    for pair in given:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{option} takes key=value, not {pair!r}.")
        pairs.append((key, value))
    return pairs


def parse_configs(option: str, given: Sequence[str]) -> dict[str, str]:
    """name=value arguments, of which one may hold several as in Kafka's tools: a=1,b=[2,3].

    A comma that no name= follows belongs to the value. Raises BadParameter, also for a name
    with two values.
    """
    pairs = [pair for text in given for pair in _NEXT_PAIR.split(text)]
    found: dict[str, str] = {}
    for name, value in parse_pairs(option, pairs):
        is_list = value.startswith("[") and value.endswith("]")
        _add_once(option, found, name, value[1:-1] if is_list else value)
    return found


def _add_once(option: str, found: dict[str, str], name: str, value: str) -> None:
    if found.setdefault(name, value) != value:
        raise typer.BadParameter(f"{option}: {name} is given two values. Give one.")


def parse_numbers(option: str, value: str) -> list[int]:
    """Numbers separated by commas. Raises BadParameter."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers as in 0,1,2, not {value!r}.") from None


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a loop can end at a safe point.

    Another thread sets it: the handler may interrupt this one while it holds the event's lock.
    A second signal does what it does elsewhere: a write that waits for a full pipe sees no event.
    """
    stop = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGINT, signal.SIGTERM] if is_main else []
    heard_s: list[float] = []

    def handle(number: int, _: object) -> None:
        start_new_thread(stop.set, ())
        heard_s.append(time.monotonic())
        # One Ctrl-C may come twice: from the terminal, and passed on by a parent.
        if heard_s[-1] - heard_s[0] > SECOND_S:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def discard_output() -> None:
    """Stdout cannot be written: what Python flushes at exit is discarded, without an error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ends_with(code: int) -> Iterator[None]:
    """The exit code of a check, also where nobody reads its report to the end."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
    if code:
        raise typer.Exit(code)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return str(value)
