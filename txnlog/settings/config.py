"""Looks settings up and parses them: Spark's options, settings of clients, topics' configurations.

Names are case-insensitive, and in Spark those with a dot may have the prefix `kafka.`. A name that
only applies to brokers is ignored with one warning, so that a program can move over unchanged, and
clients accept every setting of librdkafka at its default. Any other unknown name is an error that
suggests the nearest one. `storage.<key>` configures the root's store (settings.storage_options).
Its values, and those of unknown names, never appear in a message or a repr (R67).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from txnlog.errors import ConfigError
from txnlog.process import log_forwarding
from txnlog.process.client_events import ClientEvents
from txnlog.settings.arguments import shown
from txnlog.settings.broker_names import ONLY_DEFAULTS, REFUSED, WITHOUT_EFFECT
from txnlog.settings.names import nearest, suggestion
from txnlog.settings.redaction import regex_of_conf, warning_of
from txnlog.settings.roots import ROOT_NAMES, redacted_url, root_of
from txnlog.settings.storage_options import (
    STORAGE_PREFIX,
    StoreSettings,
    checked_settings,
    secret_names,
    settings_at,
)
from txnlog.settings.table import CLIENTS, SETTINGS, SPARK, TOPIC, Scope, Setting, Value
from txnlog.settings.values import OBJECTS, identifier, refused, setting_text

KAFKA_PREFIX: Final = "kafka."
CHECKPOINT_STORAGE_PREFIX: Final = "checkpoint.storage."
_CATALOG: Final = frozenset({"provider", "owner", "location"})
"""What Spark's catalog adds to the options of CREATE TABLE ... USING txnlog."""
_KINDS: Final[Mapping[Scope, str]] = {
    **dict.fromkeys(SPARK, "option"),
    **dict.fromkeys(CLIENTS, "setting"),
    **dict.fromkeys(TOPIC, "topic configuration"),
}
_ROWS: Final = {
    (scope, name.lower()): row
    for row in SETTINGS
    for scope in row.applies_to | row.ignored_in
    for name in row.names
}

logger = logging.getLogger("txnlog")
_warned: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """Parsed settings of a client, or of a read or write in Spark; safe to print and to pickle.

    `values` has one for each name of the scope, `given` the names that the user set.
    """

    scope: Scope
    root: str
    storage: StoreSettings
    checkpoint_storage: StoreSettings
    values: Mapping[str, Value]
    given: frozenset[str]

    def get(self, name: str) -> Any:
        """The value, or its default."""
        return self.values[name]

    def is_set(self, name: str) -> bool:
        """Whether the user set it."""
        return name in self.given

    def storage_at(self, url: str) -> StoreSettings:
        """The settings of the store at a URL: those of the root if both are in one cloud."""
        return settings_at(self.storage, root=self.root, url=url)

    def __repr__(self) -> str:
        values = [f"{name}={self.values[name]!r}" for name in sorted(self.given)]
        named = ", ".join([self.scope, f"root={redacted_url(self.root)!r}", *values])
        return f"Config({named})"


