"""The root command: global options, one-line errors, and the subcommands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from txnlog.cli import configs, consume, dump, groups, housekeeping, offsets, produce, topics
from txnlog.cli import spark_conf as spark_conf_command
from txnlog.cli import transactions as transactions_commands
from txnlog.cli import upgrade as upgrade_command
from txnlog.cli import verify as verify_command
from txnlog.cli.session import Output, Session, fail, parse_storage, pipe_closed
from txnlog.errors import TxnLogError
from txnlog.process.version import VERSION

GLOBAL = ("--root", "--storage", "--output")


class RootCommand(TyperGroup):
    """Accepts the global options anywhere on the line, and prints errors on one line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoisted(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TxnLogError as error:
            fail(error, is_json=isinstance(ctx.obj, Session) and ctx.obj.is_json)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            pipe_closed()
            raise typer.Exit(0) from None


def hoisted(args: list[str]) -> list[str]:
    """The arguments with the global options moved to the front."""
    front: list[str] = []
    rest: list[str] = []
    left = iter(args)
    for arg in left:
        if arg == "--":
            rest += [arg, *left]
        elif arg in GLOBAL:
            front += [arg, *([value] if (value := next(left, None)) is not None else [])]
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
        print(f"txnlog {VERSION}")
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
    context.obj = Session(root=root, storage=parse_storage(storage or ()), output=output)


app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("offsets")(offsets.offsets)
app.add_typer(transactions_commands.app, name="transactions")
app.command("dump")(dump.dump)
app.command("housekeeping")(housekeeping.housekeeping)
app.command("verify")(verify_command.verify)
app.command("spark-conf")(spark_conf_command.spark_conf)
app.command("upgrade")(upgrade_command.upgrade)
