"""Generates tables of the documentation from those of options, settings and errors.

    python -m txnlog.settings.docs docs/options.md docs/clients.md docs/configuration.md \
        docs/howto/errors.md

rewrites each table between its two comments `<!-- table: source -->` and `<!-- end -->`, and no
other text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from txnlog import errors
from txnlog.settings.client_settings import SETTINGS, Client
from txnlog.settings.spark_options import NOT_SUPPORTED, OPTIONS, READS, WRITES, Option
from txnlog.settings.storage_tables import COMMON_OPTIONS, TABLES, StorageOption

KINDS: Final[Mapping[str, str]] = {
    "read": "batch",
    "readStream": "stream",
    "write": "batch",
    "writeStream": "stream",
}
_TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z0-9-]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with all its tables regenerated. Raises KeyError for an unknown table."""
    tables = {
        "source": _options_table(READS),
        "sink": _options_table(WRITES),
        "prefix": _list(f"`kafka.{option.name}`" for option in OPTIONS if option.kafka),
        "consumer-settings": _settings_table("consumer"),
        "producer-settings": _settings_table("producer"),
        "storage": _storage_table(COMMON_OPTIONS),
        "storage-s3": _storage_table(TABLES["s3"]),
        "storage-azure": _storage_table(TABLES["azure"]),
        "storage-gcs": _storage_table(TABLES["gcs"]),
        "not-supported": _list(f"`kafka.{name}`" for name in NOT_SUPPORTED),
        **{f"errors-{flag}": _errors_table(flag) for flag in (*errors.FLAGS, "none")},
    }
    return _TABLE.sub(
        lambda found: f"{found['name']} -->\n\n{tables[found['name']]}\n\n",
        page,
    )


def _options_table(operations: frozenset[str]) -> str:
    rows = [
        (f"`{option.name}`", _default(option, operations), _kinds(option, operations), option.doc)
        for option in OPTIONS
        if (option.applies_to | option.ignored_in) & operations
    ]
    return _table(("option", "default", "for", "meaning"), rows)


def _settings_table(client: Client) -> str:
    rows = [
        (
            ", ".join(f"`{name}`" for name in (setting.name, *setting.aliases)),
            "" if setting.default is None else f"`{_text(setting.default)}`",
            setting.doc,
        )
        for setting in SETTINGS
        if client in setting.clients
    ]
    return _table(("setting", "default", "meaning"), rows)


def _storage_table(rows: Iterable[StorageOption]) -> str:
    lines = [
        (
            ", ".join(f"`{name}`" for name in (row.name, *row.aliases)),
            row.doc + (" A secret." if row.is_secret else ""),
        )
        for row in rows
    ]
    return _table(("storage.", "meaning"), lines)


def _errors_table(flag: str) -> str:
    """The errors with this flag, or with none."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        flags = [each for each in errors.FLAGS if getattr(kind, each)] or ["none"]
        if flag in flags and kind is not errors.TxnLogError:
            summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
            rows.append((f"`{name}`", "" if kind.code is None else str(kind.code), summary))
    return _table(("error", "code", "when"), rows)


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value).lower()


def _default(option: Option, operations: frozenset[str]) -> str:
    if option.default_text is not None:
        return option.default_text
    if option.default is None or not option.applies_to & operations:
        return ""
    return f"`{str(option.default).lower()}`"


def _kinds(option: Option, operations: frozenset[str]) -> str:
    """batch, stream or both, without operations that ignore the option."""
    kinds = {KINDS[name] for name in option.applies_to & operations}
    return " and ".join(sorted(kinds)) or "no effect"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text()))
