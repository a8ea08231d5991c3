"""Parses the options of the Spark source and sink.

Names are those of Kafka and of Spark's Kafka connector, case-insensitive. An option that only
applies to brokers is ignored with one warning, so that a job can move over unchanged; any other
unknown option is an error that suggests the nearest name. Values of `storage.*` settings and of
unknown options never appear in a message or a repr (R67).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from txnlog.errors import ConfigError
from txnlog.process.caches import local_path, normal_url
from txnlog.settings.arguments import shown
from txnlog.settings.broker_names import BROKERS_OF_SPARK
from txnlog.settings.names import nearest, suggestion
from txnlog.settings.redaction import regex_of_conf, warning_of
from txnlog.settings.roots import canonical_url, place_of, without_secrets
from txnlog.settings.spark_options import (
    BY_NAME,
    NOT_SUPPORTED,
    OPTIONS,
    Operation,
    Option,
    Value,
)
from txnlog.settings.storage_options import (
    STORAGE_PREFIX,
    StoreSettings,
    checked_settings,
    secret_names,
)

KAFKA_PREFIX: Final = "kafka."
CHECKPOINT_STORAGE_PREFIX: Final = "checkpoint.storage."
ROOT_NAMES: Final = ("path", "txnlog.root")
_CATALOG: Final = frozenset({"provider", "owner", "location"})
"""What Spark's catalog adds to the options of CREATE TABLE ... USING txnlog."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

logger = logging.getLogger("txnlog")
_warned: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options:
    """Parsed options of one read or write; safe to print and to pickle.

    `ignored` names the options without effect, as the user wrote them, `secrets` those of
    `storage.*` whose values are secrets.
    """

    operation: Operation
    root: str
    storage: StoreSettings
    checkpoint_storage: StoreSettings
    values: Mapping[str, Value]
    ignored: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        """The value of a text option, its default, or None."""
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise TypeError(f"option {name} is not text")

    def flag(self, name: str) -> bool:
        """The value of a boolean option, or its default."""
        value = self._get(name)
        if isinstance(value, bool):
            return value
        raise TypeError(f"option {name} is not a flag")

    def number(self, name: str) -> int | None:
        """The value of an integer option, its default, or None."""
        value = self._get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise TypeError(f"option {name} is not a number")

    def is_set(self, name: str) -> bool:
        """Whether the user set the option."""
        return BY_NAME[name.lower()].name in self.values

    def _get(self, name: str) -> Value:
        option = BY_NAME[name.lower()]
        if self.operation not in option.applies_to:
            raise KeyError(f"option {option.name} does not apply to {self.operation}")
        return self.values.get(option.name, option.default)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in sorted(self.values.items()))
        return f"Options({self.operation}, root={redacted_url(self.root)!r}, {values})"


def parse_options(raw: Mapping[str, str], operation: Operation) -> Options:
    """Parse the options a user set in Spark; no I/O.

    Raises: ConfigError that names the option: unknown (with the nearest name), for another
    operation, malformed, or set twice with different values.
    """
    _check_no_table(raw)
    root = _root(raw)
    values: dict[str, Value] = {}
    given: dict[str, str] = {}
    storage = StoreSettings()
    checkpoint_storage = StoreSettings()
    ignored: list[str] = []
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in ROOT_NAMES:
            continue
        if lowered.startswith(CHECKPOINT_STORAGE_PREFIX):
            checkpoint_storage[lowered.removeprefix(CHECKPOINT_STORAGE_PREFIX)] = value
        elif lowered.startswith(STORAGE_PREFIX):
            storage[lowered.removeprefix(STORAGE_PREFIX)] = value
        else:
            option = _find(key, operation)
            if option is None:
                ignored.append(key)
                continue
            _check_same(option, value, given)
            values[option.name] = option.parse(option.name, value)
    return Options(
        operation=operation,
        root=root,
        storage=checked_settings(root, storage),
        checkpoint_storage=checked_settings(
            None, checkpoint_storage, prefix=CHECKPOINT_STORAGE_PREFIX
        ),
        values=values,
        ignored=tuple(sorted(ignored)),
        secrets=(
            *(STORAGE_PREFIX + name for name in secret_names(storage)),
            *(CHECKPOINT_STORAGE_PREFIX + name for name in secret_names(checkpoint_storage)),
        ),
    )


def _check_no_table(raw: Mapping[str, str]) -> None:
    """Refuse a table that Spark would create and could not read."""
    if {name.lower() for name in raw} >= _CATALOG:
        raise ConfigError(
            "CREATE TABLE ... USING txnlog is not possible: Spark creates such a table, and cannot "
            "read it afterwards, as its session catalog takes a Python data source for a source of "
            "version 1. Use CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...), or "
            "spark_source.sql.create_views for all topics."
        )


def warn_once(message: str) -> None:
    """Log a warning once per process."""
    key = (os.getpid(), message)
    if key not in _warned:
        _warned.add(key)
        logger.warning(message)


def warn_ignored(what: str, names: Iterable[str]) -> None:
    """Log one warning that names those of `names` that none has named before in this process."""
    keys = {name: (os.getpid(), f"{what} {name.lower()}") for name in names}
    new = sorted(name for name, key in keys.items() if key not in _warned)
    if new:
        _warned.update(keys.values())
        logger.warning(
            "%s without effect here, where there are no brokers: %s.", what, ", ".join(new)
        )


