"""The level of logger `txnlog` in Spark's Python workers, where the user's code never runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from txnlog.errors import ConfigError

LEVEL = "TXNLOG_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure_logging(environ: Mapping[str, str] = os.environ) -> None:
    """Set the level from TXNLOG_LOG_LEVEL; log to stderr if the logger has no handler.

    Without the variable nothing changes. Raises ConfigError.
    """
    level = environ.get(LEVEL)
    if level is None:
        return
    if level.upper() not in LEVELS:
        raise ConfigError(f"{LEVEL}={level!r}: it takes {', '.join(LEVELS)}.", option=LEVEL)
    logger = logging.getLogger("txnlog")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
