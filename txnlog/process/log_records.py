"""Records of logger "txnlog" are printable: a client.id with a line break forges no line of a log.

Importing this installs a filter, so the package does; a filter sees no records of child loggers.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

from txnlog.errors import TxnLogError
from txnlog.text import printable


def make_printable(record: logging.LogRecord) -> bool:
    """A filter that passes every record, and changes one with text that is not printable.

    Others keep their arguments, by which log services group them. Lines of a traceback stay lines.
    """
    try:
        message = record.getMessage()
        if printable(message) != message:
            if isinstance(record.args, tuple):
                # The parts of a combined error are lines of ours.
                shown = (e.message if isinstance(e, TxnLogError) else e for e in record.args)
                record.args = tuple(shown)
            record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            _make_traceback_printable(record, record.exc_info[1])
    except Exception:
        # Handlers report what cannot be formatted.
        return True
    return True


def _make_traceback_printable(record: logging.LogRecord, error: BaseException) -> None:
    said = [str(each) for each in _chained(error) if not isinstance(each, TxnLogError)]
    wrong = [text for text in said if printable(text) != text]
    if wrong and record.exc_text is None:
        lines = "".join(traceback.format_exception(error)).rstrip("\n")
        for text in wrong:
            lines = lines.replace(text, printable(text))
        # Formatters take this before they make their own.
        record.exc_text = lines


def _chained(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised from, or beside."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__, error.__context__]


logging.getLogger("txnlog").addFilter(make_printable)