def parse_config(raw: Mapping[str, object], scope: Scope) -> Config:
    """Parse what a user gave a client, or Spark, and warn. None means "not set".

    Raises ConfigError that names the setting: unknown (with the nearest name), for another scope,
    malformed, missing, or set twice with different values.
    """
    stores = {STORAGE_PREFIX: StoreSettings()}
    if scope in SPARK:
        _check_load(raw)
        stores[CHECKPOINT_STORAGE_PREFIX] = StoreSettings()
    roots, others = [], []
    for key, value in _items(raw):
        lowered = key.lower()
        prefix = next(filter(lowered.startswith, stores), None)
        if lowered not in ROOT_NAMES and prefix is None:
            others.append((key, value))
        elif value is None:
            continue
        elif prefix is None:
            roots.append(value)
        else:
            text = setting_text(key, value, is_secret=True)
            stores[prefix][lowered.removeprefix(prefix)] = text
    root = root_of(roots)
    if root is None:
        servers = "There are no servers: bootstrap.servers has no effect. "
        raise ConfigError(
            f"{servers if 'bootstrap.servers' in raw else ''}The cluster's root is missing: set "
            "txnlog.root (or path) to a folder or url. In Spark that is the folder of the topics, "
            "as in load('/data/root') or start('/data/root').",
            option="txnlog.root",
        )
    values, ignored = parse_values(others, scope)
    config = Config(
        scope=scope,
        root=root,
        storage=checked_settings(root, stores[STORAGE_PREFIX]),
        checkpoint_storage=checked_settings(
            None, stores.get(CHECKPOINT_STORAGE_PREFIX, {}), prefix=CHECKPOINT_STORAGE_PREFIX
        ),
        values={**{row.name: row.default for row in rows_of(scope)}, **values},
        given=frozenset(values),
    )
    if scope in CLIENTS:
        log_forwarding.configure(config.get("logger"), is_debugging=bool(config.get("debug")))
    else:
        _warn_in_spark(
            prefix + name for prefix, given in stores.items() for name in secret_names(given)
        )
    warn_ignored(scope, ignored)
    return config


def parse_values(
    given: Iterable[tuple[str, object]], scope: Scope
) -> tuple[dict[str, Value], list[str]]:
    """Values by the names of their rows, and the names without effect. Raises ConfigError."""
    values: dict[str, Value] = {}
    spelled: dict[str, Value] = {}
    ignored = []
    for key, value in given:
        if scope in CLIENTS and _is_default(key, value):
            ignored += [] if value in (None, "") else [key]
            continue
        row = find(key, scope)
        if row is None:
            ignored.append(key.strip())
        elif value is not None or scope in TOPIC:
            parsed = _parsed(row, key, value)
            if spelled.setdefault(_name(key, scope), parsed) != parsed:
                raise ConfigError(
                    f"{row.name} is given two values. Keep one of them.",
                    option=row.name,
                )
            values[row.name] = parsed
    if values.get("enable.idempotence") is False:
        # Records are always written once and in order, at no extra cost.
        ignored.append("enable.idempotence=false")
    return values, ignored


def rows_of(scope: Scope) -> list[Setting]:
    """The rows that a scope takes."""
    return [row for row in SETTINGS if scope in row.applies_to | row.ignored_in]


def find(key: str, scope: Scope) -> Setting | None:
    """The row of a name, as a user wrote it; None if it has no effect here.

    Raises ConfigError for a name that is refused, and for an unknown one, with the nearest.
    """
    name = _name(key, scope)
    has_prefix = name != key.strip().lower()
    scopes, instead = REFUSED.get(name, (frozenset(), ""))
    if scope in scopes:
        raise ConfigError(
            f"{key} is not supported as {_noun(scope)}. {instead} Leave it out.", option=key
        )
    row = _ROWS.get((scope, name))
    if row is not None and ("." in name or not has_prefix):
        return row if scope in row.applies_to else None
    if _has_no_effect(name, scope, has_prefix=has_prefix):
        return None
    raise _unknown(key, name, scope)


def client_events(config: Config, boot_ms: Callable[[], int]) -> ClientEvents:
    """What a client with these settings reports to error_cb and stats_cb."""
    return ClientEvents(
        error_cb=config.get("error_cb"),
        stats_cb=config.get("stats_cb"),
        interval_ms=config.get("statistics.interval.ms"),
        boot_ms=boot_ms,
    )


# --- Warnings -------------------------------------------------------------------------------------


def warn_once(message: str) -> None:
    """Log a warning once per process."""
    key = (os.getpid(), message)
    if key not in _warned:
        _warned.add(key)
        logger.warning(message)


def warn_ignored(scope: Scope, names: Iterable[str]) -> None:
    """Log one warning that names those of `names` that none has named before in this process."""
    what = f"{_KINDS[scope].capitalize()}s"
    keys = {name: (os.getpid(), f"{what} {name.lower()}") for name in names}
    new = sorted(name for name, key in keys.items() if key not in _warned)
    if new:
        _warned.update(keys.values())
        logger.warning(
            "%s without effect here, where there are no brokers: %s.", what, ", ".join(new)
        )


