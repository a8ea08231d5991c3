"""The settings of a confluent-kafka client as those of a txnlog client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException, kafka_error
from txnlog.compat.confluent_kafka.error_codes import CODES
from txnlog.settings.arguments import shown

SERVERS = ("bootstrap.servers", "metadata.broker.list")


def client_config(given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping from `Client(conf, logger=...)` or `Client(**conf)`, with txnlog.root.

    Raises TypeError, KafkaException.
    """
    if len(given) > 1 or (given and not isinstance(given[0], Mapping)):
        raise TypeError("A client takes one dict of settings, or settings as keywords.")
    config = {**(given[0] if given else {}), **named}
    servers = [config.pop(name) for name in SERVERS if name in config]
    if servers and "txnlog.root" not in config:
        root = str(servers[0])
        if "/" not in root:
            raise KafkaException(
                KafkaError(
                    CODES["_INVALID_ARG"],
                    f"bootstrap.servers is {shown(root)}, but there are no servers: give the root, "
                    "an absolute path or a URL such as s3://bucket/lake.",
                )
            )
        config["txnlog.root"] = root
    on_error = config.get("error_cb")
    if callable(on_error):
        config["error_cb"] = with_error(on_error)
    return config


def with_error(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose first argument is an error of txnlog, or None."""

    def call(error: Exception | None, *rest: Any) -> Any:
        return callback(None if error is None else kafka_error(error), *rest)

    return call
