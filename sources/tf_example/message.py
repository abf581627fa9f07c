"""Encodes and decodes tf.train.Example messages without TensorFlow.

The message types are described here and built at first use, in a descriptor pool of their own.
TensorFlow registers its Example in the default pool, where two types of one name would clash.

Invariant: TensorFlow reads the messages of `encode_example`, and `decode_example` reads those that
TensorFlow writes. Equal mappings give equal bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, ReadError, SourceError

Values: TypeAlias = list[bytes] | npt.NDArray[np.int64] | npt.NDArray[np.float32]

# Tags of the lists in a Feature, one for each kind.
BYTES_LIST: Final = 0x0A
FLOAT_LIST: Final = 0x12
INT64_LIST: Final = 0x1A
_PURPOSE = "tf.train.Example"


def decode_example(record: bytes, *, features: Sequence[str] | None = None) -> dict[str, Values]:
    """Decodes the features of a serialised tf.train.Example.

    Args:
        record: The message.
        features: Names of the features to decode. The record must have all of them. By default all
            features are decoded.

    Returns:
        Values by name, sorted unless `features` gives the order: a list of bytes, an int64 array
        `(n,)` or a float32 array `(n,)`, with the bits of every number as they are stored.

    Raises:
        ReadError: If the record is not a tf.train.Example.
        SourceError: If a feature is missing, or is of an unknown kind.
        MissingExtraError: If protobuf is not installed.
    """
    try:
        found = parsed(record)
    except ReadError as error:
        raise ReadError(f"decode_example: {error}", why=error.why) from error
    names = sorted(found) if features is None else features
    out: dict[str, Values] = {}
    for name in names:
        # Asking a protobuf map for a missing key would add it.
        if name not in found:
            raise SourceError(
                f"decode_example: the example has no feature {name!r}; it has {sorted(found)}"
            )
        values = values_of(found[name])
        if values is None:
            raise SourceError(
                f"decode_example: feature {name!r} is of no known kind (bytes, int64 or float), or"
                " was written without values; name the others in features=[...] to leave it out"
            )
        out[name] = values
    return out


def encode_example(features: Mapping[str, object]) -> bytes:
    """Serialises a tf.train.Example.

    Features are written sorted by name, so that equal values give equal bytes.

    Args:
        features: By name: bytes, str (as UTF-8), a whole number, a float, a sequence of one of
            these, or a NumPy array, which is flattened (an Example keeps no shapes). Integers and
            booleans are stored as int64, all floats as float32.

    Raises:
        ArgumentError: If a name is not a str, a value of another type, text not UTF-8, or an
            integer does not fit int64.
        MissingExtraError: If protobuf is not installed.

    Example:
        >>> encode_example({"label": 5}).hex(" ")
        '0a 10 0a 0e 0a 05 6c 61 62 65 6c 12 05 1a 03 0a 01 05'
    """
    for name in features:
        if not isinstance(name, str):
            raise ArgumentError(f"encode_example: a feature's name is a str, got {name!r}")
        _utf8(name, name)
    # One by one, since protobuf has an order of its own.
    entries = b"".join(_entry(name, features[name]) for name in sorted(features))
    return _framed(entries) if features else b""


def parsed(record: bytes) -> Mapping[str, Any]:
    """Parses a serialised tf.train.Example by protobuf; `values_of` takes its features.

    Indexing the mapping with a missing name would add that name: check with `in` first.

    Raises:
        ReadError: If the record is not a tf.train.Example.
        MissingExtraError: If protobuf is not installed.
    """
    message = example_class()()
    try:
        message.ParseFromString(record)
    except optional("google.protobuf.message", _PURPOSE).DecodeError as error:
        why = f"{len(record)} bytes that are not a tf.train.Example: {error}"
        raise ReadError(why, why=why) from error
    found: Mapping[str, Any] = message.features.feature
    return found


def values_of(feature: Any) -> Values | None:
    """The values of a feature from `parsed`; None if it is of an unknown kind."""
    match feature.WhichOneof("kind"):
        case "bytes_list":
            return list(feature.bytes_list.value)
        case "int64_list":
            return np.array(feature.int64_list.value, dtype=np.int64)
        case "float_list":
            floats = feature.float_list
            size_bytes = 4 * len(floats.value)
            if not size_bytes:
                return np.empty(0, np.float32)
            # As bytes: Python's floats would change signalling NaNs. The numbers are the last bytes
            # once unknown fields are discarded.
            floats.DiscardUnknownFields()
            stored = floats.SerializeToString()
            return np.frombuffer(stored, "<f4", offset=len(stored) - size_bytes).astype(np.float32)
        case _:
            return None


def _entry(name: str, value: object) -> bytes:
    """Features of one name."""
    features = example_class()().features
    feature = features.feature[name]
    if isinstance(value, bytes | str):
        value = [value]
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes | str):
        feature.bytes_list.value.extend(_as_bytes(item, name) for item in value)
    elif (numbers := _numbers(value, name)).dtype.kind == "i":
        feature.int64_list.SetInParent()
        feature.int64_list.value.extend(numbers.tolist())
    else:
        feature.float_list.SetInParent()
        if numbers.size:
            # As bytes, since Python's floats would change signalling NaNs.
            feature.float_list.MergeFromString(_framed(numbers.tobytes()))
    serialised: bytes = features.SerializeToString()
    return serialised


def _framed(data: bytes) -> bytes:
    """The message whose first field holds `data`, whatever its type."""
    framed: bytes = _bytes_list_class()(value=[data]).SerializeToString()
    return framed


def _as_bytes(item: object, name: str) -> bytes:
    if isinstance(item, str):
        return _utf8(item, name)
    if isinstance(item, bytes):
        return item
    raise _unfit(name, f"a list of bytes with {type(item).__name__} in it")


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"encode_example: feature {name!r}: {error}") from error


def _numbers(value: object, name: str) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """The numbers as they are stored, flat."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _unfit(name, f"a list of unequal parts ({error})") from error
    if array.size == 0 and not isinstance(value, np.ndarray | np.generic):
        raise _unfit(name, "an empty list, which has no type: give numpy.array([], dtype)")
    if array.dtype.kind == "f":
        return array.astype("<f4").reshape(-1)
    if array.dtype.kind in "iub":
        if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise _unfit(name, f"an integer that does not fit int64: {array.max()}")
        return array.astype(np.int64).reshape(-1)
    if array.dtype.kind == "S" or array.dtype.kind == "U":
        raise _unfit(name, "an array of strings, which drops trailing NULs: give a list of bytes")
    raise _unfit(name, f"{type(value).__name__} (NumPy dtype {array.dtype})")


