"""The Spark sink, and the listener for streaming queries.

The listener is imported on first use: Spark's workers import the sink and do not need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sink.listener import TxnLogListener as TxnLogListener
    from spark_sink.reports import QueryReport as QueryReport

__all__ = ["QueryReport", "TxnLogListener"]


def __getattr__(name: str) -> Any:
    if name == "TxnLogListener":
        from spark_sink.listener import TxnLogListener

        return TxnLogListener
    if name == "QueryReport":
        from spark_sink.reports import QueryReport

        return QueryReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
