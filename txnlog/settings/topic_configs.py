"""Configurations of topics: those that are stored, and their values.

A topic's own values are table properties `txnlog.<name>`; the others have their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txnlog.errors import InvalidPartitionsError
from txnlog.settings.arguments import one_of, text
from txnlog.settings.config import find, parse_values, rows_of, warn_ignored
from txnlog.settings.table import Setting

PARTITIONS: Final = "partitions"
_INTERNAL: Final = frozenset({PARTITIONS, "deleted", "home"})
TOPIC_CONFIGS: Final = {row.name: row for row in rows_of("topic")}


def check_configs(given: Mapping[str, object]) -> dict[str, str]:
    """Values as they are stored, without broker settings, which one warning names.

    Raises ConfigError for an unknown name (and suggests the nearest one), a malformed value, or
    spellings of a name with two values; TypeError.
    """
    named = [
        (text("a name in config", key), value)
        for key, value in one_of("config", given, Mapping).items()
    ]
    values, ignored = parse_values(named, "topic")
    warn_ignored("topic", ignored)
    return {name: str(value) for name, value in values.items()}


def find_config(name: str) -> Setting | None:
    """The row of a name; None, after one warning, for a broker setting. Raises ConfigError."""
    row = find(name, "topic")
    if row is None:
        warn_ignored("topic", [name.strip()])
    return row


def config_value(config: Mapping[str, str], name: str) -> Any:
    """The value of a topic, or the default. Raises ConfigError for a malformed value."""
    row = TOPIC_CONFIGS[name]
    return row.parse(name, config[name]) if name in config else row.default


def is_compacted(config: Mapping[str, str]) -> bool:
    """Whether cleanup.policy has `compact`, so that every record needs a key."""
    return "compact" in config_value(config, "cleanup.policy").split(",")


def changed(
    config: Mapping[str, str], sets: Mapping[str, str], deletes: frozenset[str]
) -> dict[str, str]:
    """A topic's settings after setting some values and resetting others to their defaults."""
    kept = {name: value for name, value in config.items() if name not in deletes}
    return {**kept, **sets}


def grown(
    config: Mapping[str, str], *, topic: str, partitions: int, partitions_max: int, again: bool
) -> dict[str, str]:
    """A topic's settings with more partitions; `again`: a retry, may be written already.

    Raises InvalidPartitionsError unless the number is higher.
    """
    now = int(config[PARTITIONS])
    if partitions < now or (partitions == now and not again) or partitions > partitions_max:
        raise InvalidPartitionsError(
            f"Topic {topic!r} has {now} partitions and cannot change to {partitions}: partitions "
            f"can only be added, up to {partitions_max}.",
            topic=topic,
            partitions=now,
        )
    return {**config, PARTITIONS: str(partitions)}


def own_configs(config: Mapping[str, str]) -> dict[str, str]:
    """The configurations set for the topic, without txnlog's internal properties."""
    return {name: value for name, value in config.items() if name not in _INTERNAL}
