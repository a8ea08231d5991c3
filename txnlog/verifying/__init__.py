"""The shell of `txnlog verify`: reads everything below a root, twice where damage is found."""
