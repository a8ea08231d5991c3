"""Clients reject settings that are unreadable, or outside Kafka's types."""

from __future__ import annotations

from typing import Any

import pytest

from txnlog.admin import (
    AdminClient,
)
from txnlog.errors import (
    ConfigError,
)
from txnlog.settings.config import parse_config

# --- Settings -------------------------------------------------------------------------------------

ROOT = {"txnlog.root": "/data"}


def test_none_in_settings_means_not_set() -> None:
    """`transactional.id: None` became the id "None", and all such producers fenced each other."""
    given = {**ROOT, "path": None, "transactional.id": None, "linger.ms": None, "on_delivery": None}
    config = parse_config({**given, "storage.secret": None}, "producer")
    assert config.get("transactional.id") is None
    assert not config.is_set("linger.ms")
    assert config.get("linger.ms") == 5
    assert config.storage == {}
    assert parse_config({**ROOT, "group.id": None}, "consumer").get("group.id") is None
    assert AdminClient({**ROOT, "client.id": None})._config.get("client.id") == "txnlog"


@pytest.mark.parametrize("name", ["group.id", "group.instance.id", "client.id"])
@pytest.mark.parametrize(
    "wrong", [b"g", 1.0, True, "", " ", "\ud800", "x" * 32_768, "ä" * 16_384, ["g"], object()]
)
def test_invalid_id_is_refused(name: str, wrong: Any) -> None:
    """group.id=b"g" became the group "b'g'", and a surrogate failed at the first commit."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        parse_config({**ROOT, name: wrong}, "consumer")
    assert len(str(caught.value)) < 400
    parse_config({**ROOT, name: "ä" * 16_383}, "consumer")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("transaction.timeout.ms", 2**31),
        ("transaction.timeout.ms", 1.5),
        ("transaction.timeout.ms", "9" * 5_000),
        ("batch.size", 2**31),
        ("linger.ms", 2**63),
        ("num.partitions", 100_001),
        ("transaction.state.log.num.partitions", 2**31 - 1),
        ("buffer.memory", float("inf")),
        ("on_delivery", 5),
        (5, 5),
    ],
)
def test_number_beyond_kafkas_type_is_refused(name: Any, wrong: Any) -> None:
    """No reader of the group's row accepts a member's time-out of 2**70 ms."""
    with pytest.raises(ConfigError):
        parse_config({**ROOT, name: wrong}, "producer")


def test_setting_spelled_twice_with_two_values_is_refused() -> None:
    """The last one won, and nobody was told that the other one is not in force (R60)."""
    given = {**ROOT, "linger.ms": 5, "LINGER.MS": 7}
    with pytest.raises(ConfigError, match=r"linger\.ms is given two values"):
        parse_config(given, "producer")
    assert parse_config({**given, "LINGER.MS": "5"}, "producer").get("linger.ms") == 5


def test_settings_that_are_not_a_dict_are_refused() -> None:
    """With a helpful error, not an AttributeError."""
    with pytest.raises(ConfigError, match="dict"):
        parse_config("txnlog.root=/data", "producer")  # type: ignore[arg-type]
