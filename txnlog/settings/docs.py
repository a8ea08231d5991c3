"""Generates tables of the documentation from those of options, settings and errors.

    python -m txnlog.settings.docs docs/options.md docs/clients.md docs/configuration.md \
        docs/howto/errors.md

rewrites each table between its two comments `<!-- table: source -->` and `<!-- end -->`, and no
other text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from txnlog import errors
from txnlog.settings.broker_names import REFUSED
from txnlog.settings.storage_tables import COMMON_OPTIONS, TABLES, StorageOption
from txnlog.settings.table import (
    CONSUMER,
    PRODUCER,
    READS,
    SETTINGS,
    SINK_STREAM,
    SOURCE_STREAM,
    SPARK,
    WRITES,
    Scope,
    Setting,
)

_TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z0-9-]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with all its tables regenerated. Raises KeyError for an unknown table."""
    tables = {
        "source": _settings_table(READS),
        "sink": _settings_table(WRITES),
        "consumer-settings": _settings_table(CONSUMER),
        "producer-settings": _settings_table(PRODUCER),
        "storage": _storage_table(COMMON_OPTIONS),
        "storage-s3": _storage_table(TABLES["s3"]),
        "storage-azure": _storage_table(TABLES["azure"]),
        "storage-gcs": _storage_table(TABLES["gcs"]),
        "not-supported": ", ".join(
            sorted(f"`kafka.{name}`" for name, (scopes, _) in REFUSED.items() if scopes == SPARK)
        ),
        **{f"errors-{flag}": _errors_table(flag) for flag in (*errors.FLAGS, "none")},
    }
    return _TABLE.sub(
        lambda found: f"{found['name']} -->\n\n{tables[found['name']]}\n\n",
        page,
    )


def _settings_table(scopes: frozenset[Scope]) -> str:
    """In Spark also with the kinds of reads or writes that take each."""
    is_spark = scopes <= SPARK
    rows = [
        (
            ", ".join(f"`{name}`" for name in setting.names),
            _default(setting, scopes),
            *([_kinds(setting.applies_to & scopes)] if is_spark else []),
            setting.doc,
        )
        for setting in SETTINGS
        if (setting.applies_to | setting.ignored_in) & scopes
    ]
    head = ("option", "default", "for") if is_spark else ("setting", "default")
    return _table((*head, "meaning"), rows)


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


def _default(setting: Setting, scopes: frozenset[Scope]) -> str:
    if setting.default_text is not None:
        return setting.default_text
    value = setting.default
    if value is None or not setting.applies_to & scopes:
        return ""
    return f"`{','.join(value) if isinstance(value, tuple) else str(value).lower()}`"


def _kinds(scopes: frozenset[Scope]) -> str:
    """batch, stream or both, of those that do not ignore an option."""
    streams = SOURCE_STREAM | SINK_STREAM
    kinds = {"stream" if scope in streams else "batch" for scope in scopes}
    return " and ".join(sorted(kinds)) or "no effect"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text()))
