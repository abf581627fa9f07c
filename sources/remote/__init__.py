"""Reads byte ranges of remote files: stores, limits, a cache."""

from windrow.sources.remote.options import RemoteOptions, is_remote_source

__all__ = ["RemoteOptions", "is_remote_source"]