def _warn_in_spark(secrets: Iterable[str]) -> None:
    """Warn once about secrets that Spark would show."""
    named = list(secrets)
    warning = warning_of(named, regex_of_conf()) if named else None
    if warning:
        warn_once(warning)


# --- Names and values -----------------------------------------------------------------------------


def _items(raw: Mapping[str, object]) -> list[tuple[str, object]]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"Settings must be a dict of names and values, not {shown(raw)}.")
    wrong = [name for name in raw if not isinstance(name, str)]
    if wrong:
        raise ConfigError(f"The name of a setting must be a str, not {shown(wrong[0])}.")
    return list(raw.items())


def _check_load(raw: Mapping[str, object]) -> None:
    """Refuse several roots, and a table that Spark would create and could not read."""
    lowered = {name.lower() for name in raw}
    if "paths" in lowered:
        raise ConfigError("load() accepts one root, not several.", option="path")
    if lowered >= _CATALOG:
        raise ConfigError(
            "CREATE TABLE ... USING txnlog is not possible: Spark creates such a table, and cannot "
            "read it afterwards, as its session catalog takes a Python data source for a source of "
            "version 1. Use CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...), or "
            "spark_source.sql.create_views for all topics."
        )


def _is_default(key: str, value: object) -> bool:
    """Whether it is a setting of librdkafka at the default that changes nothing."""
    default = ONLY_DEFAULTS.get(key.strip().lower())
    if default is None or callable(value):
        return False
    return value is None or setting_text(key, value).strip().lower() == default


def _name(key: str, scope: Scope) -> str:
    lowered = key.strip().lower()
    return lowered.removeprefix(KAFKA_PREFIX) if scope in SPARK else lowered


def _noun(scope: Scope) -> str:
    return _KINDS[scope] if scope in TOPIC else f"{scope} {_KINDS[scope]}"


def _has_no_effect(name: str, scope: Scope, *, has_prefix: bool) -> bool:
    """Whether a name that the scope does not take is one of Kafka's, and not a mistyped one."""
    if has_prefix:
        if any((other, name) in _ROWS for other in SPARK):
            return "." in name
        ours = [row.name for row in rows_of(scope) if "." in row.name]
        return nearest(name, ours, likeness=0.85) is None
    names = WITHOUT_EFFECT[scope]
    begins = tuple(each for each in names if each.endswith("."))
    is_of_others = scope in CLIENTS and any((other, name) in _ROWS for other in CLIENTS)
    return is_of_others or name in names or name.startswith(begins)


def _unknown(key: str, name: str, scope: Scope) -> ConfigError:
    elsewhere = {other: _ROWS[other, name] for other in SPARK if (other, name) in _ROWS}
    if scope in SPARK - elsewhere.keys() and elsewhere:
        row = next(iter(elsewhere.values()))
        return ConfigError(
            f"Option {row.name} is for {' and '.join(sorted(elsewhere))}, not for {scope} of "
            "format txnlog. Leave it out.",
            option=row.name,
        )
    if scope in CLIENTS and name in ONLY_DEFAULTS:
        default = ONLY_DEFAULTS[name]
        return ConfigError(
            f"Setting {key} is accepted only with librdkafka's default, which is "
            f"{shown(default) if default else 'none'}: nothing here does what another value asks "
            "for. Leave it out.",
            option=key,
        )
    here = [row.name for row in rows_of(scope)]
    if scope not in TOPIC:
        here += [*ROOT_NAMES, f"{STORAGE_PREFIX}<key>"]
    advice = suggestion(name, here)
    return ConfigError(f"There is no {_noun(scope)} {shown(key)}. {advice}", option=key)


def _parsed(row: Setting, key: str, value: object) -> Value:
    """The value of a row; an error names it as the table does, but for an alias."""
    name = row.name if key.strip().lower().endswith(row.name.lower()) else key
    if row.parse in OBJECTS:
        return row.parse(name, value)
    if row.parse is identifier and isinstance(value, (bool, float)):
        raise refused(name, value, "a str")
    return row.parse(name, setting_text(name, value))
