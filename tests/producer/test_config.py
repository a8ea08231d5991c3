"""A producer's settings: Kafka's names and defaults, and errors that help."""

from __future__ import annotations

import pytest

from tests.producer.worlds import producer, world
from txnlog.errors import ConfigError
from txnlog.producer import Producer
from txnlog.settings.config import parse_config

DEFAULTS = {
    "transaction.timeout.ms": 60_000,
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 16_384,
    "buffer.memory": 33_554_432,
    "max.request.size": 1_048_576,
    "max.block.ms": 60_000,
    "delivery.timeout.ms": 120_000,
    "transaction.publish": "deferred",
}


def test_defaults_are_kafkas() -> None:
    """A job that moves from Kafka must not change its behaviour by settings that it omits."""
    config = parse_config({"txnlog.root": "/data"}, "producer")
    assert {name: config.get(name) for name in DEFAULTS} == DEFAULTS


def test_librdkafka_names_and_python_values_are_accepted() -> None:
    """Numbers, booleans and texts, and the older names of the same settings."""
    given = {
        "txnlog.root": "/data",
        "queue.buffering.max.ms": 7,
        "message.timeout.ms": "9000",
        "compression.codec": "LZ4",
        "enable.idempotence": True,
    }
    config = parse_config(given, "producer")
    assert config.get("linger.ms") == 7
    assert config.get("delivery.timeout.ms") == 9_000
    assert config.get("compression.type") == "lz4"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lingerms": 1}, r"linger\.ms"),
        ({"transactional.ids": "a"}, r"transactional\.id"),
        ({"compression.type": "brotli"}, "zstd"),
        ({"transaction.publish": "later"}, "eager"),
        ({"batch.size": 0}, r"batch\.size"),
        ({"on_delivery": "print"}, "on_delivery"),
    ],
)
def test_wrong_settings_are_refused_and_the_right_ones_named(
    given: dict[str, object], named: str
) -> None:
    """An unknown setting must not be ignored (R60)."""
    with pytest.raises(ConfigError, match=named):
        parse_config({"txnlog.root": "/data", **given}, "producer")


def test_transactions_without_idempotence_contradict_each_other() -> None:
    """As in Kafka."""
    with pytest.raises(ConfigError, match=r"enable\.idempotence"):
        producer(world(), "tx", enable_idempotence="false")


def test_secrets_are_in_no_repr() -> None:
    """Storage settings may be credentials (R67)."""
    config = parse_config(
        {"txnlog.root": "s3://b/p", "storage.aws_secret_access_key": "hush"}, "producer"
    )
    assert "hush" not in repr(config)
    assert repr(parse_config({"txnlog.root": "/r"}, "admin")) == "Config(admin, root='/r')"
    made = producer(world(), "tx")
    assert "Producer(" in repr(made)
    assert isinstance(made, Producer)