def warn_about(options: Options, environ: Mapping[str, str] = os.environ) -> None:
    """Warn once about ignored options, about secrets that Spark would show, and about Spark
    running without Unix domain sockets.
    """
    shown = warning_of(options.secrets, regex_of_conf(environ)) if options.secrets else None
    if shown:
        warn_once(shown)
    if options.ignored:
        warn_once(
            f"Options without effect in {options.operation} of format txnlog, which has no "
            f"brokers: {', '.join(options.ignored)}."
        )
    over_tcp = environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() != "true"
    if over_tcp and environ.get("PYTHON_WORKER_FACTORY_SECRET"):
        warn_once(
            "Spark connects to its Python workers over TCP, where delayed acknowledgements cost "
            "40 ms a hop. Start it with --conf spark.python.unix.domain.socket.enabled=true."
        )


def root_of(given: Iterable[object]) -> str | None:
    """The root, which settings may name twice; None if none does. Raises ConfigError."""
    roots = [checked_root(value) for value in given]
    if len({normal_url(root) for root in roots}) > 1:
        raise ConfigError(
            f"Two roots: path {redacted_url(roots[0])} and txnlog.root {redacted_url(roots[1])}. "
            "Keep one of them.",
            option="txnlog.root",
        )
    return roots[0] if roots else None


def checked_root(given: object) -> str:
    """Check a cluster's root: an absolute path or a URL, as str or pathlib.Path.

    Every client and every Spark function calls this. A relative path would be another folder in
    each process, and a root made from a wrong value would be a new, empty cluster. Of the names
    that a place in an object store has, the result is one: s3:// for s3a://.
    Control characters are refused, also at the ends, since blanks are cut off there: the root
    would be another folder. Raises ConfigError.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path.strip():
        # The value is not shown: a root may hold credentials.
        what = "blank" if isinstance(path, str) else f"of type {type(path).__name__}"
        raise ConfigError(
            f"The root is {what}. Give a str: an absolute path or a URL.", option="txnlog.root"
        )
    root = str.__str__(path).strip()
    printable = shown(redacted_url(root))
    if _ABSOLUTE.match(root) is None:
        raise ConfigError(
            f"Root {printable} is relative: it would be another folder in each process. Give an "
            "absolute path or a URL; ~ is not expanded.",
            option="txnlog.root",
        )
    if _CONTROL.search(path) or not _is_utf8(root):
        raise ConfigError(
            f"Root {shown(redacted_url(path))} contains a control character, such as a line break, "
            "or half of a surrogate pair. Give an absolute path or a URL without it.",
            option="txnlog.root",
        )
    return canonical_url(root)


def redacted_url(url: str) -> str:
    """The URL without user, password and query: they may be secrets (R67)."""
    place = place_of(url)
    if place is not None:
        return place.url
    is_local = (local_path(url) or "").startswith("/")
    return url if is_local else without_secrets(url)


def _find(key: str, operation: Operation) -> Option | None:
    """The option of a name; None if it is ignored. Raises ConfigError."""
    lowered = key.lower()
    if lowered.startswith(KAFKA_PREFIX):
        return _find_kafka(key, lowered[len(KAFKA_PREFIX) :], operation)
    if lowered in BROKERS_OF_SPARK:
        return None
    option = BY_NAME.get(lowered)
    if option is None:
        raise _unknown(key, operation)
    if operation in option.ignored_in:
        return None
    _check_refused(option, operation)
    if operation not in option.applies_to:
        raise ConfigError(
            f"Option {option.name} is for {_listed(option.applies_to | option.ignored_in)}, not "
            f"for {operation} of format txnlog. Leave it out.",
            option=option.name,
        )
    return option


def _check_refused(option: Option, operation: Operation) -> None:
    """Also with the prefix kafka., where a job that moved over would lose what the option does."""
    if why := option.refused_in.get(operation):
        raise ConfigError(
            f"Option {option.name} is not for {operation} of format txnlog: {why}",
            option=option.name,
        )


def _find_kafka(key: str, name: str, operation: Operation) -> Option | None:
    option = BY_NAME.get(name)
    if option is not None and option.kafka:
        _check_refused(option, operation)
        return option if operation in option.applies_to else None
    if name in NOT_SUPPORTED:
        raise ConfigError(
            f"Option {key} is not supported, as in Spark's Kafka connector. {NOT_SUPPORTED[name]} "
            "Leave the option out.",
            option=key,
        )
    ours = {row.name for row in OPTIONS if row.kafka}
    # Any other name after the prefix is ignored: it may be a Kafka setting that has no effect here.
    near = nearest(name, ours, likeness=0.85)
    if option is not None or near:
        meant = option.name if option is not None else f"{KAFKA_PREFIX}{near}"
        raise ConfigError(f"Unknown option {key}. Did you mean {meant}?", option=key)
    return None


def _unknown(key: str, operation: Operation) -> ConfigError:
    here = [row.name for row in OPTIONS if operation in row.applies_to | row.ignored_in]
    here += ROOT_NAMES
    others = f"{operation} takes {', '.join(sorted(here))}, and {STORAGE_PREFIX}<key>."
    advice = suggestion(key.lower(), here, others)
    return ConfigError(f"Unknown option {key} of format txnlog. {advice}", option=key)


def _check_same(option: Option, value: str, given: dict[str, str]) -> None:
    before = given.setdefault(option.name, value)
    if before != value:
        raise ConfigError(
            f"Option {option.name} is given twice, with and without the prefix {KAFKA_PREFIX} "
            "and with different values. Keep one of them.",
            option=option.name,
        )


def _root(raw: Mapping[str, str]) -> str:
    lowered = {key.lower(): value for key, value in raw.items()}
    if "paths" in lowered:
        raise ConfigError("load() accepts one root, not several.", option="path")
    found = root_of([lowered[name] for name in ROOT_NAMES if lowered.get(name, "").strip()])
    if found is None:
        raise ConfigError(
            "No root: pass the folder of the topics to load('/data/root') or start('/data/root'), "
            "or set option txnlog.root.",
            option="txnlog.root",
        )
    return found


def _is_utf8(root: str) -> bool:
    try:
        root.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
