"""Examples to columns: the features of many serialised tf.train.Examples at once.

Records of one layout are cut up by NumPy. All others, and those with a value that its feature does
not take, go through protobuf one by one: only there is a record found bad.

Invariant: what a record becomes depends on that record and the features alone, not on the records
beside it: the same bits on both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import numpy as np

from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.example import Values, parsed, values_of
from windrow.sources.example_blocks import Filling, fill_by_layouts
from windrow.sources.features import Array, Column, Feature, cast

# The way out of errors of records, where those who read them say what features they have.
GIVE_FEATURES: Final = "; give features= that fit all records"


def decode_examples(
    records: Sequence[bytes],
    features: Mapping[str, Feature],
    *,
    exact: bool = False,
    bad: list[ReadError] | None = None,
) -> dict[str, Column]:
    """The columns of serialised tf.train.Examples.

    Args:
        records: The messages.
        features: What to take of each, by name.
        exact: Whether a record with values of a feature beside these is a bad one. By default what
            is not named is left out.
        bad: Takes the errors of bad records, in order, and their rows are left out. By default the
            first of them is raised.

    Returns:
        By name, in the order of `features`: an array `(rows, *shape)`, or a `Ragged` of a ragged
        feature or one of dtype "bytes". They share no memory with `records`.

    Raises:
        ReadError: If a record is no Example, or a feature is missing in it, or is of another kind,
            length or range. `records` is `(number, number + 1)` of the record in the list, and `why`
            the message without the number.
        ArgumentError: If `features` is empty or no dict of `Feature`.
        MissingExtraError: If protobuf is needed and is not installed.

    Example:
        >>> from windrow.converters import encode_example
        >>> records = [encode_example({"pixels": bytes([i] * 4), "label": i}) for i in range(3)]
        >>> features = {"pixels": Feature("uint8", (2, 2), raw=True), "label": Feature("int64")}
        >>> columns = decode_examples(records, features)
        >>> columns["pixels"].shape, columns["label"]
        ((3, 2, 2), array([0, 1, 2]))

        A bad record is an error that says which and why, or is left out:

        >>> records[1] = encode_example({"pixels": b"123", "label": 1})
        >>> bad = []
        >>> decode_examples(records, features, bad=bad)["label"]
        array([0, 2])
        >>> bad[0].records, bad[0].why.split(";")[0]
        ((1, 2), "feature 'pixels' has 3 bytes, and uint8 (2, 2) raw takes 4")
    """
    check_features("decode_examples", features)
    fillings = {name: Filling(feature, len(records)) for name, feature in features.items()}
    kept = np.ones(len(records), np.bool_)
    for number in fill_by_layouts(records, fillings, exact=exact).tolist():
        try:
            row = _row(records[number], fillings, exact=exact)
        except ReadError as error:
            if bad is None:
                raise _numbered(error, number) from error
            bad.append(_numbered(error, number))
            kept[number] = False
        else:
            for name, value in row.items():
                fillings[name].put_row(number, value)
    return {name: filling.column(kept) for name, filling in fillings.items()}


def infer_features(records: Sequence[bytes]) -> dict[str, Feature]:
    """What the features of `records`, a sample of many, seem to be; `decode_examples` checks it.

    - Numbers, equally many in every record: int64 or float32 of shape `(n,)`, or `()` if it is one.
    - Numbers, more in some records than in others, or in some only: of shape `(None,)`.
    - A value of bytes of one length, 2 or more, in two records or more: uint8 `(n,)`, raw.
    - A value of other bytes: dtype "bytes".

    Returns:
        By name, sorted. For other records with `exact=True`, so that none loses a feature that was
        not in the sample.

    Raises:
        ReadError: If a record is no Example.
        ConversionError: If there is no feature in them, or one that is none of these.
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
            f"features: {len(records)} records have none to be found out; give features="
        )
    return {name: _inferred(name, seen[name], len(records)) for name in sorted(seen)}


def check_features(what: str, features: object) -> None:
    """Refuse what is no dict of `Feature` by name, or empty; `what` takes them.

    Raises:
        ArgumentError: If it is not.
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


def _row(
    record: bytes, fillings: Mapping[str, Filling], *, exact: bool
) -> dict[str, Array | bytes]:
    """One record's values, as `Filling.put_row` takes them."""
    found = parsed(record)
    others = [name for name in found if name not in fillings] if exact else []
    if names := sorted(name for name in others if values_of(found[name]) is not None):
        why = f"has the features {names!r:.200} too, which are not known; give features= with all"
        raise ReadError(why, why=why)
    return {
        name: _value(name, filling, values_of(found[name]) if name in found else None)
        for name, filling in fillings.items()
    }


def _value(name: str, filling: Filling, values: Values | None) -> Array | bytes:
    feature = filling.feature
    if values is None:
        if feature.may_be_missing:
            return np.empty(0, filling.dtype)
        _refuse(name, "is missing", f"{feature} has to be in every record")
    if feature.in_bytes:
        return _from_bytes(name, feature, values)
    if isinstance(values, list) or (values.dtype == np.int64) != (filling.dtype.kind in "iub"):
        kind = "int64" if filling.dtype.kind in "iub" else "float32"
        _refuse(name, f"is of {_kind(values)}", f"{feature} takes {kind}")
    items = filling.items
    if len(values) != items and (not feature.ragged or len(values) % items):
        _refuse(name, f"has {len(values)} numbers", f"{feature} takes {_size(feature, items)}")
    out, fits = cast(values, filling.dtype)
    if fits is not None and not fits.all():
        _refuse(name, f"has the number {values[~fits][0]!s}", f"{feature} cannot hold it")
    return out


def _from_bytes(name: str, feature: Feature, values: Values) -> Array | bytes:
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
    return np.frombuffer(data, feature.numpy_dtype)


def _size(feature: Feature, size: int) -> str:
    return f"a multiple of {size}" if feature.ragged else str(size)


def _kind(values: Values) -> str:
    return "bytes" if isinstance(values, list) else str(values.dtype)


def _refuse(name: str, found: str, allowed: str) -> NoReturn:
    why = f"feature {name!r} {found}, and {allowed}{GIVE_FEATURES}"
    raise ReadError(why, why=why)


def _inferred(name: str, seen: Sequence[tuple[int, Values]], records: int) -> Feature:
    """What a feature seems to be; `seen` are its values, with the numbers of their records."""
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
                f"features: {name!r} has {len(values)} values of bytes in record {number}, and one"
                " is what an array can be made of; leave it out of features=, or decode the records"
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
