"""Records of logger "txnlog" are printable: a client.id with a line break forges no line of a log.

Importing this installs a filter, so the package does; a filter sees no records of child loggers.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

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
    found = traceback.TracebackException(type(error), error, error.__traceback__)
    before = "".join(found.format()).rstrip("\n")
    _make_messages_printable(found)
    shown = "\n".join(map(printable, "".join(found.format()).rstrip("\n").split("\n")))
    if shown != before and record.exc_text is None:
        # Formatters take this before they make their own.
        record.exc_text = shown


def _make_messages_printable(error: Any) -> None:
    """Each text of the error, its causes and its parts on one line; lines of TxnLogErrors are ours.

    A formatted note is no longer told from a line of the traceback.
    """
    if not issubclass(error.exc_type, TxnLogError):
        error._str = printable(error._str)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, (list, tuple)):
        error.__notes__ = [printable(str(note)) for note in notes]
    parts = getattr(error, "exceptions", None) or ()
    for each in (error.__cause__, error.__context__, *parts):
        if each is not None:
            _make_messages_printable(each)


logging.getLogger("txnlog").addFilter(make_printable)
