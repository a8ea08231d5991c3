"""Commands as flags, as in Kafka's scripts: `groups --reset-offsets` for `groups reset-offsets`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


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
