"""What `txnlog repair` makes of a damaged root: from what is whole to the commits that mend it."""
