"""What was read of a root, as the panels of txnlog.protocol.moments show it."""
