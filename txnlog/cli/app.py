"""The root command: global options, one-line errors, and the subcommands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from txnlog.cli.flags import refuse_options_of_kafka
from txnlog.cli.session import (
    Output,
    Session,
    discard_output,
    fail,
    given_root,
    parse_storage,
    warn,
)
from txnlog.errors import TxnLogError
from txnlog.process.version import VERSION
from txnlog.text import printable

_UsageError: Any = typer.BadParameter.__base__
GLOBAL = ("--root", "--storage", "--output")
COMMANDS = (
    "topics", "tables", "configs", "produce", "consume", "groups", "offsets", "transactions",
    "dump", "snapshots", "backup", "clone", "housekeeping", "metrics", "show", "top", "why",
    "verify", "repair", "spark-conf", "unpack-pyspark",
)  # fmt: skip


class Commands(Mapping[str, Any]):
    """The commands by name. A command's module is imported when the command is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        module = import_module(f"txnlog.cli.{name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class RootCommand(TyperGroup):
    """Accepts the global options anywhere on the line, and prints errors on one line each."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            refuse_options_of_kafka(args)
        return super().parse_args(ctx, hoisted(args))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _printable_usage(), _written():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printable_usage(), _written():
                return super().invoke(ctx)
        except TxnLogError as error:
            fail(error, is_json=isinstance(ctx.obj, Session) and ctx.obj.is_json)
            raise typer.Exit(1) from None


@contextmanager
def _written() -> Iterator[None]:
    """Ends the command where a stream fails: with 0 if the reader of a pipe has exited."""
    try:
        yield
    except (OSError, SystemExit) as error:
        # rich makes a SystemExit of a closed pipe.
        failed = error if isinstance(error, OSError) else error.__context__
        if not isinstance(failed, OSError) or failed.filename is not None:
            raise
        discard_output()
        if isinstance(failed, BrokenPipeError):
            raise typer.Exit(0) from None
        warn(f"The output cannot be written: {failed.strerror or failed}.")
        raise typer.Exit(1) from None


@contextmanager
def _printable_usage() -> Iterator[None]:
    """Usage errors repeat what the command line says; some are a help text of many lines."""
    try:
        yield
    except _UsageError as error:
        error.message = "\n".join(map(printable, error.message.split("\n")))
        raise


def hoisted(args: list[str]) -> list[str]:
    """The arguments with the global options moved to the front."""
    front: list[str] = []
    rest: list[str] = []
    left = iter(args)
    for arg in left:
        if arg == "--":
            rest += [arg, *left]
        elif arg in GLOBAL:
            value = next(left, None)
            if value is None:
                return [arg]  # which the parser says; else it took the command for the value
            front += [arg, value]
        elif arg.partition("=")[0] in GLOBAL:
            front.append(arg)
        else:
            rest.append(arg)
    return front + rest


app = typer.Typer(
    cls=RootCommand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"txnlog {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    root: Annotated[
        str | None,
        typer.Option(help="Root folder or url of the cluster.", envvar="TXNLOG_ROOT"),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting of the object store, key=value; may be repeated. Use the environment "
            "variable to keep secrets off the command line.",
            envvar="TXNLOG_STORAGE",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option(help="Tables for people, or JSON for programs.")
    ] = Output.TEXT,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Kafka's transactions without brokers: topics, transactions and groups on Delta tables."""
    context.obj = Session(
        root=given_root(context), storage=parse_storage(storage or ()), output=output
    )
