"""The I/O of `txnlog repair`: reads past damage, and brings a plan onto the root."""
