"""Runs the tests that Grain's wheel ships against Windrow: `make test-grain`.

The files are read from the installed wheel. What they import of Grain, also of its internal modules, is
Windrow's under those names: `names.py`. `listed.toml` has the cases that fail, each with the reason.
"""
