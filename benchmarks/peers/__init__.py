"""txnlog beside Spark with a Kafka broker, beside Spark with Delta, beside confluent-kafka."""
