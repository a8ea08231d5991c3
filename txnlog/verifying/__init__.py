"""The I/O of `txnlog verify`: reads everything below a root, and damaged tables twice."""
