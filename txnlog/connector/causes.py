"""Adds the causes of an error to its message, for callers that show only the message.

Spark shows the last error of a Python worker under a shortened traceback, and omits the errors it
was raised from: "no permission to write topic orders" would lose its reason. `line_of_cause` finds
the error message among the hundred lines that Spark adds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from txnlog.errors import TxnLogError
from txnlog.text import printable

P = ParamSpec("P")
R = TypeVar("R")

CAUSES_MAX = 5

_TRACEBACK = "Traceback (most recent call last):"
_PY4J_PREFIXES = (
    "An error occurred while calling",
    "An exception was thrown from the Python worker",
)

logger = logging.getLogger("txnlog")


def reports_causes(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: its TxnLogErrors include their causes, with a traceback of one frame.

    The whole traceback is logged at debug level. Other errors are bugs, or from other code: they
    are raised unchanged.
    """

    @wraps(call)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except TxnLogError as error:
            logger.debug("%s failed", call.__qualname__, exc_info=True)
            complete = with_causes(error)
        raise complete

    return reporting


def items_reporting_causes(items: Iterator[R]) -> Iterator[R]:
    """The same items; a TxnLogError between them includes its causes, as in `reports_causes`."""
    try:
        yield from items
        return
    except TxnLogError as error:
        logger.debug("reading failed", exc_info=True)
        complete = with_causes(error)
    raise complete


def with_causes(error: TxnLogError) -> TxnLogError:
    """A new error of the same type; its message has a line for each cause it does not repeat."""
    first, *lines = error.lines
    for cause in _causes(error):
        text = cause.message if isinstance(cause, TxnLogError) else printable(_first_line(cause))
        if not any(text in line for line in (first, *lines)):
            lines.append(f"Caused by {type(cause).__name__}: {text}")
    return error.replace(first, *lines)


def line_of_cause(error: BaseException) -> str:
    """The line with the error, among all lines of Spark and py4j.

    It is the last line of the Python worker's last traceback; without one, the first line that
    py4j did not add.
    """
    lines = str(error).splitlines()
    starts = [at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    after = lines[starts[-1] + 1 :] if starts else []
    # Frames are indented.
    cause = next((line for line in after if line[:1].strip()), None)
    if cause is None:
        others = (line.strip(" :") for line in lines if not line.startswith(_PY4J_PREFIXES))
        cause = next(filter(None, others), type(error).__name__)
    return cause.strip()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors that an error was raised from, or while handling, the nearest first."""
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        cause = cause and (
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        )
        if cause is None:
            return
        yield cause


def _first_line(error: BaseException) -> str:
    """The first line of an error: stores append pages of debug output."""
    return (str(error).splitlines() or [""])[0]
