"""Delta tables of others that take part in transactions: what may be written to them, and when."""
