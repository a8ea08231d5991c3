"""Spark's source for format `txnlog`: streams and batches of records from topics."""
