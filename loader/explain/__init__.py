"""`explain()`: a chain, its cost and advice, before a record is read."""
