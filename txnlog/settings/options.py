"""Options of the Spark source and sink: one table of names, and the parser for both.

Names are Kafka's and those of Spark's Kafka connector, without regard to case. An option that only
makes sense with brokers is taken and ignored with one warning, so that a job moves over unchanged;
any other unknown option is an error with the nearest name. Values of `storage.*` settings and of
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
from txnlog.process.caches import normal_url
from txnlog.settings.arguments import shown
from txnlog.settings.names import nearest
from txnlog.settings.spark_options import (
    BY_NAME,
    NOT_SUPPORTED,
    OPTIONS,
    Operation,
    Option,
    Value,
)

KAFKA_PREFIX: Final = "kafka."
STORAGE_PREFIX: Final = "storage."
CHECKPOINT_STORAGE_PREFIX: Final = "checkpoint.storage."
ROOT_NAMES: Final = ("path", "txnlog.root")
BROKER_PREFIXES: Final = ("fetchoffset.", "kafkaconsumer.")
BROKER_NAMES: Final = frozenset({"acks", "replication.factor"})
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

logger = logging.getLogger("txnlog")
_warned: set[tuple[int, str]] = set()


class StoreSettings(dict[str, str]):
    """Settings of an object store; the values stay out of every repr, they may be secrets (R67)."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ..." for key in sorted(self)) + "}"

    __str__ = __repr__


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options:
    """Parsed options of one read or write; safe to print and to pickle.

    `ignored` names, as the user wrote them, the options that were taken without effect.
    """

    operation: Operation
    root: str
    storage: StoreSettings
    checkpoint_storage: StoreSettings
    values: Mapping[str, Value]
    ignored: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        """A text option's value, its default, or None."""
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise TypeError(f"option {name} is not a text")

    def flag(self, name: str) -> bool:
        """A true/false option's value or default."""
        value = self._get(name)
        if isinstance(value, bool):
            return value
        raise TypeError(f"option {name} is not a flag")

    def number(self, name: str) -> int | None:
        """A whole number's value, its default, or None."""
        value = self._get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise TypeError(f"option {name} is not a number")

    def is_set(self, name: str) -> bool:
        """Whether the user gave the option."""
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
    """Read the options a user gave to Spark. Does no I/O.

    Raises: ConfigError that names the option: unknown (with the nearest name), for another
    operation, malformed, given twice with different values.
    """
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
            checkpoint_storage[lowered[len(CHECKPOINT_STORAGE_PREFIX) :]] = value
        elif lowered.startswith(STORAGE_PREFIX):
            storage[lowered[len(STORAGE_PREFIX) :]] = value
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
        storage=storage,
        checkpoint_storage=checkpoint_storage,
        values=values,
        ignored=tuple(sorted(ignored)),
    )


def warn_once(message: str) -> None:
    """Log a warning the first time this process says it."""
    key = (os.getpid(), message)
    if key not in _warned:
        _warned.add(key)
        logger.warning(message)


def warn_about(options: Options, environ: Mapping[str, str] = os.environ) -> None:
    """Warn once about ignored options, and about Spark running without Unix domain sockets."""
    if options.ignored:
        warn_once(
            f"Options without effect in {options.operation} of format txnlog, which has no "
            f"brokers: {', '.join(options.ignored)}."
        )
    over_tcp = environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() != "true"
    if over_tcp and environ.get("PYTHON_WORKER_FACTORY_SECRET"):
        warn_once(
            "Spark talks to its Python workers over TCP, where delayed acknowledgements cost 40 ms "
            "a hop. Start it with --conf spark.python.unix.domain.socket.enabled=true."
        )


def root_of(given: Iterable[object]) -> str | None:
    """The one root of settings that may name it twice; None without any. Raises ConfigError."""
    roots = [checked_root(value) for value in given]
    if len({normal_url(root) for root in roots}) > 1:
        raise ConfigError(
            f"Two roots: path {redacted_url(roots[0])} and txnlog.root {redacted_url(roots[1])}. "
            "Keep one of them.",
            option="txnlog.root",
        )
    return roots[0] if roots else None


