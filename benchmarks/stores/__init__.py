"""txnlog on an S3 server behind the latency of a real object store."""
