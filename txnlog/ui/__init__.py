"""The page of `txnlog show`: moments of a root as HTML and SVG, served here or in one file."""