def checked_root(given: object) -> str:
    """A cluster's root: an absolute path or a URL; a pathlib.Path is taken, too.

    Every client and every Spark function calls this. A relative path would be another folder in
    each process, and a root that is made of a wrong value would be a new, empty cluster.
    Raises ConfigError.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path.strip():
        # Not shown: a root may hold credentials.
        what = "blank" if isinstance(path, str) else f"of type {type(path).__name__}"
        raise ConfigError(
            f"The root is {what}. Give a str: an absolute path or a URL.", option="txnlog.root"
        )
    root = str.__str__(path).strip()
    told = shown(redacted_url(root))
    if _ABSOLUTE.match(root) is None:
        raise ConfigError(
            f"Root {told} is relative: each process would look in a place of its own. Give an "
            "absolute path or a URL; ~ is not expanded.",
            option="txnlog.root",
        )
    if "\0" in root or not _is_utf8(root):
        raise ConfigError(
            f"Root {told} holds a character that no path can have: NUL, or half of a surrogate "
            "pair. Give an absolute path or a URL.",
            option="txnlog.root",
        )
    return root


def redacted_url(url: str) -> str:
    """The URL without user, password and query: they may be secrets (R67)."""
    without_query = re.sub(r"[?#].*\Z", "", url) if "://" in url else url
    return re.sub(r"(?<=://)[^/@]*@", "", without_query)


def _find(key: str, operation: Operation) -> Option | None:
    """The row for a name; None when it is taken without effect. Raises ConfigError."""
    lowered = key.lower()
    if lowered.startswith(KAFKA_PREFIX):
        return _find_kafka(key, lowered[len(KAFKA_PREFIX) :], operation)
    if lowered in BROKER_NAMES or lowered.startswith(BROKER_PREFIXES):
        return None
    option = BY_NAME.get(lowered)
    if option is None:
        raise _unknown(key, operation)
    if operation in option.ignored_in:
        return None
    if operation not in option.applies_to:
        raise ConfigError(
            f"Option {option.name} is for {_listed(option.applies_to | option.ignored_in)}, not "
            f"for {operation} of format txnlog. Leave it out.",
            option=option.name,
        )
    return option


def _find_kafka(key: str, name: str, operation: Operation) -> Option | None:
    option = BY_NAME.get(name)
    if option is not None and option.kafka:
        return option if operation in option.applies_to else None
    if name in NOT_SUPPORTED:
        raise ConfigError(
            f"Option {key} is not supported, as in Spark's Kafka connector. {NOT_SUPPORTED[name]} "
            "Leave the option out.",
            option=key,
        )
    ours = {row.name for row in OPTIONS if row.kafka}
    # Another name after the prefix is taken: it may be a setting of Kafka's that has no effect.
    near = nearest(name, ours, likeness=0.85)
    if option is not None or near:
        meant = option.name if option is not None else f"{KAFKA_PREFIX}{near}"
        raise ConfigError(f"Unknown option {key}. Did you mean {meant}?", option=key)
    return None


def _unknown(key: str, operation: Operation) -> ConfigError:
    here = {
        row.name.lower(): row.name
        for row in OPTIONS
        if operation in row.applies_to | row.ignored_in
    }
    here.update({name: name for name in ROOT_NAMES})
    near = nearest(key.lower(), here)
    advice = (
        f"Did you mean {here[near]}?"
        if near
        else f"{operation} takes {', '.join(sorted(here.values()))}, and {STORAGE_PREFIX}<key>."
    )
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
        raise ConfigError("load() takes one root, not several.", option="path")
    found = root_of([lowered[name] for name in ROOT_NAMES if lowered.get(name, "").strip()])
    if found is None:
        raise ConfigError(
            "No root: say where the topics lie, with load('/data/root') or start('/data/root'), or "
            "with option txnlog.root.",
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
