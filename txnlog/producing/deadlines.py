"""Calls with a time-out: a retriable error is retried until the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txnlog.errors import BufferExhaustedError, OperationTimedOutError, TxnLogError
from txnlog.process.clock import Clock
from txnlog.process.failures import parts_of
from txnlog.process.retries import Retries, is_of_store, place_of

T = TypeVar("T")

BACKOFF_MS_MIN = 5
BACKOFF_MS_MAX = 1_000


class Deadline:
    """The deadline of one user call, whose name `call` is in the errors.

    A storage call under way is not interrupted: the user call may exceed its deadline by one.
    """

    def __init__(
        self,
        clock: Clock,
        retries: Retries,
        call: str,
        timeout_ms: float,
        *,
        backoff_ms_max: float = BACKOFF_MS_MAX,
    ) -> None:
        self._clock = clock
        self._retries = retries
        self._call = call
        self._timeout_ms = timeout_ms
        self._end_ms = clock.boot_ms() + timeout_ms
        self._backoff_ms: float = BACKOFF_MS_MIN
        self._backoff_ms_max = backoff_ms_max

    @property
    def remaining_ms(self) -> float:
        return max(0.0, self._end_ms - self._clock.boot_ms())

    def retry(self, attempt: Callable[[], T]) -> T:
        """Call until it does not raise a retriable error. Raises OperationTimedOutError."""
        while True:
            try:
                found = attempt()
                self._retries.worked(self._call)
                return found
            except TxnLogError as error:
                if not error.retriable:
                    raise
                if is_of_store(error) and self.remaining_ms > 0:
                    self._say_retried(error)
                self.pause(error)

    def _say_retried(self, error: TxnLogError) -> None:
        """The next commit to the table that failed says that it works again."""
        place = place_of(parts_of(error)[0]) or self._call
        until = f"for up to {self.remaining_ms / 1000:.0f} s"
        self._retries.failed(place, self._call, error, until=until)

    def pause(self, error: TxnLogError | None) -> None:
        """Back off before the next attempt. Raises OperationTimedOutError after the deadline."""
        if self.remaining_ms <= 0:
            raise self.over(error) from error
        self._clock.sleep_ms(min(self._backoff_ms, self.remaining_ms))
        self._backoff_ms = min(2 * self._backoff_ms, self._backoff_ms_max)

    def over(self, error: TxnLogError | None) -> OperationTimedOutError:
        """The error of a call whose deadline has passed; `error` is the last that it met."""
        why = f" The last error: {error.message}" if error is not None else ""
        return OperationTimedOutError(
            f"{self._call} did not end within {self._timeout_ms / 1000:g} s. Call it again: it "
            f"continues where it stopped.{why}",
            call=self._call,
        )


def exhausted(memory_bytes: int, block_ms: int, error: TxnLogError | None) -> BufferExhaustedError:
    """The error of a produce() without room before its deadline; `error` is the last of a send."""
    return BufferExhaustedError(
        f"buffer.memory={memory_bytes} bytes stayed full for max.block.ms={block_ms}; the record "
        "was not taken. Call poll() or flush(), and produce it again."
        f"{f' The last error: {error.message}' if error is not None else ''}"
    )
