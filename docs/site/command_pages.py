"""Every command of `txnlog` with its options, as `txnlog --help` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from txnlog.cli.app import app

HEAD = """# Commands and options

From `txnlog --help` and `txnlog <command> --help`. [cli.md](../cli.md) explains the commands.
"""


def page() -> str:
    """Markdown of all commands."""
    return "\n".join([HEAD, *_sections(get_command(app), "txnlog")])


def _sections(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    yield f"## `{name}`\n"
    yield f"{(command.help or '').strip()}\n"
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    rows = [_row(parameter) for parameter in shown]
    if rows:
        yield "| option | default | meaning |\n|---|---|---|"
        yield "\n".join(rows) + "\n"
    for child_name, child in sorted(children.items()):
        if not child.hidden:
            yield from _sections(child, f"{name} {child_name}")


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.name.upper()]
    default = "required" if parameter.required else _default(parameter.default)
    meaning = getattr(parameter, "help", "") or ""
    cells = (", ".join(f"`{name}`" for name in names), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    value = getattr(value, "value", value)
    return "" if value in (None, False, (), [], "") or callable(value) else f"`{value}`"
