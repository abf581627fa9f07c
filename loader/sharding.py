"""Shards of the records, under the name that Grain has for them."""

from windrow.grain_api.sharding import NoSharding, ShardByJaxProcess, ShardOptions

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardOptions"]
