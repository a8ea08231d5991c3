"""`txnlog configs`: of topics and of the root."""

from __future__ import annotations

import re

import pytest

from tests.cli.runner import Command
from txnlog.admin import root_configs


def test_configs_of_the_root(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's spelling of the configuration that all brokers have, and progress of long work."""
    monkeypatch.setattr(root_configs, "FOLLOWED_MS", 0)
    root = ["--entity-type", "brokers"]
    [before] = command.json("configs", "describe", *root)
    assert before == {"Name": "storage.fsync", "Value": "false", "Source": "BROKER"}
    result = command.run("configs", "alter", *root, "--add-config", "storage.fsync=true")
    assert result.stdout == "Changed the configuration of the root.\n"
    assert result.stderr.splitlines()[-1].startswith("txnlog: sync what was written before (")
    assert command.json("configs", "describe", *root)[0]["Value"] == "true"
    refused = command.fails("--storage", "fsync=false", "topics", "list")
    assert "configs alter --entity-type brokers" in refused
    both = command.fails(
        "configs", "alter", *root, "--add-config", "storage.fsync=false, Storage.fsync=true"
    )
    assert "storage.fsync is given two values" in both
    assert command.json("configs", "describe", *root)[0]["Value"] == "true"
    for bad in (["-t", "t", *root], []):
        assert command.run("configs", "describe", *bad).exit_code == 2


def test_configs_changed_and_explained(command: Command) -> None:
    """The error of an unknown name suggests the nearest one."""
    command.ok("topics", "create", "-t", "t")
    alter = ["configs", "alter", "-t", "t"]
    command.ok(*alter, "--add-config", "retention.ms=5", "--add-config", "cleanup.policy=compact")
    command.ok(*alter, "--delete-config", "retention.ms")
    assert "Did you mean retention.ms" in command.fails(*alter, "--add-config", "retention.m=5")
    found = {row["Name"]: row for row in command.json("configs", "describe", "-t", "t")}
    assert (found["cleanup.policy"]["Value"], found["cleanup.policy"]["Source"]) == (
        "compact", "TOPIC",
    )  # fmt: skip
    assert found["retention.ms"]["Source"] == "DEFAULT"
    assert "tombstone" in command.ok("configs", "--describe", "-t", "t", "--explain")
    assert "as before" in command.ok(*alter, "--add-config", "segment.ms=2")


@pytest.mark.parametrize(
    "given",
    [
        ["retention.ms=5,segment.bytes=6,cleanup.policy=[compact,delete]"],
        ["cleanup.policy=compact,delete, segment.bytes=6", "retention.ms=5"],
    ],
)
def test_several_configs_in_one_option(command: Command, given: list[str]) -> None:
    """As kafka-configs.sh takes them; read as one value, the error spoke of a wrong number."""
    wanted = {"retention.ms": "5", "segment.bytes": "6", "cleanup.policy": "compact,delete"}

    def found() -> dict[str, str]:
        rows = command.json("configs", "describe", "-t", "t")
        return {row["Name"]: row["Value"] for row in rows if row["Source"] == "TOPIC"}

    config = [arg for each in given for arg in ("--config", each)]
    command.ok("topics", "create", "-t", "t", *config)
    assert found() == wanted
    command.ok("configs", "alter", "-t", "t", "--delete-config", ",".join(wanted))
    assert found() == {}
    added = [arg for each in given for arg in ("--add-config", each)]
    command.ok("configs", "alter", "-t", "t", *added)
    assert found() == wanted


@pytest.mark.parametrize(
    "args",
    [
        ["configs", "alter", "-t", "t", "--add-config", "retention.ms=5,retention.ms=6"],
        [
            "configs",
            "alter",
            "-t",
            "t",
            "--add-config=retention.ms=5",
            "--add-config=retention.MS=6",
        ],
        ["topics", "create", "-t", "new", "--config", "retention.ms=5,retention.ms=6"],
        ["topics", "create", "-t", "new", "--config", "retention.ms=5,retention.MS=6"],
        ["--storage", "fsync=true", "--storage", "storage.fsync=false", "topics", "list"],
    ],
)
def test_setting_with_two_values_is_refused(command: Command, args: list[str]) -> None:
    """The last one won, and nobody was told that the other one is not in force."""
    command.ok("topics", "create", "-t", "t")
    result = command.run(*args)
    assert result.exit_code != 0
    assert re.search(r"(retention.ms|fsync).* two\s+values", result.stderr, re.IGNORECASE)
    assert command.json("topics", "list") == ["t"]
    rows = {row["Name"]: row for row in command.json("configs", "describe", "-t", "t")}
    assert rows["retention.ms"]["Source"] == "DEFAULT"


def test_setting_given_twice_with_one_value_is_accepted(command: Command) -> None:
    command.ok("topics", "create", "-t", "t", "--config", "retention.ms=5,retention.MS=5")
