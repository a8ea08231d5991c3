"""The Spark source of format `txnlog`: reads topics as streams and batches."""
