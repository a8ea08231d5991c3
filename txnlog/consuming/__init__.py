"""Inside the consumer: groups, positions and fetching; use txnlog.consumer."""
