"""txnlog: Kafka's transaction system, without brokers, on Delta tables."""
