"""Metadata of arrays that zarr-python may read: what they need, and what is not handed to it.

Invariant: codecs and dtypes that `check` lets pass are known ones, of which none unpickles or
evaluates anything, or makes objects of Python but texts and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windrow.sources.zarr_bounds import COMPRESSORS

# What TensorStore decodes, as codecs are called in metadata.
_OF_TENSORSTORE: Final = {
    2: ("blosc", "bz2", "zlib", "gzip", "zstd"),
    3: ("bytes", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "crc32c"),
}
# Not among them: pickle, and json2 and msgpack2, which make any objects.
_NUMCODECS: Final = {
    *("adler32", "astype", "base64", "bitround", "blosc", "bz2", "categorize", "crc32", "crc32c"),
    *("delta", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma"),
    *("packbits", "quantize", "shuffle", "vlen-bytes", "vlen-utf8", "zlib", "zstd"),
}
_OBJECT_CODECS: Final = ("vlen-utf8", "vlen-bytes")
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}
_INDEX_CODECS: Final = ([_LITTLE], [_LITTLE, {"name": "crc32c"}])
_DTYPE_SETTINGS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_NUMBER_TYPE: Final = r"[|<>=]?(?:b1|\?|[iu][1248]|f[248]|c(?:8|16)|[SU][1-9]\d{0,5})"
_NUMBER_NAME: Final = r"bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128)"
_TIME_TYPE: Final = r"[<>][mM]8\[\d*[a-zA-Z]+\]"
_V3_TEXTS: Final = ("string", "variable_length_bytes", "bytes")
_V3_NAMED: Final = (
    *("numpy.datetime64", "numpy.timedelta64", "fixed_length_utf32", "null_terminated_bytes"),
)


class RefusedError(Exception):
    """Why metadata is not handed to zarr-python."""


def why_python(meta: Mapping[str, Any]) -> str:
    """Why TensorStore can not read an array of these metadata, in words; '' where it can."""
    version = version_of(meta)
    for what, name, _ in codecs_of(meta):
        if what == "filter" or name not in _OF_TENSORSTORE.get(version, (name,)):
            return f"{what} {name!r}"
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2 and isinstance(dtype, str) and re.fullmatch(r"[|<>][SUOmM].*", dtype):
        return f"dtype {dtype!r}"
    if version == 3 and isinstance(dtype, dict) and dtype.get("name") in _V3_NAMED:
        return f"dtype {dtype['name']!r}"
    if version == 3 and dtype in _V3_TEXTS:
        return f"dtype {dtype!r}"
    dims = meta.get("dimension_names")
    names = [str(name) for name in dims if name] if isinstance(dims, list) else []
    if len(set(names)) < len(names):
        return "two axes have one name"
    return ""


def of_any_length(meta: Mapping[str, Any]) -> bool:
    """Whether values are texts or bytes of any length, which are objects in memory."""
    return meta.get("dtype") == "|O" or meta.get("data_type") in _V3_TEXTS


def version_of(meta: Mapping[str, Any]) -> int:
    """Which format of Zarr they are of; 0 where they do not say."""
    version = meta.get("zarr_format")
    return version if isinstance(version, int) else 0


def codecs_of(meta: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """What each codec is for, its name and settings; those inside shards too."""
    if version_of(meta) == 2:
        filters = meta.get("filters") or []
        for what, item in (
            *(("filter", item) for item in (filters if isinstance(filters, list) else [filters])),
            ("compressor", meta.get("compressor")),
        ):
            if isinstance(item, dict):
                yield what, item.get("id"), {k: v for k, v in item.items() if k != "id"}
            elif item is not None:
                yield what, item, {}
        return
    yield from _codecs_v3(meta.get("codecs"), 0)


def _codecs_v3(chain: Any, depth: int) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    if not isinstance(chain, list) or depth > 2:
        yield "codec", None, {}
        return
    for item in chain:
        name: Any = item
        settings: Any = {}
        if isinstance(item, dict):
            name, settings = item.get("name"), item.get("configuration") or {}
        if not isinstance(settings, dict):
            name, settings = None, {}
        yield "codec", name, settings
        if name == "sharding_indexed":
            for inner in ("codecs", "index_codecs"):
                yield from _codecs_v3(settings.get(inner), depth + 1)


def check(meta: Mapping[str, Any]) -> None:
    """Raise if zarr-python must not see these metadata."""
    version = version_of(meta)
    if version not in _OF_TENSORSTORE:
        raise RefusedError(f"zarr_format {meta.get('zarr_format')!r}")
    names = []
    for what, name, settings in codecs_of(meta):
        plain = name.removeprefix("numcodecs.") if isinstance(name, str) else None
        known = plain in _NUMCODECS
        if not known and not (version == 3 and name in _OF_TENSORSTORE[3]):
            raise RefusedError(f"{what} {name!r}")
        for key in _DTYPE_SETTINGS:
            value = settings.get(key)
            if value is not None and not is_plain_type(value):
                raise RefusedError(f"{what} {name!r} with {key} {value!r}")
        if plain == "lzma" and settings.get("format", 1) not in (0, 1, 2):
            raise RefusedError(f"{what} 'lzma' with format {settings.get('format')!r}")
        names.append(plain)
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2:
        objects = dtype == "|O" and sum(name in _OBJECT_CODECS for name in names) == 1
        if not objects and not is_plain_type(dtype):
            raise RefusedError(f"dtype {dtype!r}")
    elif isinstance(dtype, dict):
        if dtype.get("name") not in _V3_NAMED:
            raise RefusedError(f"dtype {dtype.get('name')!r}")
    elif not is_plain_type(dtype) and dtype not in _V3_TEXTS:
        raise RefusedError(f"dtype {dtype!r}")


def compressor_of(meta: Mapping[str, Any]) -> str | None:
    """The codec that decompresses a stored chunk first of all; None if there is none.

    Raises if there are more of them, or another codec comes before it: such data could not be
    bounded.
    """
    if version_of(meta) == 2:
        names = [str(name) for _, name, _ in codecs_of(meta)]
    else:
        chain = [item if isinstance(item, dict) else {"name": item} for item in meta["codecs"]]
        if any(item.get("name") == "sharding_indexed" for item in chain):
            settings = chain[0].get("configuration") or {}
            if len(chain) > 1 or settings.get("index_codecs") not in _INDEX_CODECS:
                raise RefusedError("codec 'sharding_indexed' with others around it")
            chain = [
                item if isinstance(item, dict) else {"name": item} for item in settings["codecs"]
            ]
        names = [str(item.get("name")) for item in chain]
        if "sharding_indexed" in names:
            raise RefusedError("codec 'sharding_indexed' in shards")
        while names and names[-1] == "crc32c":  # it comes after what is stored
            names.pop()
    plain = [name.removeprefix("numcodecs.") for name in names]
    packed = [k for k, name in enumerate(plain) if name in COMPRESSORS]
    if not packed:
        return None
    if packed != [len(plain) - 1]:
        raise RefusedError("it is compressed twice, or encoded further after that")
    return plain[-1]


def is_plain_type(value: Any) -> bool:
    """Whether `value` names numbers, times, or texts of one length: no objects, no fields."""
    return isinstance(value, str) and any(
        re.fullmatch(pattern, value) for pattern in (_NUMBER_TYPE, _NUMBER_NAME, _TIME_TYPE)
    )


def index_of_shards(meta: Mapping[str, Any]) -> dict[str, bool]:
    """Where the index of a shard is, and whether a checksum follows it."""
    settings = next(s for _, name, s in codecs_of(meta) if name == "sharding_indexed")
    return {
        "at_end": settings.get("index_location", "end") == "end",
        "checksum": len(settings["index_codecs"]) > 1,
    }
