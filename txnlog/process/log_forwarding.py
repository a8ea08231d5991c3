"""The settings `logger` and `debug` of clients: where the records of txnlog's logger go, and which.

Modules log to one logger of the process, since threads and caches serve several clients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

LOGGER = logging.getLogger("txnlog")


class Forwarding(logging.Handler):
    """Gives records to the handlers of another logger that they do not reach by themselves."""

    def __init__(self, to: logging.Logger) -> None:
        super().__init__()
        self.to = to

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record as if it were made by the other logger."""
        if not self.to.isEnabledFor(record.levelno):
            return
        reached = set(_handlers(LOGGER))
        for handler in _handlers(self.to):
            if handler not in reached and record.levelno >= handler.level:
                handler.handle(record)


def configure(to: logging.Logger | None, *, is_debugging: bool) -> None:
    """Log at INFO for a given logger, at DEBUG if that is asked for; nothing if neither is."""
    if to is None and not is_debugging:
        return
    level = logging.DEBUG if is_debugging else logging.INFO
    if LOGGER.getEffectiveLevel() > level:
        LOGGER.setLevel(level)
    if to is not None and to is not LOGGER:
        given = [each.to for each in LOGGER.handlers if isinstance(each, Forwarding)]
        if to not in given:
            LOGGER.addHandler(Forwarding(to))


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """The handlers that a record of a logger reaches."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None
