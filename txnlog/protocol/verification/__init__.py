"""Pure checks of everything a root holds: whole state in, findings out. See txnlog.verifying."""
