"""docs/cli.md has all commands, options and calls, and no others."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from tests.cli.runner import Command
from txnlog.admin import AdminClient
from txnlog.cli.app import app
from txnlog.settings.topic_configs import TOPIC_CONFIGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()


def shown() -> dict[str, Any]:
    """Every command by its full name."""
    return {
        f"{name} {child_name}".strip(): child
        for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
        for child_name, child in getattr(command, "commands", {"": command}).items()
    }


def commands() -> dict[str, set[str]]:
    """The options of every command."""
    return {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in shown().items()
    }


def test_every_command_is_in_the_docs() -> None:
    """Users do not find an undocumented command."""
    for name in commands():
        assert f"`{name} " in PAGE or f"`{name}`" in PAGE or f"txnlog {name}" in PAGE, name


def test_every_option_is_in_the_docs() -> None:
    """The page is the only list of them, but for `--help`."""
    named = set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-zA-Z.-]*", PAGE))
    missing = [
        f"{name} {parameter.opts[0]}"
        for name, command in shown().items()
        for parameter in command.params
        if parameter.opts[0].startswith("-") and not named & set(parameter.opts)
    ]
    assert not missing


def test_every_option_in_the_docs_exists() -> None:
    """A renamed option must not stay in the docs."""
    everywhere = {"--root", "--storage", "--output", "--version", "--install-completion"}
    known = everywhere.union(*commands().values())
    named = set(re.findall(r"(?<![\w-])--[a-z][a-zA-Z.-]*[a-z]", PAGE))
    # `groups describe` as in Kafka's scripts.
    assert named - known == {"--describe"}


def test_every_topic_configuration_and_default_is_in_the_docs() -> None:
    """The table agrees with `configs describe`."""
    for row in TOPIC_CONFIGS.values():
        assert f"| `{row.name}` | {row.default} |" in PAGE


def test_every_call_of_the_admin_client_is_in_the_docs() -> None:
    """And every call in the docs exists."""
    calls = {name for name, _ in inspect.getmembers(AdminClient, inspect.isfunction)}
    # `forked` is called by a fork, not by users.
    calls = {name for name in calls if not name.startswith("_")} - {"forked"}
    table = PAGE[PAGE.rindex("| topics |") :]
    assert set(re.findall(r"`(\w+)`", table)) == calls


def test_the_python_of_the_docs_runs(command: Command) -> None:
    """Users copy it."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    command.ok("produce", "-t", "t", "--transactional-id", "copy", input=b"x\n")
    exec(code.replace("/data/lake", command.root), {})


def test_the_script_and_its_extra_are_declared() -> None:
    """`pip install 'txnlog[cli]'` must install the command and its dependencies."""
    project = (ROOT / "pyproject.toml").read_text()
    assert '\n[project.scripts]\ntxnlog = "txnlog.cli.main:run"\n' in project
    [extra] = re.findall(r"^cli = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r'"([a-z]+)', extra)) == {"typer", "rich"}
