"""Sorts `storage.*` options into what the store library takes: store, client and retry settings.

Every accepted spelling becomes the name of its row, so that caches see one store, and the library
sees no client setting among a store's, at which it panics (D80). The library itself reads the
values of its settings (storage.store.opening). None appears in an error or a repr (R67).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txnlog.errors import ConfigError
from txnlog.settings.arguments import shown as printable
from txnlog.settings.arguments import utf8
from txnlog.settings.names import nearest
from txnlog.settings.roots import place_of
from txnlog.settings.storage_tables import (
    CLOUD_NAMES,
    CREDENTIALS,
    TABLES,
    Cloud,
    Part,
    StorageOption,
    spellings,
)

STORAGE_PREFIX: Final = "storage."
SECRET_PREFIX: Final = "secret."
"""`storage.secret.<name>` is `storage.<name>`, in a spelling that Spark redacts by default."""
PROVIDERS: Final[Mapping[str, Cloud]] = {"boto3": "s3", "azure": "azure", "google": "gcs"}

_SPELLINGS: Final = {cloud: spellings(cloud) for cloud in (*TABLES, None)}


class StoreSettings(dict[str, str]):
    """Settings of an object store; no repr shows the values, which may be secrets (R67)."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ..." for key in sorted(self)) + "}"

    __str__ = __repr__


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StorageOptions:
    """Parsed options of one store, by row's name; a repr shows names only."""

    cloud: Cloud | None
    parts: Mapping[Part, Mapping[str, str]] = field(default_factory=dict)

    def of(self, part: Part) -> Mapping[str, str]:
        """The options that configure one part of the store."""
        return self.parts.get(part, {})

    @property
    def fsync(self) -> bool | None:
        """Whether writes to a local disk are synced; None: as the root says."""
        given = self.of("local").get("fsync")
        return None if given is None else given == "true"

    @property
    def provider(self) -> str:
        """Who supplies credentials: default, boto3, azure or google."""
        found = self.of("credentials")
        return found.get("credentials.provider") or (
            "boto3" if "aws_profile" in found else "default"
        )

    @property
    def file(self) -> str | None:
        """The file with further options, on each host."""
        return self.of("credentials").get("credentials.file")

    @property
    def values(self) -> dict[str, str]:
        """All options, by name."""
        return {name: value for part in self.parts.values() for name, value in part.items()}

    def __repr__(self) -> str:
        return f"StorageOptions({self.cloud}, {', '.join(sorted(self.values)) or 'none'})"


def parse_storage_options(
    url: str | None, given: Mapping[str, str], *, prefix: str = STORAGE_PREFIX
) -> StorageOptions:
    """The options of the store at `url` (None: not known yet, so that any cloud's are accepted).

    `given` has names without `prefix`, which is for messages. On a local disk and in memory the
    options of clouds have no effect.
    Raises ConfigError that names the option, never its value; TypeError.
    """
    given = checked_types(given)
    place = None if url is None else place_of(url)
    cloud = None if place is None else place.cloud
    parts: dict[Part, dict[str, str]] = {}
    names: dict[str, str] = {}
    for key, text in given.items():
        shown = prefix + key
        name = key.strip().lower().removeprefix(SECRET_PREFIX)
        value = text.strip()
        utf8_only(shown, value)
        row = _find(shown, name, cloud, prefix)
        if row is None:
            continue
        if not value:
            raise ConfigError(f"Option {shown} is empty. Give it a value or omit it.", option=shown)
        part = parts.setdefault(row.part, {})
        parsed = row.parse(shown, value)
        if part.setdefault(row.name, parsed) != parsed:
            raise ConfigError(
                f"Options {names[row.name]} and {shown} are two names of one option, with "
                "different values. Keep one of them.",
                option=shown,
            )
        names[row.name] = shown
    options = StorageOptions(cloud=cloud, parts=parts)
    if cloud is not None:
        _check_together(options, names, cloud)
    return options


