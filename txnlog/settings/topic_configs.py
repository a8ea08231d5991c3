"""The table of topic configurations: Kafka's names and defaults, and their meaning here.

A topic's own values are table properties `txnlog.<name>`; the others have their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from txnlog.errors import ConfigError, InvalidPartitionsError
from txnlog.settings.arguments import one_of, shown, text
from txnlog.settings.broker_names import BROKERS_OF_TOPICS
from txnlog.settings.names import suggestion
from txnlog.settings.options import warn_ignored
from txnlog.settings.values import not_negative, positive, positive_int, setting_text

PARTITIONS: Final = "partitions"
_INTERNAL: Final = frozenset({PARTITIONS, "deleted", "home"})


def unlimited(name: str, value: str) -> int:
    """An integer of 0 or more, or -1 for no limit. Raises ConfigError."""
    return -1 if value.strip() == "-1" else not_negative(name, value)


def policies(name: str, value: str) -> str:
    """delete, compact, or both. Raises ConfigError."""
    found = sorted({part.strip().lower() for part in value.split(",")})
    if not found or not set(found) <= {"compact", "delete"}:
        raise ConfigError(
            f"Option {name} is {shown(value)}: it takes delete, compact or compact,delete.",
            option=name,
        )
    return ",".join(found)


def ratio(name: str, value: str) -> float:
    """A number from 0 to 1. Raises ConfigError."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise ConfigError(
            f"Option {name} is {shown(value)}: it takes a number from 0 to 1.", option=name
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One row of the table; `default` as text."""

    name: str
    parse: Callable[[str, str], float | str]
    default: str
    doc: str


TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    row.name: row
    for row in (
        TopicConfig(
            name="cleanup.policy",
            parse=policies,
            default="delete",
            doc="`delete` by age or size, `compact` to the newest record of each key, or "
            "`compact,delete`.",
        ),
        TopicConfig(
            name="delete.retention.ms",
            parse=not_negative,
            default="86400000",
            doc="How long a compacted topic keeps the tombstone of a deleted key.",
        ),
        TopicConfig(
            name="max.compaction.lag.ms",
            parse=positive,
            default="9223372036854775807",
            doc="Maximum age of a record before its partition is key-compacted, regardless of the "
            "dirty ratio.",
        ),
        TopicConfig(
            name="max.message.bytes",
            parse=positive_int,
            default="1048588",
            doc="Maximum size of one record, as Kafka's producer estimates it; a larger record "
            "raises RecordTooLarge.",
        ),
        TopicConfig(
            name="min.cleanable.dirty.ratio",
            parse=ratio,
            default="0.5",
            doc="A partition is key-compacted when more than this fraction of its bytes is not.",
        ),
        TopicConfig(
            name="min.compaction.lag.ms",
            parse=not_negative,
            default="0",
            doc="Minimum age of a record before key compaction removes it.",
        ),
        TopicConfig(
            name="retention.bytes",
            parse=unlimited,
            default="-1",
            doc="Size of the newest data files kept per partition; older files are removed. -1: no "
            "limit.",
        ),
        TopicConfig(
            name="retention.ms",
            parse=unlimited,
            default="604800000",
            doc="A file is removed when its newest record is older, by the record's timestamp. "
            "-1: never.",
        ),
        TopicConfig(
            name="segment.bytes",
            parse=positive_int,
            default="134217728",
            doc="Approximate size of the files that compaction writes (Kafka's default is 1 GiB).",
        ),
    )
}


_IGNORED = "Topic configurations"


def check_configs(given: Mapping[str, object]) -> dict[str, str]:
    """Values as they are stored, without broker settings, which one warning names.

    Raises ConfigError for an unknown name (and suggests the nearest one), a malformed value, or
    spellings of a name with two values; TypeError.
    """
    checked: dict[str, str] = {}
    ignored = []
    for key, value in one_of("config", given, Mapping).items():
        name = text("a name in config", key)
        row = _find(name)
        if row is None:
            ignored.append(name.strip())
        else:
            parsed = str(row.parse(row.name, setting_text(row.name, value)))
            if checked.setdefault(row.name, parsed) != parsed:
                raise ConfigError(f"{row.name} is given two values. Give one.", option=row.name)
    warn_ignored(_IGNORED, ignored)
    return checked


def find_config(name: str) -> TopicConfig | None:
    """The row of a name; None, after one warning, for a broker setting. Raises ConfigError."""
    row = _find(name)
    if row is None:
        warn_ignored(_IGNORED, [name.strip()])
    return row


def _find(name: str) -> TopicConfig | None:
    lowered = name.strip().lower()
    row = TOPIC_CONFIGS.get(lowered)
    if row is not None:
        return row
    if lowered in BROKERS_OF_TOPICS:
        return None
    if lowered in (PARTITIONS, "num.partitions"):
        raise ConfigError(
            f"{name} is not a topic configuration: pass the number of partitions to create_topics "
            "or create_partitions (`txnlog topics alter --partitions`).",
            option=name,
        )
    advice = suggestion(lowered, TOPIC_CONFIGS)
    raise ConfigError(f"There is no topic configuration {shown(name)}. {advice}", option=name)


def config_value(config: Mapping[str, str], name: str) -> float | str:
    """The value of a topic, or the default. Raises ConfigError for a malformed value."""
    row = TOPIC_CONFIGS[name]
    return row.parse(name, config.get(name, row.default))


def is_compacted(config: Mapping[str, str]) -> bool:
    """Whether cleanup.policy has `compact`, so that every record needs a key."""
    return "compact" in str(config_value(config, "cleanup.policy")).split(",")


def message_bytes_max(config: Mapping[str, str]) -> int:
    """The topic's max.message.bytes."""
    return int(config_value(config, "max.message.bytes"))


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
