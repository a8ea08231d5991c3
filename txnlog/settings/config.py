"""Parsing of client settings.

A client is configured by one mapping, as in confluent-kafka. `txnlog.root` (or `path`) is the
cluster, `storage.<key>` configures its object store (settings.storage_options). Broker settings
have no effect but one warning; an unknown name is an error that suggests the nearest one. Every
setting of librdkafka is accepted at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txnlog.errors import ConfigError
from txnlog.process import log_forwarding
from txnlog.process.client_events import ClientEvents
from txnlog.settings.arguments import shown
from txnlog.settings.broker_names import BROKERS_OF_CLIENTS, ONLY_DEFAULTS
from txnlog.settings.client_settings import (
    OBJECTS,
    SETTINGS,
    Client,
    Setting,
    Value,
)
from txnlog.settings.names import suggestion
from txnlog.settings.options import (
    ROOT_NAMES,
    redacted_url,
    root_of,
    warn_ignored,
)
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings, checked_settings
from txnlog.settings.values import identifier, setting_text

_BY_NAME: Final = {
    name.lower(): setting for setting in SETTINGS for name in (setting.name, *setting.aliases)
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """Parsed settings of one client; its repr shows no secrets (R67)."""

    client: Client
    root: str
    storage: StoreSettings
    values: Mapping[str, Value] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value, or its default."""
        setting = _BY_NAME[name]
        return self.values.get(setting.name, setting.default)

    def is_set(self, name: str) -> bool:
        """Whether the user set it."""
        return _BY_NAME[name].name in self.values

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in sorted(self.values.items())]
        named = ", ".join([self.client, f"root={redacted_url(self.root)!r}", *values])
        return f"Config({named})"


def parse_config(raw: Mapping[str, object], client: Client) -> Config:
    """Parse the settings of a client. Does no I/O. None means "not set".

    Raises ConfigError with the name of the unknown, malformed or missing setting.
    """
    values: dict[str, Value] = {}
    ignored: list[str] = []
    storage = StoreSettings()
    roots = []
    for name, value in _items(raw):
        lowered = name.lower()
        if lowered in ROOT_NAMES:
            roots += [] if value is None else [value]
        elif lowered.startswith(STORAGE_PREFIX):
            if value is not None:
                storage[lowered[len(STORAGE_PREFIX) :]] = setting_text(name, value, is_secret=True)
        elif lowered in ONLY_DEFAULTS and _is_default(name, value):
            if value not in (None, ""):
                ignored.append(name)
        else:
            setting = _find(name, client)
            if setting is None:
                ignored.append(name)
            elif value is not None:
                values[setting.name] = setting.parse(name, _to_parse(setting, value))
    root = root_of(roots)
    if root is None:
        servers = "There are no servers: bootstrap.servers has no effect. "
        raise ConfigError(
            f"{servers if 'bootstrap.servers' in raw else ''}The cluster's root is missing: set "
            "txnlog.root (or path) to a folder or url.",
            option="txnlog.root",
        )
    storage = checked_settings(root, storage)
    config = Config(client=client, root=root, storage=storage, values=values)
    log_forwarding.configure(config.get("logger"), is_debugging=bool(config.get("debug")))
    if not config.get("enable.idempotence"):
        # Records are always written once and in order, at no extra cost.
        ignored.append("enable.idempotence=false")
    warn_ignored("Settings", ignored)
    return config


def client_events(config: Config, boot_ms: Callable[[], int]) -> ClientEvents:
    """What a client with these settings reports to error_cb and stats_cb."""
    return ClientEvents(
        error_cb=config.get("error_cb"),
        stats_cb=config.get("stats_cb"),
        interval_ms=config.get("statistics.interval.ms"),
        boot_ms=boot_ms,
    )


def _items(raw: Mapping[str, object]) -> list[tuple[str, object]]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"Settings must be a dict of names and values, not {shown(raw)}.")
    wrong = [name for name in raw if not isinstance(name, str)]
    if wrong:
        raise ConfigError(f"The name of a setting must be a str, not {shown(wrong[0])}.")
    return list(raw.items())


def _is_default(name: str, value: object) -> bool:
    """Whether a value of ONLY_DEFAULTS is the one that changes nothing."""
    if value is None:
        return True
    if callable(value):
        return False
    return setting_text(name, value).strip().lower() == ONLY_DEFAULTS[name.lower()]


def _find(name: str, client: Client) -> Setting | None:
    """The setting; None for one without effect here."""
    lowered = name.lower()
    setting = _BY_NAME.get(lowered)
    if setting is not None:
        return setting if client in setting.clients else None
    if lowered in BROKERS_OF_CLIENTS:
        return None
    if lowered in ONLY_DEFAULTS:
        default = ONLY_DEFAULTS[lowered]
        raise ConfigError(
            f"Setting {name} is accepted only with librdkafka's default, which is "
            f"{shown(default) if default else 'none'}: nothing here does what another value asks "
            "for. Leave it out.",
            option=name,
        )
    advice = suggestion(lowered, [s.name for s in SETTINGS if client in s.clients])
    raise ConfigError(f"There is no {client} setting {shown(name)}. {advice}", option=name)


def _to_parse(setting: Setting, value: object) -> object:
    """The value as a string, as in a configuration file; functions unchanged."""
    if setting.parse in OBJECTS:
        return value
    if setting.parse is identifier and isinstance(value, (bool, float)):
        raise ConfigError(f"Setting {setting.name} is {shown(value)}: it takes a str.")
    return setting_text(setting.name, value)