def checked_types(given: Any) -> Mapping[str, str]:
    """The options, if names and values are str; {} for None. Raises TypeError without a value."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"Storage options must be a dict of names and values, not {type(given).__name__}."
        )
    for key, value in given.items():
        if not isinstance(key, str):
            raise TypeError(f"The name of a storage option must be a str, not {printable(key)}.")
        if not isinstance(value, str):
            raise TypeError(f"Storage option {key} must be a str, not {type(value).__name__}.")
    return given


def checked_settings(
    url: str | None, given: Mapping[str, str], *, prefix: str = STORAGE_PREFIX
) -> StoreSettings:
    """The options as they travel: checked, under the names of their rows.

    With `url` None names stay as they are, since two clouds may have the same.
    Raises ConfigError.
    """
    options = parse_storage_options(url, given, prefix=prefix)
    is_remote = url is not None and place_of(url) is not None
    return StoreSettings(options.values if is_remote else given)


def settings_at(settings: StoreSettings, *, root: str, url: str) -> StoreSettings:
    """The settings of the store at a URL: those of the root if both are in one cloud."""
    here, there = place_of(root), place_of(url)
    is_alike = there is None or (here is not None and here.cloud == there.cloud)
    return settings if is_alike else StoreSettings()


def secret_names(given: Mapping[str, str]) -> list[str]:
    """The keys of `given` whose values are secrets, whatever their cloud and spelling."""
    found = []
    for key in given:
        name = key.strip().lower().removeprefix(SECRET_PREFIX)
        rows = [table[name] for table in _SPELLINGS.values() if name in table]
        if any(row.is_secret for row in rows):
            found.append(key)
    return sorted(found)


def secret_spellings() -> list[str]:
    """Every accepted name of every secret option."""
    tables = _SPELLINGS.values()
    return sorted({name for table in tables for name, row in table.items() if row.is_secret})


def utf8_only(name: str, value: str) -> None:
    """Raise ConfigError for half of a surrogate pair, without the value."""
    try:
        utf8(name, value)
    except ConfigError:
        raise ConfigError(f"Option {name} is not valid text (UTF-8).", option=name) from None


def _find(shown: str, name: str, cloud: Cloud | None, prefix: str) -> StorageOption | None:
    """The row of a name; None for an option of another store that has no effect here."""
    row = _SPELLINGS[cloud].get(name)
    if row is not None:
        return row
    others = [other for other in TABLES if name in _SPELLINGS[other]]
    if others and cloud is None:
        return None
    if others:
        raise ConfigError(
            f"Option {shown} is for {CLOUD_NAMES[others[0]]}, and the root is on "
            f"{CLOUD_NAMES[cloud or 's3']}. Leave it out.",
            option=shown,
        )
    if name in ("bucket", "bucket_name", "container_name", "aws_bucket", "google_bucket"):
        raise ConfigError(f"Option {shown}: the root names the bucket. Leave it out.", option=shown)
    known = _SPELLINGS[cloud] if cloud else {n: 0 for table in _SPELLINGS.values() for n in table}
    near = nearest(name, known)
    hint = f"Did you mean {prefix}{near}?" if near else "docs/configuration.md lists the options."
    raise ConfigError(f"There is no storage option {shown}. {hint}", option=shown)


def _check_together(options: StorageOptions, names: Mapping[str, str], cloud: Cloud) -> None:
    """Raise ConfigError for options that contradict one another."""
    values = options.values
    provider = options.provider
    if provider != "default" and PROVIDERS[provider] != cloud:
        raise ConfigError(
            f"{names.get('credentials.provider', 'storage.aws_profile')} chooses provider "
            f"{provider}, which is for {CLOUD_NAMES[PROVIDERS[provider]]}, and the root is on "
            f"{CLOUD_NAMES[cloud]}. Choose another provider, or leave it out.",
            option="storage.credentials.provider",
        )
    if "aws_profile" in values and provider != "boto3":
        raise ConfigError(
            "storage.aws_profile needs the provider boto3. Leave out storage.credentials.provider.",
            option="storage.aws_profile",
        )
    static = sorted(CREDENTIALS[cloud] & values.keys())
    if provider != "default" and (static or options.file):
        other = names[static[0]] if static else "storage.credentials.file"
        raise ConfigError(
            f"Credentials are given twice: by {other} and by the provider {provider}. Keep one of "
            "them.",
            option="storage.credentials.provider",
        )
