"""A golden trace of tests/interaction/traces as a page: a diagram of its writes, then each step."""

from __future__ import annotations

import re
from pathlib import Path

_RULE = re.compile(r"\bR(\d+)\b")
_WRITE = r"(?P<what>.+) to (?P<table>\S+)"
_WRITES = re.compile(rf"^  (?P<who>\w) writes {_WRITE}, version (?P<version>\d+)$")
_ENDS = re.compile(rf"^  (?P<who>\w) (?P<how>dies|stops)(?: before it writes {_WRITE})?$")
_LOSES = re.compile(
    rf"^  (?P<who>\w) finds another's version (?P<version>\d+) where {_WRITE} was to be$"
)
_RAISES = re.compile(r"^  (?P<who>\w) gets (?P<error>\w+): ")


def page(trace: Path) -> str:
    """Markdown of one trace."""
    lines = trace.read_text().splitlines()
    intro = [line[1:].strip() for line in lines if line.startswith("#")]
    steps = _steps([line for line in lines if not line.startswith("#")])
    title = trace.stem.replace("_", " ").capitalize()
    parts = [
        f"# {title}",
        " ".join(_RULE.sub(r"[R\1](../../../docs/rules.md)", line) for line in intro),
        "```mermaid\n" + "\n".join(_diagram(steps)) + "\n```",
        "What the processes do, and the state on disk after each step. [How to read it]"
        "(../../../docs/explanation/traces.md).",
    ]
    for number, (command, result) in enumerate(steps, 1):
        parts += [f"## {number}. `{command}`", "```text\n" + "\n".join(result).rstrip() + "\n```"]
    return "\n\n".join(parts) + "\n"


def _steps(lines: list[str]) -> list[tuple[str, list[str]]]:
    steps: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("> "):
            steps.append((line[2:], []))
        elif steps:
            steps[-1][1].append(line)
    return steps


def _diagram(steps: list[tuple[str, list[str]]]) -> list[str]:
    """Each process's writes to each table, in their order."""
    arrows: list[str] = []
    tables: list[str] = []
    people: list[str] = []
    for command, result in steps:
        for line in result:
            for pattern, draw in _DRAWN:
                if found := pattern.match(line):
                    parts = found.groupdict()
                    if parts["who"] not in people:
                        people.append(parts["who"])
                    if parts.get("table") and parts["table"] not in tables:
                        tables.append(parts["table"])
                    arrows.append(draw(parts, {table: f"t{i}" for i, table in enumerate(tables)}))
        if command.startswith("wait "):
            arrows.append(f"Note over {people[0]}: {command.split()[1]} s pass")
    head = [f"participant {who} as process {who}" for who in people]
    head += [f"participant t{number} as {_broken(table)}" for number, table in enumerate(tables)]
    return ["sequenceDiagram", *(f"    {line}" for line in [*head, *arrows])]


def _broken(table: str) -> str:
    """Its name in two lines, where it is long."""
    return re.sub(r"(?<=[a-z])_", "<br/>_", table)


def _write(parts: dict[str, str], ids: dict[str, str]) -> str:
    return f"{parts['who']}->>{ids[parts['table']]}: {parts['what']}, version {parts['version']}"


def _lost(parts: dict[str, str], ids: dict[str, str]) -> str:
    what = f"{parts['what']}: version {parts['version']} is there already"
    return f"{parts['who']}--x{ids[parts['table']]}: {what}"


def _end(parts: dict[str, str], ids: dict[str, str]) -> str:
    how = parts["how"]
    if parts["table"]:
        # Words that a narrow note can break.
        how += f" before {parts['what']} to {parts['table'].strip('_')}".replace("_", " ")
    return f"Note over {parts['who']}: {how}"


def _raised(parts: dict[str, str], ids: dict[str, str]) -> str:
    return f"Note over {parts['who']}: {parts['error']}"


_DRAWN = ((_WRITES, _write), (_LOSES, _lost), (_ENDS, _end), (_RAISES, _raised))
