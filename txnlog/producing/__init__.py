"""Inside the producer: what gathers, sends and publishes; use txnlog.producer."""
