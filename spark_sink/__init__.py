"""The Spark sink, transactions of `foreachBatch`, and the listener for streaming queries.

What workers of Spark do not need is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sink.listener import TxnLogListener as TxnLogListener
    from spark_sink.reports import QueryReport as QueryReport
    from spark_sink.transactions import Transaction as Transaction
    from spark_sink.transactions import transactional as transactional

__all__ = ["QueryReport", "Transaction", "TxnLogListener", "transactional"]

_HOMES = {
    "QueryReport": "reports",
    "Transaction": "transactions",
    "TxnLogListener": "listener",
    "transactional": "transactions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"spark_sink.{_HOMES[name]}"), name)
