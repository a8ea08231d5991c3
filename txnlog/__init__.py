"""txnlog: Kafka's transaction system, without brokers, on Delta tables.

The names below and `__all__` of `txnlog.admin`, `txnlog.errors`, `txnlog.monitoring`, the modules
of `txnlog.testing`, `txnlog.compat.confluent_kafka` with its modules, `spark_source.sql`,
`spark_sink` and `pyspark_txnlog` are public; all else may change at any time.
Names are imported lazily: Spark's workers import this package, and need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txnlog.process import log_records as _log_records  # noqa: F401  (filters what is logged)

if TYPE_CHECKING:
    from txnlog import errors as errors
    from txnlog.admin import AdminClient as AdminClient
    from txnlog.admin import NewPartitions as NewPartitions
    from txnlog.admin import NewTopic as NewTopic
    from txnlog.admin import OffsetSpec as OffsetSpec
    from txnlog.cluster import Cluster as Cluster
    from txnlog.consumer import Consumer as Consumer
    from txnlog.errors import TxnLogError as TxnLogError
    from txnlog.messages import OFFSET_BEGINNING as OFFSET_BEGINNING
    from txnlog.messages import OFFSET_END as OFFSET_END
    from txnlog.messages import OFFSET_INVALID as OFFSET_INVALID
    from txnlog.messages import OFFSET_STORED as OFFSET_STORED
    from txnlog.messages import ConsumerGroupMetadata as ConsumerGroupMetadata
    from txnlog.messages import Message as Message
    from txnlog.messages import TopicPartition as TopicPartition
    from txnlog.process.version import VERSION as __version__
    from txnlog.producer import Producer as Producer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "AdminClient",
    "Cluster",
    "Consumer",
    "ConsumerGroupMetadata",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "TopicPartition",
    "TxnLogError",
    "__version__",
    "errors",
]

_MODULES = {
    "OFFSET_BEGINNING": "txnlog.messages",
    "OFFSET_END": "txnlog.messages",
    "OFFSET_INVALID": "txnlog.messages",
    "OFFSET_STORED": "txnlog.messages",
    "AdminClient": "txnlog.admin",
    "Cluster": "txnlog.cluster",
    "Consumer": "txnlog.consumer",
    "ConsumerGroupMetadata": "txnlog.messages",
    "Message": "txnlog.messages",
    "NewPartitions": "txnlog.admin",
    "NewTopic": "txnlog.admin",
    "OffsetSpec": "txnlog.admin",
    "Producer": "txnlog.producer",
    "TopicPartition": "txnlog.messages",
    "TxnLogError": "txnlog.errors",
    # For IPython: %load_ext txnlog.
    "load_ipython_extension": "txnlog.ui.extension",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("txnlog.process.version").VERSION
    if name == "errors":
        return import_module("txnlog.errors")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
