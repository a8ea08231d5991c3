"""`txnlog show`: the root in a browser, now and as of any time that the logs know."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.session import Session, echo, session_of, stopped_by_signals
from txnlog.cli.times import format_time, parse_since_ms
from txnlog.errors import ConfigError
from txnlog.settings.roots import redacted_url
from txnlog.text import printable

if TYPE_CHECKING:
    from txnlog.ui.pages import Renderer
    from txnlog.ui.reading import Reader

PACKAGES = ("starlette", "uvicorn", "jinja2", "markupsafe")
SPAN_MS = 15 * 60_000
"""What a file shows if nothing else is asked for."""
LOOKS_S = 0.5
OPEN_MS = 500
"""The first picture of a root with many topics does not wait for all of them."""

app = typer.Typer(add_completion=False)


@app.command()
def show(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 is any free one.", min=0, max=65_535)
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one file instead, which opens without server or network.",
            dir_okay=False,
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="With --html: the first moment, as in 2026-01-31T12:00:00, or 2h before now; "
            "default 15m.",
        ),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="With --html: the last moment; default now.")
    ] = None,
    with_values: Annotated[
        bool,
        typer.Option(
            "--with-values",
            help="With --html: also keys, values and headers of the newest records.",
        ),
    ] = False,
) -> None:
    """A page about the root: problems, timeline, topics, groups, queries, flow, records, upkeep.

    Only this machine's user who has the printed address sees it, and nothing can be written by it.
    Ctrl-C ends it.
    """
    session = session_of(context)
    if html is None and (first or last or with_values):
        raise typer.BadParameter("--from, --to and --with-values go with --html FILE.")
    try:
        if html is None:
            _serve(session, port, opens=not no_browser)
        else:
            _write(session, html, first, last, with_values=with_values)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in PACKAGES:
            raise
        raise ConfigError(
            f"txnlog show needs {package}, which is not installed. Run: pip install 'txnlog[ui]'."
        ) from None


def _serve(session: Session, port: int, *, opens: bool) -> None:
    from txnlog.ui.answers import Answers
    from txnlog.ui.server import PageServer, redirect_page

    answers = Answers(*_page_of(session, open_ms=OPEN_MS))
    with stopped_by_signals() as stop, PageServer(answers, port) as server:
        typer.echo(server.url)
        with _private_page(redirect_page(server.url)) as address:
            if opens:
                webbrowser.open(address)
            while server.is_serving and not stop.wait(LOOKS_S):
                pass


@contextmanager
def _private_page(text: str) -> Iterator[str]:
    """The address of a page that only this user can read: the arguments of a browser, all can."""
    with TemporaryDirectory(prefix="txnlog-show-") as folder:
        path = Path(folder, "open.html")
        _replace(path, text.encode())
        yield path.as_uri()


def _write(
    session: Session, path: Path, first: str | None, last: str | None, *, with_values: bool
) -> None:
    from txnlog.ui.export import exported, times_between
    from txnlog.ui.formats import size

    reader, renderer = _page_of(session)
    now = reader.moment(None)
    last_ms = now.at_ms if last is None else parse_since_ms("--to", last)
    first_ms = last_ms - SPAN_MS if first is None else parse_since_ms("--from", first)
    if first_ms > last_ms:
        raise typer.BadParameter(
            f"--from is {format_time(first_ms)}, after --to, {format_time(last_ms)}."
        )
    last_ms = min(max(last_ms, now.earliest_ms), now.at_ms)
    first_ms = min(max(first_ms, now.earliest_ms), last_ms)

    def told(done: int, total: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done} of {total} moments", nl=done == total, err=True)

    text = exported(
        reader,
        renderer,
        times_between(first_ms, last_ms),
        written_ms=time.time_ns() // 1_000_000,
        with_values=with_values,
        on_progress=told,
    )
    data = text.encode(errors="backslashreplace")
    _replace(path, data)
    echo(f"{path}: {size(len(data))}")


def _page_of(session: Session, *, open_ms: int | None = None) -> tuple[Reader, Renderer]:
    from txnlog.admin.moments import Moments
    from txnlog.ui.pages import Renderer
    from txnlog.ui.reading import Reader

    cluster = session.admin().cluster
    return Reader(Moments(cluster, open_ms=open_ms)), Renderer(redacted_url(str(session.root)))


def _replace(path: Path, data: bytes) -> None:
    """For its owner's eyes, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"{printable(str(path))} cannot be written: {error.strerror}.") from None
