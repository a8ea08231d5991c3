"""What Tab suggests: names of the cluster, and nothing, silently, where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.runner import ENVIRONMENT, PROJECT, Command
from txnlog import Consumer, Producer, TopicPartition
from txnlog.cli.app import app

HOSTILE = (
    "$(touch PWNED)", "\\$(touch PWNED)", "`touch PWNED`", "a;touch PWNED;", "a\ntouch PWNED",
    "a b", "--root=/tmp", "--yes", "-h", "~root", "*", "a'b", 'a"b', "a:b", "=ls", "a\x1b[2J",
    "a|b", "é", "${PATH}", "%self", "{a,b}", "a#b", "!!", "(a)", "<(touch PWNED)", ":::x", "a\tb",
)  # fmt: skip
SAFE = ["9", "Team.app_1-b", "_x"]


def suggested(line: str, root: str = "") -> list[str]:
    """The suggestions of bash's protocol for a line, whose last word is being typed."""
    env = {
        **ENVIRONMENT,
        "TXNLOG_ROOT": root,
        "_TXNLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    result = CliRunner().invoke(app, env=env, prog_name="txnlog")
    assert result.stderr == ""
    return [word for word in result.stdout.split("\n") if word]


def test_names_of_the_cluster_are_suggested(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics, groups and transactional ids, by the root of the environment or of the line."""
    for name in ("orders", "orders-by-day", "stock"):
        command.ok("topics", "create", "-t", name, "--partitions", "1")
    command.ok("produce", "-t", "orders", "--transactional-id", "shop", input=b"1\n")
    command.ok("consume", "-t", "orders", "-g", "audit", "--from-beginning", "-n", "1")
    root = command.root
    for line in ("topics describe -t ord", "consume --topic ord", "topics --describe -t ord"):
        assert suggested(f"txnlog {line}", root) == ["orders", "orders-by-day"], line
    assert suggested(f"txnlog --root {root} configs alter -t s") == ["stock"]
    assert suggested(f"txnlog topics delete --root {root} -t s") == ["stock"]
    assert suggested("txnlog groups describe -g ", root) == ["audit"]
    assert suggested("txnlog groups --describe --group a", root) == ["audit"]
    assert suggested("txnlog transactions abort --transactional-id s", root) == ["shop"]
    assert suggested("txnlog dump --transactional-id ", root) == ["shop"]
    monkeypatch.chdir(Path(root).parent)
    assert suggested("txnlog --root lake dump --transactional-id ") == ["shop"]


def test_names_that_need_no_cluster_are_suggested() -> None:
    """Commands, options, configurations, states."""
    assert suggested("txnlog topi") == ["topics"]
    assert suggested("txnlog groups reset-offsets --by") == ["--by-duration"]
    assert suggested("txnlog configs alter -t t --delete-config retention.b") == ["retention.bytes"]
    assert suggested("txnlog topics create --config retention.b") == ["retention.bytes="]
    assert suggested("txnlog transactions list --state On") == ["Ongoing"]
    assert suggested("txnlog consume --isolation-level read_u") == ["read_uncommitted"]


def test_without_a_readable_cluster_nothing_is_suggested_and_nothing_created(
    tmp_path: Path,
) -> None:
    """An error in the middle of a line that is being typed would destroy the line."""
    assert suggested("txnlog topics describe -t ") == []
    assert suggested("txnlog topics describe -t ", str(tmp_path / "none")) == []
    assert suggested("txnlog --storage secret topics describe -t ", str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def hostile(command: Command) -> Command:
    """A cluster with ids that a shell would evaluate, split or expand, and three plain ones."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    Path(command.root, "a;b", "_delta_log").mkdir(parents=True)
    for name in (*HOSTILE, *SAFE):
        config = {"txnlog.root": command.root}
        with Consumer({**config, "group.id": name, "client.id": name}) as consumer:
            offset = TopicPartition("t", 0, 0)
            consumer.commit(offsets=[offset], asynchronous=False)
        with Producer({**config, "transactional.id": name}) as producer:
            producer.init_transactions()
    return command


def test_only_ids_of_safe_characters_are_suggested(hostile: Command) -> None:
    """zsh evaluates a suggestion at Tab, bash puts it on the line without quotes."""
    for line in ("groups describe -g ", "groups delete -g ", "consume -t t -g "):
        assert suggested(f"txnlog {line}", hostile.root) == SAFE
    for line in ("dump --transactional-id ", "transactions fence --transactional-id "):
        assert suggested(f"txnlog {line}", hostile.root) == SAFE
    assert suggested("txnlog topics describe -t ", hostile.root) == ["t"]


def test_every_option_that_suggests_names_of_the_cluster_filters_them(hostile: Command) -> None:
    """A new option would bring its own function."""
    from txnlog.cli.app import COMMANDS, Commands

    seen = 0
    for name in COMMANDS:
        command = Commands()[name]
        for path, each in {**getattr(command, "commands", {}), "": command}.items():
            for option in each.params:
                flags = [flag for flag in option.opts if flag.startswith("--")]
                line = " ".join(filter(None, ["txnlog", name, path, *flags[:1]]))
                found = suggested(f"{line} ", hostile.root) if flags else []
                assert not set(found) & {*HOSTILE, "a;b"}, line
                seen += found == SAFE
    assert seen >= 10


def test_bash_puts_nothing_on_the_line_that_it_would_run(hostile: Command, tmp_path: Path) -> None:
    """The whole way: the script of --install-completion, in a real bash."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "txnlog"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={PROJECT} exec {sys.executable} -m txnlog.cli.main "$@"\n'
    )
    program.chmod(0o755)
    typed = (
        "source <(_TXNLOG_COMPLETE=source_bash txnlog); "
        "COMP_WORDS=(txnlog groups describe -g ''); COMP_CWORD=4; _txnlog_completion txnlog; "
        'printf "%s\\n" "${COMPREPLY[@]}"; eval "echo ${COMPREPLY[*]}" > /dev/null'
    )
    run = subprocess.run(
        ["bash", "--norc", "-c", typed],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "TXNLOG_ROOT": hostile.root},
        capture_output=True,
        text=True,
    )
    assert (run.stdout.split("\n")[:-1], run.stderr) == (SAFE, "")
    assert [path.name for path in folder.iterdir()] == ["txnlog"]
