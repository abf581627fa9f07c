"""Formats: what each format can do, and how `windrow.inspect` and `windrow verify` treat a path."""
