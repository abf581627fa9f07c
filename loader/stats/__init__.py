"""Counters and clocks of a running iterator, and what `stats()` returns."""
