"""Work that failed, and is left alone for a while before it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from txnlog.errors import TxnLogError
from txnlog.process.clock import Clock

K = TypeVar("K")


class BackOffs(Generic[K]):
    """Keys of work that failed: each is left alone for `pause_ms`, then for twice as long every
    time, at most for `pause_ms_max`, until it works.
    """

    def __init__(self, clock: Clock, *, pause_ms: int, pause_ms_max: int) -> None:
        self._clock = clock
        self._pause_ms = pause_ms
        self._pause_ms_max = pause_ms_max
        self._failed: dict[K, tuple[int, int, TxnLogError]] = {}
        """Until when, the pause, the error."""

    def __bool__(self) -> bool:
        return bool(self._failed)

    def error_of(self, key: K) -> TxnLogError | None:
        """What the work failed with, while it is left alone."""
        until_ms, _, error = self._failed.get(key, (0, 0, None))
        return error.replace() if error is not None and self._clock.boot_ms() < until_ms else None

    @contextmanager
    def after_failure(
        self, key: K, counts: Callable[[TxnLogError], bool] = lambda error: True
    ) -> Iterator[None]:
        """Do the work of a key in the block; leave it alone after an error that counts."""
        try:
            yield
        except TxnLogError as error:
            if counts(error):
                last = self._failed.get(key)
                pause_ms = min(2 * last[1], self._pause_ms_max) if last else self._pause_ms
                self._failed[key] = self._clock.boot_ms() + pause_ms, pause_ms, error.replace()
            raise
        self._failed.pop(key, None)

    def keep_if(self, is_kept: Callable[[K], bool]) -> None:
        """Forget all others."""
        self._failed = {key: one for key, one in self._failed.items() if is_kept(key)}
