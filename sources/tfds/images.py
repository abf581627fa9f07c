"""Decodes images to arrays by Pillow.

Where a file has the channels and depth of its feature, its pixels are as Pillow decodes them, and so
as `tfds.data_source` gives them without OpenCV. All decoders give the same pixels for PNG, BMP and
GIF. For JPEG and lossy WebP they differ a little, TensorFlow's by up to some 10 of 255. A file with
other channels or depth is converted as TensorFlow does it, with two exceptions: colours converted to
grey may differ by 1, and a palette in one channel stays its numbers, as in `tfds.data_source`.

Invariant: an image has the axes, channels and dtype of its feature, in whatever encoding of tfds it
is stored. An image that Pillow cannot decode to them without loss raises an error.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from windrow.core.machine import usable_cores
from windrow.core.optional_imports import optional
from windrow.core.threads import DaemonPool
from windrow.errors import ReadError
from windrow.sources.tf_example.features import Array
from windrow.sources.tfds.features import Leaf

# What needs Pillow, and the extra that installs it.
_NEEDED: Final = ("images=True", "images")
# Starting threads is not worth it for fewer images.
_FEWEST: Final = 8

# The formats that datasets hold. Some of Pillow's other formats run programs.
_FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_DEPTH_AT: Final = 24  # position of the bits per channel in a PNG file
_MODES: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Modes with more than eight bits a channel.
_DEEP: Final = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def decode_images(encoded: Sequence[bytes], leaf: Leaf) -> list[Array | ReadError]:
    """Decodes images in threads, one per core.

    Args:
        encoded: The files: PNG, JPEG, BMP, GIF, PPM, TIFF, WebP.
        leaf: Their feature.

    Returns:
        For each image an array `(height, width, channels)` of the feature's dtype, or `(frames,
        height, width, channels)` where the feature has four axes; an error for a bad image.

    Raises:
        MissingExtraError: If Pillow is not installed.
    """
    pillow = optional("PIL.Image", *_NEEDED)

    def decode(data: bytes) -> Array | ReadError:
        try:
            return _decoded(pillow, data, leaf)
        except ReadError as error:
            return error
        except pillow.UnidentifiedImageError:  # its message has the address of the bytes
            why = f"is not an image that Pillow decodes: not one of {', '.join(_FORMATS)}"
            return ReadError(why, why=why)
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders raise errors of any type
            why = f"is not an image that Pillow decodes: {type(error).__name__}: {error}"
            return ReadError(why, why=why)

    if len(encoded) < _FEWEST or usable_cores() == 1:
        return [decode(data) for data in encoded]
    share = -(-len(encoded) // usable_cores())
    parts = [encoded[at : at + share] for at in range(0, len(encoded), share)]
    with DaemonPool(len(parts), "windrow-images") as pool:
        done = pool.map(lambda part: [decode(data) for data in part], parts)
        return [one for part in done for one in part]


def check_images() -> None:
    """Checks that images can be decoded.

    Raises:
        MissingExtraError: If Pillow is not installed.
    """
    optional("PIL.Image", *_NEEDED)


def _decoded(pillow: Any, data: bytes, leaf: Leaf) -> Array:
    deep = data.startswith(_PNG) and data[_DEPTH_AT : _DEPTH_AT + 1] == b"\x10"
    with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
        if len(leaf.shape) == 4:
            frames = []
            for number in range(getattr(image, "n_frames", 1)):
                image.seek(number)
                frames.append(_pixels(image, leaf, deep=deep))
            out = np.stack(frames)
        else:
            out = _pixels(image, leaf, deep=deep)
    if leaf.dtype == "float32":
        out = out.view(np.float32)
    if not all(size in (None, found) for size, found in zip(leaf.shape, out.shape, strict=True)):
        raise _unfit(f"is an image of shape {out.shape}, and its feature has {leaf.shape}")
    return out


def _pixels(image: Any, leaf: Leaf, *, deep: bool) -> Array:
    """The pixels of an image, or of its present frame: `(height, width, channels)`.

    `deep` is whether the file has 16 bits a channel.
    """
    channels = 4 if leaf.dtype == "float32" else leaf.shape[-1]
    if image.mode in _DEEP:
        wide = np.asarray(image)[..., np.newaxis]
        if leaf.dtype == "uint16":
            wide = wide.astype(np.uint16)
        else:
            wide = (wide >> 8).astype(np.uint8)
        out = np.repeat(wide, channels or 1, axis=-1)
        if channels in (2, 4):  # the last one is opacity: opaque
            out[..., -1] = np.iinfo(out.dtype).max
        return out
    if leaf.dtype == "uint16" and deep:
        raise _unfit("has 16 bits in each of several channels, which Pillow does not decode")
    mode = _MODES.get(channels or len(image.getbands()), "RGB")
    if image.mode == "P" and not channels:
        mode = "RGB"
    # In one channel, a palette's numbers are kept: they are usually classes.
    if image.mode != mode and (image.mode, channels) != ("P", 1):
        image = image.convert(mode)
    out = np.array(image)
    out = out[..., np.newaxis] if out.ndim == 2 else out
    # Eight bits become sixteen by writing the same byte twice.
    return out.astype(np.uint16) * np.uint16(257) if leaf.dtype == "uint16" else out


def _unfit(why: str) -> ReadError:
    return ReadError(why, why=why)
