"""Figures of txnlog, measured on this machine: `make bench`."""

import os

# No peer syncs what it acknowledges: Kafka's broker, Spark's Delta writer and delta-rs do not. So
# neither do the roots of the benchmarks, of all their processes; what syncing costs has a figure of
# its own.
os.environ["TXNLOG_FSYNC"] = "false"
