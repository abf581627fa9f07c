"""Reads byte ranges of remote files: transports, retries, limits."""

from windrow.sources.remote.options import RemoteOptions, is_remote_source

__all__ = ["RemoteOptions", "is_remote_source"]
