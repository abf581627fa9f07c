"""Which room may import which. `tests/test_layout.py` enforces the table; ARCHITECTURE.md draws it.

A room is a package, or a module that stands alone. Rooms are listed from the lowest to the highest; a
room imports itself and rooms that its row names, so every import points down. The `__init__` of a
package is a facade: it may import what lies inside its package, and nothing imports it from there.
"""

from __future__ import annotations

from typing import Final

_SOURCES: Final = (
    "windrow.sources",
    "windrow.sources.remote",
    "windrow.sources.zarr",
    "windrow.sources.array_record",
    "windrow.sources.windows",
    "windrow.sources.tf_example",
    "windrow.sources.tfds",
)
_PATHS: Final = (*_SOURCES, "windrow.sources.location", "windrow.sources.detection")
_BASE: Final = ("windrow.errors", "windrow.core")
_BELOW_CHAIN: Final = (
    *_BASE,
    "windrow.transforms",
    "windrow.transforms.nodes",
    *_SOURCES,
    "windrow.sources.location",
    "windrow.sources.detection",
    "windrow.sources.adapt",
    "windrow.workers",
    "windrow.stats",
    "windrow.engine",
)
_CONVERSIONS: Final = (
    "windrow.converters.job",
    "windrow.converters.records",
    "windrow.converters.zarr",
    "windrow.converters.texts",
    "windrow.converters.tfds",
    "windrow.converters.beam",
)

ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "windrow.errors": (),
    "windrow.core": ("windrow.errors",),
    "windrow.sources": _BASE,
    "windrow.transforms": (*_BASE, "windrow.sources"),
    "windrow.transforms.nodes": (*_BASE, "windrow.sources", "windrow.transforms"),
    "windrow.sources.remote": _BASE,
    "windrow.sources.zarr": (*_BASE, *_SOURCES[:2]),
    "windrow.sources.array_record": (*_BASE, *_SOURCES[:2]),
    "windrow.sources.windows": (*_BASE, *_SOURCES[:3]),
    "windrow.sources.tf_example": (*_BASE, *_SOURCES[:2]),
    "windrow.sources.tfds": (*_BASE, *_SOURCES[:2], *_SOURCES[3:4], *_SOURCES[5:6]),
    "windrow.sources.location": (*_BASE, *_SOURCES),
    "windrow.sources.detection": (*_BASE, *_SOURCES, "windrow.sources.location"),
    "windrow.sources.adapt": (*_BASE, *_SOURCES),
    "windrow.workers": (*_BASE, "windrow.transforms", "windrow.transforms.nodes"),
    "windrow.converters.job": (*_BASE, *_PATHS, "windrow.transforms", "windrow.workers"),
    "windrow.converters.records": (*_BASE, *_PATHS, "windrow.transforms", *_CONVERSIONS[:1]),
    "windrow.converters.zarr": (*_BASE, *_PATHS, *_CONVERSIONS[:2]),
    "windrow.converters.texts": (*_BASE, *_PATHS, *_CONVERSIONS[:3]),
    "windrow.converters.tfds": (*_BASE, *_PATHS, *_CONVERSIONS[:3]),
    "windrow.converters.beam": (*_BASE, *_PATHS, *_CONVERSIONS[:5]),
    "windrow.converters.match_shards": (*_BASE, *_PATHS, *_CONVERSIONS),
    "windrow.stats": (*_BASE, *_SOURCES, "windrow.transforms", "windrow.transforms.nodes"),
    "windrow.engine": _BELOW_CHAIN[:-1],
    "windrow.devices": _BELOW_CHAIN,
    "windrow.quality": _BELOW_CHAIN,
    "windrow.explain": (*_BELOW_CHAIN, "windrow.quality"),
    "windrow": (
        *_BELOW_CHAIN,
        "windrow.devices",
        "windrow.quality",
        "windrow.explain",
    ),
    "windrow.grain_api": (*_BELOW_CHAIN, *_CONVERSIONS[:4], "windrow"),
    "windrow.samplers": ("windrow.grain_api",),
    "windrow.sharding": ("windrow.grain_api",),
    "windrow.experimental": (*_BELOW_CHAIN, "windrow", "windrow.grain_api"),
    "windrow.python": (
        *_BELOW_CHAIN,
        "windrow",
        "windrow.grain_api",
        "windrow.samplers",
        "windrow.sharding",
        "windrow.experimental",
    ),
    "windrow.inspection": (*_BELOW_CHAIN, *_CONVERSIONS, "windrow"),
    "windrow.verification": (*_BELOW_CHAIN, *_CONVERSIONS, "windrow", "windrow.inspection"),
    "windrow.formats": (
        *_BELOW_CHAIN,
        *_CONVERSIONS,
        "windrow.inspection",
        "windrow.verification",
    ),
    "windrow.reporting": (
        *_BELOW_CHAIN,
        "windrow.quality",
        "windrow.explain",
        "windrow",
        "windrow.inspection",
    ),
    "windrow.cli": (
        *_BELOW_CHAIN,
        *_CONVERSIONS,
        "windrow",
        "windrow.inspection",
        "windrow.verification",
        "windrow.formats",
    ),
}
# The lines that each package may have. The numbers only fall: `python -m tools.house --write` lowers them.
BUDGETS: Final[dict[str, int]] = {
    "windrow.core": 1765,
    "windrow.sources": 3437,
    "windrow.transforms": 6098,
    "windrow.transforms.nodes": 8823,
    "windrow.sources.remote": 2985,
    "windrow.sources.zarr": 9863,
    "windrow.sources.array_record": 2895,
    "windrow.sources.windows": 4095,
    "windrow.sources.tf_example": 913,
    "windrow.sources.tfds": 2315,
    "windrow.workers": 2067,
    "windrow.converters.job": 3547,
    "windrow.converters.records": 2166,
    "windrow.converters.zarr": 5417,
    "windrow.converters.texts": 1770,
    "windrow.converters.tfds": 1313,
    "windrow.stats": 1090,
    "windrow.engine": 6882,
    "windrow.devices": 1403,
    "windrow.quality": 523,
    "windrow.explain": 2098,
    "windrow": 6211,
    "windrow.grain_api": 3029,
    "windrow.inspection": 1690,
    "windrow.verification": 1066,
    "windrow.formats": 548,
    "windrow.reporting": 657,
    "windrow.cli": 1338,
    "windrow.converters": 295,
}
# What each node must answer; it only falls too.
OTHER_BUDGETS: Final[dict[str, int]] = {
    "methods of Node": 16,
}
# Packages and modules that only pass names on: they may import whatever lies inside them.
FACADES: Final = frozenset(
    {
        "windrow",
        "windrow.__main__",
        "windrow.converters",
        "windrow.multiprocessing",
        "windrow.progress",
        *ROOMS,
    }
)


def room_of(module: str) -> str:
    """The room that holds a module, by the longest name that fits."""
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def may_import(module: str, other: str) -> bool:
    """Whether the table allows an import of the module `other` in `module`."""
    own = room_of(module)
    is_inside = module in FACADES and other.startswith(f"{module.removesuffix('.__main__')}.")
    return is_inside or room_of(other) in {own, *ROOMS[own]}
