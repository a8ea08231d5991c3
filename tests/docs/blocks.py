"""The code blocks of the documentation, and how they run.

A ```console block is a session: lines after `$ ` are commands (a line that ends in a backslash, or
an open here-document, continues), the lines below are what they print. `...` stands for any text
within a line, and alone on a line for any number of lines. A ```python block with a title is a
file, one without runs as it is. The comment `<!-- not run: why -->` above a block exempts it. Below
`<!-- output of one run -->` words with a digit (numbers, times, ids) stand for any others.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
RUN = ("python", "console", "sql")
WAIT_S = 300

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n+)?"
    r"(?:^(?P<varies><!-- output of one run -->)\n+)?"
    r"^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# bash says so of a background process, at some later command.
_KILLED = re.compile(r"bash: line \d+: +\d+ (?:Killed|Terminated) ")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `reason` says why it is not run, `title` is the file it makes."""

    page: str
    line: int
    language: str
    title: str | None
    reason: str | None
    varies: bool
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and all pages below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """All of a page, in order."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(
            page=name,
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            title=title[1] if (title := _TITLE.search(found["info"])) else None,
            reason=found["reason"],
            varies=found["varies"] is not None,
            text=found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]


def steps(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a session, with the lines that it should print."""
    command: list[str] = []
    expected: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), expected
            command, expected = [line[2:]], []
        elif command and _continues(command):
            command.append(line)
        else:
            assert command, f"{block.place} has output before its first command"
            # The site takes "# " for a prompt of root, and copies the line as a command.
            assert not line.startswith("# "), f"{block.place}: write ... for {line!r}"
            expected.append(line)
    yield "\n".join(command), expected


def _continues(command: list[str]) -> bool:
    """Whether the command ends on a later line."""
    if command[-1].endswith("\\"):
        return True
    end = re.search(r"<<'?(\w+)'?", command[0])
    return end is not None and end[1] not in command[1:]


def agrees(expected: list[str], printed: list[str], *, varies: bool = False) -> bool:
    """Whether the output is what a page shows."""
    if varies:
        expected = [re.sub(r"\S*\d\S*", "...", line) for line in expected]
    lines = [r"(?:.*\n)*" if line.strip() == "..." else _pattern(line) + "\n" for line in expected]
    output = "".join(f"{line.rstrip()}\n" for line in printed)
    return re.fullmatch("".join(lines), output) is not None


def _pattern(line: str) -> str:
    """A line as a regular expression: `...` is any text, and any blanks are equal."""
    words = re.sub(r" +", " ", line.rstrip()).split("...")
    return ".*".join(re.escape(word).replace(r"\ ", " +") for word in words)


class Shell:
    """One bash with the commands `txnlog` and `python` of this checkout, in a folder of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment or checkout_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def run(self, command: str) -> list[str]:
        """Its output; what it leaves in the background goes on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = "--- end of the command ---"
        # A hang would wait for ever: the shell's whole group ends, and reading with it.
        alarm = threading.Timer(WAIT_S, os.killpg, (self._process.pid, signal.SIGKILL))
        alarm.start()
        try:
            self._process.stdin.write(f"{command}\necho; echo '{end}'\n")
            self._process.stdin.flush()
            lines = []
            for line in self._process.stdout:
                if line.rstrip("\n") == end:
                    return lines[:-1] if lines and not lines[-1] else lines
                if not _KILLED.match(line):
                    lines.append(line.rstrip("\n"))
        finally:
            alarm.cancel()
        raise AssertionError(f"{command!r} ended the shell:\n" + "\n".join(lines))


def checkout_environment(folder: Path) -> dict[str, str]:
    """Of a shell in which the checkout is what `pip install` has installed."""
    commands = folder / ".commands"
    commands.mkdir()
    for name, arguments in (("txnlog", "-m txnlog.cli.main"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TXNLOG_", "PYTHON", "SPARK_", "PYSPARK_"))
    }
    return {
        **inherited,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(ROOT / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "200",
    }


def play(shell: Shell, folder: Path, found: list[Block]) -> None:
    """Make the files, run the commands, and compare what they print."""
    for block in found:
        if block.reason is not None:
            continue
        if block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.language == "console":
            for command, expected in steps(block):
                printed = shell.run(command)
                assert agrees(expected, printed, varies=block.varies), (
                    f"{block.place}: {command}\nprinted\n" + "\n".join(printed)
                )
