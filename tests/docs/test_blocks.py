"""Every code block of the documentation is run by a test, or says why not."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from shutil import which

import click
import pytest
import yaml
from typer.main import get_command

from tests.docs import test_pages, test_spark_pages, test_tutorial
from tests.docs.blocks import ROOT, RUN, Block, Shell, blocks, pages
from txnlog.cli.app import app

# Pages whose blocks another test runs, as a pattern, and that test.
ELSEWHERE = {
    "docs/cli.md": "tests/cli/test_docs.py",
    "docs/confluent-kafka.md": "tests/compat/test_confluent_kafka.py",
    "docs/howto/errors.md": "tests/docs/test_catch_block.py",
    "docs/compare/*.md": "tests/compare/test_pages.py",
    "docs/howto/pipelines.md": "tests/spark/test_declarative_pipelines.py",
    "docs/recipes*.md": "tests/spark/test_recipes.py",
}
RUN_HERE = {
    "docs/tutorial.md",
    *(f"docs/{name}" for name in test_pages.SHELLS),
    *(f"docs/{name}" for name in test_pages.PLAIN),
    *test_spark_pages.PAGES,
}


def test_every_block_that_can_run_is_run() -> None:
    """A new page with code needs a test, or a reason on the block."""
    assert Path(test_tutorial.PAGE) in pages()
    wrong = [
        block.place
        for page in pages()
        for block in blocks(page)
        if block.language in RUN
        and block.reason is None
        and block.page not in RUN_HERE
        and not runs_elsewhere(block.page)
    ]
    assert not wrong, "run them in a test, and name it in ELSEWHERE:\n" + "\n".join(wrong)


def runs_elsewhere(page: str) -> bool:
    """Whether a test that exists is named for the page."""
    return any(
        fnmatch(page, pattern) and (ROOT / test).exists() for pattern, test in ELSEWHERE.items()
    )


def test_every_block_has_a_language() -> None:
    """It decides how the block is shown and checked."""
    wrong = [block.place for page in pages() for block in blocks(page) if not block.language]
    assert not wrong, "\n".join(wrong)


def test_blocks_of_data_can_be_read() -> None:
    """Users copy them into files, and learn of a wrong indent from a cluster."""
    for page in pages():
        for block in blocks(page):
            if block.language == "yaml":
                assert list(yaml.safe_load_all(block.text)), block.place
            elif block.language == "ini":
                parser = configparser.ConfigParser(strict=False, interpolation=None)
                parser.read_string(block.text)
                assert parser.sections(), block.place


def command_lines() -> list[tuple[str, list[str]]]:
    """Every line of a document that starts with `txnlog`, indented or in a session."""
    found = []
    for page in pages():
        for line in page.read_text().splitlines():
            start = re.match(r"(?: {4}|\$ )(?:[^|]*\| )?(txnlog .*)", line)
            if start:
                words = shlex.split(start[1], comments=True)
                ends = [words.index(word) for word in ("|", ">", "&&", ";") if word in words]
                found.append((page.name, words[1 : min([*ends, len(words)])]))
    return found


@pytest.mark.parametrize("words", [pytest.param(w, id=" ".join(w)) for _, w in command_lines()])
def test_command_of_a_document_is_valid(words: list[str]) -> None:
    """Also where it is not run: a renamed option would be found by a user."""
    parse(words)


def parse(words: list[str]) -> None:
    """Raises click's error for an unknown command or option; runs nothing."""
    command: click.Command = get_command(app)  # type: ignore[assignment]
    known = {name for each in command.params for name in each.opts}
    values = [word for word in words if word.split("=")[0] not in known]
    if words[0] in ("--help", "--version", "--install-completion"):
        return
    # As in Kafka's scripts, and global options anywhere: the command itself sorts them out.
    names = [word.lstrip("-") for word in values]
    assert names[0] in command.commands, words  # type: ignore[attr-defined]
    for name in (word.split("=")[0] for word in words if word.startswith("--")):
        inner = command.commands[names[0]]  # type: ignore[attr-defined]
        options = {o for c in (inner, *getattr(inner, "commands", {}).values()) for p in c.params
                   for o in (*p.opts, *p.secondary_opts)}  # fmt: skip
        children = {f"--{child}" for child in getattr(inner, "commands", {})}
        assert name in options | known | children | {"--help"}, (name, words)


def unit() -> Block:
    """The systemd unit."""
    [found] = [b for b in blocks(ROOT / "docs/howto/housekeeping.md") if b.language == "ini"]
    return found


def test_systemd_unit_is_valid_and_starts_housekeeping(tmp_path: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit().text)
    program, *words = shlex.split(parser["Service"]["ExecStart"])
    assert Path(program).name == "txnlog"
    parse(words)
    if which("systemd-analyze"):
        file = tmp_path / "txnlog-housekeeping.service"
        file.write_text(unit().text.replace(program, "/bin/true").replace("User=txnlog\n", ""))
        run = subprocess.run(
            ["systemd-analyze", "verify", str(file)], capture_output=True, text=True
        )
        assert str(file) not in run.stderr, run.stderr


def test_line_for_cron_runs(tmp_path: Path) -> None:
    """cron passes everything after the five fields to sh."""
    [line] = [b for b in blocks(ROOT / "docs/howto/housekeeping.md") if b.title == "crontab"]
    command = line.text.split(maxsplit=5)[5].strip()
    command = command.replace("/data/lake", str(tmp_path / "lake"))
    command = command.replace("/tmp/txnlog-housekeeping.lock", str(tmp_path / "lock"))
    command = command.replace("/opt/txnlog/env/bin/txnlog", "txnlog")
    with Shell(tmp_path) as shell:
        shell.run(f"TXNLOG_ROOT={tmp_path}/lake txnlog topics create -t t")
        assert shell.run(command)[0].split() == ["DUTY", "COUNT"]


def test_manifest_for_kubernetes_starts_housekeeping() -> None:
    [block] = [b for b in blocks(ROOT / "docs/howto/housekeeping.md") if b.language == "yaml"]
    manifest = yaml.safe_load(block.text)
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    assert program == "txnlog"
    parse(words)
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"] == labels
