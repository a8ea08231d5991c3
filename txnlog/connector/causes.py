"""Errors that hold their causes in their own message, for callers that show nothing else.

Spark shows the last error of a Python worker under a shortened traceback, and drops what it was
raised from: of "no permission to write topic orders" the reason would be gone. And around what it
shows are a hundred lines of its own, of which `line_of_cause` finds the one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from txnlog.errors import TxnLogError

P = ParamSpec("P")
R = TypeVar("R")

CAUSES_MAX = 5

_TRACEBACK = "Traceback (most recent call last):"
_PREAMBLES = ("An error occurred while calling", "An exception was thrown from the Python worker")

logger = logging.getLogger("txnlog")


def reports_causes(call: Callable[P, R]) -> Callable[P, R]:
    """A function whose TxnLogErrors tell their causes, in one traceback of one frame.

    The whole traceback goes to the log at debug level. Other errors are bugs, or somebody else's:
    they pass as they are.
    """

    @wraps(call)
    def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except TxnLogError as error:
            logger.debug("%s failed", call.__qualname__, exc_info=True)
            told = with_causes(error)
        raise told

    return telling


def items_reporting_causes(items: Iterator[R]) -> Iterator[R]:
    """The same items; a TxnLogError on the way tells its causes, as with `reports_causes`."""
    try:
        yield from items
        return
    except TxnLogError as error:
        logger.debug("reading failed", exc_info=True)
        told = with_causes(error)
    raise told


def with_causes(error: TxnLogError) -> TxnLogError:
    """The same kind of error, alone; a line for each cause that its message does not repeat."""
    message = error.message
    for cause in _causes(error):
        text = cause.message if isinstance(cause, TxnLogError) else _first_line(cause)
        if text not in message:
            message += f"\nCaused by {type(cause).__name__}: {text}"
    return type(error)(message, **error.context)


def line_of_cause(error: BaseException) -> str:
    """The line that says what went wrong, of all that Spark and py4j say.

    The error that a Python worker's last traceback ends with; without one, the first line that is
    not py4j's own.
    """
    lines = str(error).splitlines()
    starts = [at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    after = lines[starts[-1] + 1 :] if starts else []
    # Frames are indented.
    found = next((line for line in after if line[:1].strip()), None)
    if found is None:
        told = (line.strip(" :") for line in lines if not line.startswith(_PREAMBLES))
        found = next(filter(None, told), type(error).__name__)
    return found.strip()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error was raised from or while handling, the nearest first."""
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        cause = cause and (
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        )
        if cause is None:
            return
        yield cause


def _first_line(error: BaseException) -> str:
    """Stores append pages of debug output to their errors."""
    return (str(error).splitlines() or [""])[0]
