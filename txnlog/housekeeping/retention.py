"""Retention: remove files past retention.ms or retention.bytes, or below the log start.

A commit removes them from the table; readers can still read them, and vacuum deletes them later.
Every step decides on the topic's newest state, so a process that dies, a lost reply, or a second
process at the same work leaves no partial result.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from functools import partial

from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.housekeeping.vacuum import some_at_a_time, topic_logs
from txnlog.process.failures import Failures
from txnlog.protocol.retention import (
    FILES_MAX,
    RetentionLimits,
    Undated,
    newest_record_ms,
    prepare_retention,
)
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.vacuum import Deletable
from txnlog.settings.topic_configs import config_value
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

EXPIRED_BATCH = "record batch past retention.ms, retention.bytes or the log start"

STEPS_MAX = 1_000
"""Maximum number of steps in one topic per check; the rest is for the next check."""


class Retention:
    """Enforces the retention limits of one cluster's topics. The constructor does no I/O."""

    def __init__(self, cluster: Cluster, *, files_max: int = FILES_MAX) -> None:
        self._cluster = cluster
        self._files_max = files_max
        self._written_ms: dict[str, dict[str, int]] = {}

    def enforce_all(self) -> int:
        """Remove expired files from every topic; returns the number of files.

        A topic that cannot be read or written delays only its own files (R37): its error is raised
        at the end.
        """
        failures = Failures("Retention", logging.DEBUG)
        names = []
        for name, found in self._cluster.survey_topics().items():
            if isinstance(found, TxnLogError):
                failures.add(f"topic {name!r}", found)
            else:
                names.append(name)
        self._written_ms = {name: self._written_ms.get(name, {}) for name in names}
        removed = 0
        for some in some_at_a_time(names):
            parts = [(f"topic {name!r}", partial(self.enforce, name)) for name in some]
            removed += sum(failures.together(self._cluster.store.together, parts))
        if failures and removed:
            logger.info("Retention removed %d files; some topics failed", removed)
        failures.check()
        return removed

    def enforce(self, topic: str) -> int:
        """Remove expired files from one topic; returns the number of files.

        Raises TopicAuthorizationError, CommitStateUnknownError, StorageError, and
        ObjectNotFoundError or CorruptLogError that name a file.
        """
        log = self._cluster.topic_log(topic)
        removed = 0
        for _ in range(STEPS_MAX):
            decision = log.transact(lambda state: self._decide(topic, state, self._files_max))
            if decision is None:
                break
            if isinstance(decision, TopicCommit):
                removed += len(decision.removes)
            else:
                self._date(log, decision.paths)
        self._forget_removed(log)
        return removed

    def find(self) -> list[Deletable]:
        """What `enforce_all` would remove now; commits nothing. Unreadable topics are logged."""
        found: list[Deletable] = []
        # A dry run returns a list: errors are logged, and none is raised at the end.
        failures = Failures("Dry run")
        for log in topic_logs(self._cluster, failures):
            with failures.of(log.name):
                found += self._find(log)
        return found

    def _find(self, log: TopicLog) -> list[Deletable]:
        while isinstance(decision := self._decide(log.name, log.view, sys.maxsize), Undated):
            self._date(log, decision.paths)
        if decision is None:
            return []
        written_ms, now_ms = self._written_ms[log.name], self._cluster.store.now_ms()
        found = []
        for path in decision.removes:
            batch = log.view.by_path[path]
            newest_ms = newest_record_ms(batch, written_ms)
            if newest_ms is None:
                self._date(log, [path])
                newest_ms = written_ms[path]
            age_ms = now_ms - newest_ms
            found.append(Deletable(f"{log.path}/{path}", EXPIRED_BATCH, age_ms, batch.size_bytes))
        return found

    def _decide(
        self, topic: str, state: TopicState, files_max: int
    ) -> TopicCommit | Undated | None:
        return prepare_retention(
            state,
            limits=_limits(state),
            # Compared with times of records and files, so not a wall clock.
            now_ms=self._cluster.store.now_ms(),
            written_ms=self._written_ms.setdefault(topic, {}),
            files_max=files_max,
        )

    def _date(self, log: TopicLog, paths: Iterable[str]) -> None:
        """Ask the store when files were written; files never change after that."""
        named = list(paths)
        found = log.store.together(
            [partial(log.store.head, f"{log.path}/{path}") for path in named]
        )
        for path, meta in zip(named, found, strict=True):
            self._written_ms[log.name][path] = meta.last_modified_ms

    def _forget_removed(self, log: TopicLog) -> None:
        written_ms = self._written_ms[log.name]
        live = log.view.by_path
        self._written_ms[log.name] = {path: at for path, at in written_ms.items() if path in live}


def _limits(state: TopicState) -> RetentionLimits:
    if "delete" not in config_value(state.config, "cleanup.policy").split(","):
        return RetentionLimits()
    return RetentionLimits(
        retention_ms=config_value(state.config, "retention.ms"),
        retention_bytes=config_value(state.config, "retention.bytes"),
    )
