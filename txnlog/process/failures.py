"""Errors of work that continues past them: one table that fails stops no other (R37, D59).

Each error is logged when it happens. At the end one error reports all of them, so that an operator
who repairs the first table need not run everything again to learn of the second. A bug, or an error
of a library, is an UnexpectedError of its part; the log has its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from txnlog.errors import FLAGS, TxnLogError, UnexpectedError

logger = logging.getLogger("txnlog")

T = TypeVar("T")
PARTS_SHOWN_MAX = 100
"""Parts that the message of a combined error names; its `errors` are all."""

_BESIDE = "A call that was made beside others"

Together = Callable[[Sequence[Callable[[], T]]], list[T]]


def unexpected(error: Exception, doing: str) -> TxnLogError:
    """A TxnLogError itself; any other error is logged, and an UnexpectedError of `doing`."""
    if isinstance(error, TxnLogError):
        return error
    logger.error("%s failed", doing, exc_info=error)
    wrapped = UnexpectedError(
        f"{doing} failed with {type(error).__name__}: {error}. This is a bug in txnlog or in one "
        "of its libraries; please report it with the traceback in the log."
    )
    wrapped.__cause__ = error
    return wrapped


def caught(call: Callable[[], T], doing: str = _BESIDE) -> T | TxnLogError:
    """What a call returns, or the error that it raises: for calls that are made together."""
    try:
        return call()
    except Exception as error:
        return unexpected(error, doing)


class Failures:
    """Collects the errors that the parts of one work raise. `work` names it in the combined error.

    `level` is that of the log lines: lower where a caller retries the work again and again.
    """

    def __init__(self, work: str, level: int = logging.WARNING) -> None:
        self._work = work
        self._level = level
        self._found: list[tuple[str, TxnLogError]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def of(self, part: str) -> _Part:
        """A `with` block that catches any Exception and keeps it under the name of the part."""
        return _Part(self, part)

    def add(self, part: str, error: Exception) -> None:
        """Keep and log an error; the parts of a combined error were logged before."""
        found = unexpected(error, f"{self._work}: {part}")
        inner = found.context.get("failures")
        if isinstance(inner, tuple):
            self._found += [(f"{part}, {name}", one) for name, one in inner]
            return
        self._found.append((part, found))
        if not isinstance(found, UnexpectedError):
            name = type(found).__name__
            logger.log(self._level, "%s: %s failed: %s: %s", self._work, part, name, found)

    def together(
        self, together: Together[T | TxnLogError], parts: Sequence[tuple[str, Callable[[], T]]]
    ) -> list[T]:
        """The results of the parts that do not fail, in order; their errors are kept.

        `together` makes the calls: ObjectStore.together.
        """
        outcomes = together(
            [partial(caught, call, f"{self._work}: {part}") for part, call in parts]
        )
        results: list[T] = []
        for (part, _), outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, TxnLogError):
                self.add(part, outcome)
            else:
                results.append(outcome)
        return results

    def check(self) -> None:
        """Raise the collected errors: a single one as it is, several as one (see `combined`)."""
        if self._found:
            raise combined(self._work, self._found)


class _Part:
    """One part of the work; see Failures.of."""

    def __init__(self, failures: Failures, part: str) -> None:
        self._failures = failures
        self._part = part

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failures.add(self._part, error)
        return True


def parts_of(error: TxnLogError) -> tuple[TxnLogError, ...]:
    """The errors of a combined error; of any other that error."""
    found = error.context.get("errors")
    return found if isinstance(found, tuple) else (error,)


def combined(work: str, found: list[tuple[str, TxnLogError]]) -> TxnLogError:
    """One error for all; a single one is returned as it is.

    Its class is the nearest common base class, its code that of the first. It is retriable
    only if all are, fatal if any is. `errors` are the errors, `failures` pairs of part and error;
    its cause is the first.
    """
    first = found[0][1]
    if len(found) == 1:
        return first
    errors = tuple(error for _, error in found)
    common = next(kind for kind in type(first).__mro__ if all(isinstance(e, kind) for e in errors))
    lines = [f"{part}: {type(error).__name__}: {error.message}" for part, error in found]
    if len(lines) > PARTS_SHOWN_MAX:
        lines[PARTS_SHOWN_MAX:] = [f"... and {len(lines) - PARTS_SHOWN_MAX} more"]
    fatal = any(error.fatal for error in errors)
    flags = {
        "fatal": fatal,
        "abortable": not fatal and any(error.abortable for error in errors),
        "retriable": all(error.retriable for error in errors),
    }
    assert set(flags) == set(FLAGS)
    raised = common(
        f"{work}: {len(found)} parts failed.",
        *lines,
        code=first.code,
        errors=errors,
        failures=tuple(found),
        **flags,
    )
    assert isinstance(raised, TxnLogError)
    raised.__cause__ = first
    return raised
