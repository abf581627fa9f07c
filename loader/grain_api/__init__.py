"""Grain's names beyond the chain: data loaders, samplers, shards, and its experimental classes.

Each is thin, over the methods of the chain. `windrow.samplers`, `windrow.sharding`, `windrow.python`
and `windrow.experimental` pass the names on, each under the module where Grain has it.
"""