def _unfit(name: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"encode_example: feature {name!r} is {what}; an Example holds bytes, int64 and float32"
    )


@functools.cache
def _bytes_list_class() -> Any:
    factory = optional("google.protobuf.message_factory", _PURPOSE)
    return factory.GetMessageClass(
        example_class().DESCRIPTOR.file.message_types_by_name["BytesList"]
    )


@functools.cache
def example_class() -> Any:
    """Protobuf's class for Example messages, with the same wire format as TensorFlow's."""
    descriptors = optional("google.protobuf.descriptor_pb2", _PURPOSE)
    pools = optional("google.protobuf.descriptor_pool", _PURPOSE)
    factory = optional("google.protobuf.message_factory", _PURPOSE)
    kind = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(
        name="windrow/example.proto", package="windrow", syntax="proto3"
    )

    def add(parent: Any, name: str, *fields: tuple[str, int, int, str, bool]) -> Any:
        message = parent.add(name=name)
        for number, (field, type_, label, type_name, in_oneof) in enumerate(fields, start=1):
            added = message.field.add(name=field, number=number, type=type_, label=label)
            if type_name:
                added.type_name = f".windrow.{type_name}"
            if in_oneof:
                added.oneof_index = 0
        return message

    one, many, sub = kind.LABEL_OPTIONAL, kind.LABEL_REPEATED, kind.TYPE_MESSAGE
    add(file.message_type, "BytesList", ("value", kind.TYPE_BYTES, many, "", False))
    add(file.message_type, "FloatList", ("value", kind.TYPE_FLOAT, many, "", False))
    add(file.message_type, "Int64List", ("value", kind.TYPE_INT64, many, "", False))
    feature = add(
        file.message_type,
        "Feature",
        ("bytes_list", sub, one, "BytesList", True),
        ("float_list", sub, one, "FloatList", True),
        ("int64_list", sub, one, "Int64List", True),
    )
    feature.oneof_decl.add(name="kind")
    features = add(
        file.message_type,
        "Features",
        ("feature", sub, many, "Features.FeatureEntry", False),
    )
    entry = add(
        features.nested_type,
        "FeatureEntry",
        ("key", kind.TYPE_STRING, one, "", False),
        ("value", sub, one, "Feature", False),
    )
    entry.options.map_entry = True
    add(file.message_type, "Example", ("features", sub, one, "Features", False))
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return factory.GetMessageClass(pool.FindMessageTypeByName("windrow.Example"))
