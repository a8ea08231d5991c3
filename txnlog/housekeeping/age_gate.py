"""Deletion by age waits until the store's clock can be trusted (D69)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txnlog.storage.store.clock_watch import may_trust_ages
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger("txnlog")


class AgeGate:
    """Lets work that deletes files by age run only while ages can be trusted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        # The first refusal is logged for operators; more of them would repeat it.
        self._level = logging.INFO

    def run(self, work: Callable[[], int]) -> int:
        """The result of `work`; 0 without running it while ages cannot be trusted."""
        if may_trust_ages(self._store):
            return work()
        level, self._level = self._level, logging.DEBUG
        logger.log(
            level,
            "No file of %s is deleted by age yet: the clock of its store was set, or has been "
            "watched from this machine for less than an hour.",
            self._store.url,
        )
        return 0
