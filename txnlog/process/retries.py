"""What failed and is tried again: said when it fails first, not when its time-out is over.

A WARNING per cause and place says what is tried again, until when, and, by the error's own text,
what to do; an INFO says that it works again. Repeated failures in between say nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from txnlog.errors import (
    CommitStateUnknownError,
    OutOfMemoryError,
    StorageError,
    TxnLogError,
)
from txnlog.process.failures import parts_of

logger = logging.getLogger("txnlog")


class _Failing(NamedTuple):
    what: str
    since_ms: int
    is_of_store: bool


class Retries:
    """Those of all clients of one store in this process. Any thread may call it."""

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._failing: dict[str, dict[tuple[str, str], _Failing]] = {}

    def failed(self, place: str, what: str, error: TxnLogError, *, until: str) -> None:
        """`what` has failed at a place, a table or another name, and is tried again `until` then.

        Each part of a combined error is a cause of its own. That the outcome of a commit is unknown
        follows from a failure that was said.
        """
        known = self._failing.setdefault(place, {})
        for one in parts_of(error):
            if known and isinstance(one, CommitStateUnknownError):
                continue
            failing = _Failing(what, self._boot_ms(), is_of_store(one))
            if known.setdefault((place_of(one), _cause_of(one)), failing) is failing:
                logger.warning("%s failed and is tried again %s: %s", what, until, one.message)

    def worked(self, place: str) -> None:
        """A later try has succeeded."""
        # Most never fail.
        if not self._failing:
            return
        for failing in self._failing.pop(place, {}).values():
            if failing.is_of_store:
                after_s = (self._boot_ms() - failing.since_ms) / 1000
                logger.info("%s works again, after %.1f s.", failing.what, after_s)


def is_of_store(error: TxnLogError) -> bool:
    """Whether a part of the error is the store's, and not another client's doing."""
    return any(isinstance(one, StorageError | OutOfMemoryError) for one in parts_of(error))


def place_of(error: TxnLogError) -> str:
    """The table or topic that an error names; "" if it names none."""
    for name in ("topic", "table", "path", "file"):
        found = error.context.get(name)
        if isinstance(found, str) and found:
            return found.partition("/")[0]
    return ""


def _cause_of(error: TxnLogError) -> str:
    code = error.context.get("store_code") or error.context.get("store_error")
    return str(code or type(error).__name__)
