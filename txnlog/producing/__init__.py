"""The parts of the producer; use txnlog.producer."""
