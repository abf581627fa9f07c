"""Decodes the features of many serialised tf.train.Examples at once, to columns.

The native core decodes records that are written in a usual way. All others, records with a value
that its feature does not take, and all records where the core is missing are parsed by protobuf one
by one. A record is found bad only there.

Invariant: the values of a record depend on that record and the features alone, not on the other
records. Both ways give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import numpy as np

from windrow.core.text import counted
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.tf_example.features import Column, Feature, cast
from windrow.sources.tf_example.message import Values, parsed, values_of
from windrow.sources.tf_example.rows import ExampleRows, Row

# The way out of errors of records, for callers that declare the features.
GIVE_FEATURES: Final = "; give features= that fit all records"


def decode_examples(
    records: Sequence[bytes],
    features: Mapping[str, Feature],
    *,
    exact: bool = False,
    bad: list[ReadError] | None = None,
) -> dict[str, Column]:
    """Decodes serialised tf.train.Examples to columns.

    Args:
        records: The messages.
        features: The features to decode, by name.
        exact: Whether a record with values of any other feature is a bad one. By default other
            features are left out.
        bad: Takes the errors of bad records, in order, and their rows are left out. By default the
            first of them is raised.

    Returns:
        Columns by name, in the order of `features`: an array `(rows, *shape)`, or a `Ragged` for a
        ragged feature or one of dtype "bytes". They share no memory with `records`.

    Raises:
        ReadError: If a record is not an Example, or a feature is missing in it, or is of another kind,
            length or range. `records` is `(number, number + 1)` of the record in the list, and `why`
            the message without the number.
        ArgumentError: If `features` is empty or not a dict of `Feature`.
        MissingExtraError: If protobuf is needed and is not installed.

    Example:
        >>> from windrow.converters import encode_example
        >>> records = [encode_example({"pixels": bytes([i] * 4), "label": i}) for i in range(3)]
        >>> features = {"pixels": Feature("uint8", (2, 2), raw=True), "label": Feature("int64")}
        >>> columns = decode_examples(records, features)
        >>> columns["pixels"].shape, columns["label"]
        ((3, 2, 2), array([0, 1, 2]))

        A bad record raises an error with its number and the reason, or is left out:

        >>> records[1] = encode_example({"pixels": b"123", "label": 1})
        >>> bad = []
        >>> decode_examples(records, features, bad=bad)["label"]
        array([0, 2])
        >>> bad[0].records, bad[0].why.split(";")[0]
        ((1, 2), "feature 'pixels' has 3 bytes, and uint8 (2, 2) raw takes 4")
    """
    check_features("decode_examples", features)
    rows = ExampleRows(records, features, exact=exact)
    others: dict[int, Row] = {}
    for number in np.flatnonzero(~rows.taken).tolist():
        try:
            others[number] = _row(records[number], features, exact=exact)
        except ReadError as error:
            if bad is None:
                raise _numbered(error, number) from error
            bad.append(_numbered(error, number))
    return rows.columns(others)


def infer_features(records: Sequence[bytes]) -> dict[str, Feature]:
    """Infers features from `records`, a sample of many; `decode_examples` checks them.

    - Numbers, equally many in every record: int64 or float32 of shape `(n,)`, or `()` if it is one.
    - Numbers, more in some records than in others, or in some only: of shape `(None,)`.
    - A value of bytes of one length, 2 or more, in two records or more: uint8 `(n,)`, raw.
    - A value of other bytes: dtype "bytes".

    Returns:
        Features by name, sorted. Decode other records with `exact=True`, so that no record loses a
        feature that was not in the sample.

    Raises:
        ReadError: If a record is not an Example.
        ConversionError: If the records have no features, or a feature of another form.
        MissingExtraError: If protobuf is not installed.

    Example:
        >>> from windrow.converters import encode_example
        >>> records = [encode_example({"text": "a" * i, "label": i}) for i in range(9)]
        >>> for name, feature in infer_features(records).items():
        ...     print(name, feature)
        label int64 ()
        text bytes
    """
    seen: dict[str, list[tuple[int, Values]]] = {}
    for number, record in enumerate(records):
        try:
            found = parsed(record)
        except ReadError as error:
            raise _numbered(error, number) from error
        for name in found:
            values = values_of(found[name])
            if values is not None:
                seen.setdefault(name, []).append((number, values))
    if not seen:
        raise ConversionError(
            f"features: no features to infer in {counted(len(records), 'record')}; give features="
        )
    return {name: _inferred(name, seen[name], len(records)) for name in sorted(seen)}


def check_features(what: str, features: object) -> None:
    """Checks that `features` is a dict of `Feature` by name; `what` is named in messages.

    Raises:
        ArgumentError: If it is not, or is empty.
    """
    if not isinstance(features, Mapping) or not features:
        raise ArgumentError(
            f"{what}: features is a dict of Feature by name, with one or more, got {features!r:.80}"
        )
    for name, feature in features.items():
        if not isinstance(name, str) or not isinstance(feature, Feature):
            raise ArgumentError(
                f"{what}: features has {name!r:.40}: {feature!r:.80}; values are Feature, names str"
            )
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{what}: the name {name!r:.40} is not UTF-8: {error}") from error


def _numbered(error: ReadError, number: int) -> ReadError:
    return ReadError(f"record {number}: {error.why}", records=(number, number + 1), why=error.why)


def _row(record: bytes, features: Mapping[str, Feature], *, exact: bool) -> Row:
    """Decodes the values of one record."""
    found = parsed(record)
    others = [name for name in found if name not in features] if exact else []
    if names := sorted(name for name in others if values_of(found[name]) is not None):
        why = f"has the features {names!r:.200} too, which are not known; give features= with all"
        raise ReadError(why, why=why)
    return {
        name: _value(name, feature, values_of(found[name]) if name in found else None)
        for name, feature in features.items()
    }


def _value(name: str, feature: Feature, values: Values | None) -> bytes:
    if values is None:
        if feature.may_be_missing:
            return b""
        _refuse(name, "is missing", f"{feature} has to be in every record")
    if feature.in_bytes:
        return _from_bytes(name, feature, values)
    dtype = feature.numpy_dtype
    if isinstance(values, list) or (values.dtype == np.int64) != (dtype.kind in "iub"):
        kind = "int64" if dtype.kind in "iub" else "float32"
        _refuse(name, f"is of {_kind(values)}", f"{feature} takes {kind}")
    items = feature.items
    if len(values) != items and (not feature.ragged or len(values) % items):
        _refuse(name, f"has {len(values)} numbers", f"{feature} takes {_size(feature, items)}")
    out, fits = cast(values, dtype)
    if fits is not None and not fits.all():
        _refuse(name, f"has the number {values[~fits][0]!s}", f"{feature} cannot hold it")
    return out.tobytes()


def _from_bytes(name: str, feature: Feature, values: Values) -> bytes:
    if not isinstance(values, list) or len(values) != 1:
        found = f"has {len(values)} values" if isinstance(values, list) else "is"
        _refuse(name, f"{found} of {_kind(values)}", f"{feature} takes one value of bytes")
    data = values[0]
    if feature.opaque:
        return data
    size = feature.item_bytes
    if len(data) % size if feature.ragged else len(data) != size:
        _refuse(name, f"has {len(data)} bytes", f"{feature} takes {_size(feature, size)}")
    if feature.dtype == "bool" and data.strip(b"\0\1"):
        _refuse(name, "has a byte other than 0 and 1", f"{feature} cannot hold it")
    return data


def _size(feature: Feature, size: int) -> str:
    return f"a multiple of {size}" if feature.ragged else str(size)


def _kind(values: Values) -> str:
    return "bytes" if isinstance(values, list) else str(values.dtype)


def _refuse(name: str, found: str, allowed: str) -> NoReturn:
    why = f"feature {name!r} {found}, and {allowed}{GIVE_FEATURES}"
    raise ReadError(why, why=why)


def _inferred(name: str, seen: Sequence[tuple[int, Values]], records: int) -> Feature:
    """Infers one feature; `seen` are its values, with the numbers of their records."""
    first_number, first = seen[0]
    for number, values in seen:
        if _kind(values) != _kind(first):
            raise ConversionError(
                f"features: {name!r} is of {_kind(first)} in record {first_number}, of"
                f" {_kind(values)} in record {number}; leave it out of features=, or decode the"
                " records with a function"
            )
        if isinstance(values, list) and len(values) != 1:
            raise ConversionError(
                f"features: {name!r} has {len(values)} values of bytes in record {number}, and an"
                " array can be made of one only; leave it out of features=, or decode the records"
                " with a function"
            )
    everywhere = len(seen) == records
    if not isinstance(first, list):
        sizes = {len(values) for _, values in seen}
        size = sizes.pop() if everywhere and len(sizes) == 1 else 0
        return Feature(str(first.dtype), {0: (None,), 1: ()}.get(size, (size,)))
    if not everywhere:
        raise ConversionError(
            f"features: {name!r}, of bytes, is in {len(seen)} of {records} records; leave it out of"
            " features=, or decode the records with a function"
        )
    sizes = {len(values[0]) for _, values in seen}
    size = sizes.pop() if len(sizes) == 1 and records > 1 else 0
    return Feature("uint8", (size,), raw=True) if size > 1 else Feature("bytes")
