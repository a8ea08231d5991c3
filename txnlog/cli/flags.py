"""Commands as flags, as in Kafka's scripts: `groups --reset-offsets` for `groups reset-offsets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

ONLY_KAFKA = {
    "--bootstrap-server": "there are no servers: give the cluster's root by --root or TXNLOG_ROOT.",
    "--broker-list": "there are no servers: give the cluster's root by --root or TXNLOG_ROOT.",
    "--command-config": "settings of the object store are given by --storage or TXNLOG_STORAGE.",
    "--replication-factor": "the store keeps the copies. Leave it out.",
    "--entity-name": "the topic is given by -t; a root has no name here.",
    "--property": "`txnlog consume` and `txnlog produce` take -K for keys; see their --help.",
}
"""Options of Kafka's scripts that no command has, and what to give instead."""


def refuse_options_of_kafka(args: Sequence[str]) -> None:
    """Raises BadParameter, which says what to give instead."""
    for arg in args:
        if arg == "--":
            break
        name = arg.partition("=")[0]
        if name in ONLY_KAFKA:
            raise typer.BadParameter(f"{name} has no counterpart here: {ONLY_KAFKA[name]}")


class KafkaFlags(TyperGroup):
    """A group of commands that may also be given as flags of the same names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {f"--{name}": name for name in self.commands}
        for at, arg in enumerate(args):
            if arg in self.commands or arg == "--":
                break
            if arg in flags:
                args = [flags[arg], *args[:at], *args[at + 1 :]]
                break
        return super().parse_args(ctx, args)
