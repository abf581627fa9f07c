"""Samplers for `windrow.DataLoader`, under the name that Grain has for them."""

from windrow.grain_api.samplers import IndexSampler, Sampler, SequentialSampler

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]
