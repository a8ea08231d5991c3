"""txnlog compared with Spark and a Kafka broker, Spark and Delta, and confluent-kafka."""
