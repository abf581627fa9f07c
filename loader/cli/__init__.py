"""The command line `windrow`."""
