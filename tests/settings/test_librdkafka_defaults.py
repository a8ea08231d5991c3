"""Configurations written for librdkafka: its defaults are accepted, what has no effect is named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnlog.compat.confluent_kafka import Consumer, KafkaException, Producer
from txnlog.errors import ConfigError
from txnlog.settings import config
from txnlog.settings.broker_names import ONLY_DEFAULTS
from txnlog.settings.config import parse_config
from txnlog.settings.table import Scope
from txnlog.settings.topic_configs import check_configs

ROOT = {"txnlog.root": "/data"}
CLIENTS: dict[str, tuple[Scope, ...]] = {
    "*": ("consumer", "producer", "admin"),
    "C": ("consumer",),
    "P": ("producer",),
}


def defaults() -> Iterator[tuple[str, str, str]]:
    """Name, whose it is, default."""
    path = Path(__file__).with_name("librdkafka_defaults.txt")
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        name, who, *default = line.split(" ", 2)
        yield name, who, default[0] if default else ""


def of_client(client: Scope) -> dict[str, str]:
    return {name: default for name, who, default in defaults() if client in CLIENTS[who]}


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was named before."""
    monkeypatch.setattr(config, "_warned", set())


@pytest.mark.parametrize("client", ["consumer", "producer", "admin"])
def test_each_setting_of_librdkafka_is_accepted_at_its_default(client: Scope) -> None:
    """A program that spells its defaults out did not start."""
    found = of_client(client)
    assert len(found) > 100
    refused = []
    for name, default in {**found, "compression.codec": "inherit"}.items():
        try:
            # Without a default it is not set.
            parse_config({**ROOT, name: default or None}, client)
        except ConfigError as error:
            refused.append(f"{name}={default!r}: {error}")
    assert refused == []


@pytest.mark.parametrize("client", ["consumer", "producer", "admin"])
def test_all_defaults_together_make_one_client(client: Scope) -> None:
    given = {name: default for name, default in of_client(client).items() if default}
    config = parse_config({**given, **ROOT}, client)
    assert config.get("client.id") == "rdkafka"


@pytest.mark.parametrize("name", sorted(ONLY_DEFAULTS))
def test_another_value_than_the_default_is_refused(name: str) -> None:
    """What it asks for would silently not be done (R60)."""
    value: object = (lambda *_: None) if name.endswith("_cb") else "another"
    with pytest.raises(ConfigError, match=name):
        parse_config({**ROOT, name: value}, "producer")


def test_one_warning_names_all_settings_without_effect_once_in_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A configuration file gave dozens, for each client again."""
    caplog.set_level(logging.WARNING, "txnlog")
    given = {**ROOT, "acks": "all", "retries": 3, "socket.timeout.ms": 1, "group.id": "g"}
    for _ in range(2):
        parse_config(given, "producer")
    parse_config({**given, "enable.idempotence": False}, "producer")
    parse_config({**given, "ACKS": 1, "linger.ms": 3}, "consumer")
    prefix = "Settings without effect here, where there are no brokers: "
    assert [one.getMessage() for one in caplog.records] == [
        f"{prefix}acks, group.id, retries, socket.timeout.ms.",
        f"{prefix}enable.idempotence=false.",
        f"{prefix}linger.ms.",
    ]


def test_one_warning_names_all_configurations_of_a_topic_without_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "txnlog")
    for _ in range(2):
        check_configs({"min.insync.replicas": 2, "segment.ms": 1, "retention.ms": 5})
    assert [one.getMessage() for one in caplog.records] == [
        "Topic configurations without effect here, where there are no brokers: "
        "min.insync.replicas, segment.ms."
    ]


def test_compatible_clients_take_all_defaults_too(tmp_path: Path) -> None:
    root = {"bootstrap.servers": str(tmp_path / "root")}
    given = {name: default for name, default in of_client("producer").items() if default}
    with Producer({**given, **root}) as producer:
        producer.produce("t", "a")
    given = {name: default for name, default in of_client("consumer").items() if default}
    with Consumer({**given, **root, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0)
    with pytest.raises(KafkaException):
        Producer({**root, "queuing.strategy": "lifo"})
