"""What rows are: the features that were asked for, or that those who wrote the records have told.

Invariant: features have names that arrays of one Zarr group can have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.inputs import Input
from windrow.converters.manifest import Manifest, is_own_name
from windrow.converters.ragged import OFFSETS, VALUES
from windrow.converters.zarr_layout import METADATA, ArrayLayout, fill_scalar
from windrow.errors import ArgumentError, NotFoundError, ReadError
from windrow.sources.features import Feature, features_from_json, features_to_json
from windrow.sources.paths import is_remote, split_path

Features = Mapping[str, Feature | Mapping[str, Any]]

# Names of files end at 255 bytes.
_LONGEST_NAME: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What is known of rows before a record is read.

    Args:
        features: By name.
        arrays: Of arrays in Zarr, by name: `attributes`, `dimension_names`, `fill_value`.
        attributes: Of the group.
        group_attributes: Of the groups in it, by name.
    """

    features: Mapping[str, Feature]
    arrays: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    group_attributes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        found = {"features": features_to_json(self.features)}
        for name in ("arrays", "attributes", "group_attributes"):
            if getattr(self, name):
                found[name] = dict(getattr(self, name))
        return found

    def dressed(self, layout: ArrayLayout) -> ArrayLayout:
        """The layout, with what is told of its array."""
        told = self.arrays.get(layout.name)
        if told is None:
            return layout
        dims = told["dimension_names"]
        return dataclasses.replace(
            layout,
            attributes=told["attributes"],
            dimension_names=None if dims is None else tuple(dims),
            fill_value=told["fill_value"],
        )


def asked_for(features: Features) -> Described:
    """The features that were given.

    Raises:
        ArgumentError: If they are none, or no array can have one of their names.
    """
    if not isinstance(features, Mapping) or not features:
        raise ArgumentError("features is a dict of one Feature or more, by name")
    found = {}
    for name, feature in features.items():
        try:
            where = f"features: {name!r:.80}"
            value = dict(feature) if isinstance(feature, Mapping) else feature
            found[name] = (
                value if isinstance(value, Feature) else Feature.from_json(value, where=where)
            )
        except ReadError as error:
            raise ArgumentError(str(error)) from error
    check_names(found)
    return Described(found)


def check_names(
    features: Mapping[str, Feature], *, hint: str = "give one another name by decode="
) -> None:
    """Refuse names that no arrays of one group can have; `hint` is the way out.

    Raises:
        ArgumentError: If there is one.
    """
    for name in features:
        if (
            not isinstance(name, str)
            or not is_own_name(name)
            or any(map(_is_no_name, name.split("/")))
        ):
            raise ArgumentError(
                f"feature {name!r:.80} cannot name a Zarr array: a name is a text, and each part of"
                f" it, between slashes, has 1 to {_LONGEST_NAME} bytes, begins neither with '.' nor"
                f" with '__', and is not {METADATA!r}; {hint}"
            )
        above = next((other for other in features if name.startswith(f"{other}/")), None)
        if above is not None:
            raise ArgumentError(
                f"features {above!r} and {name!r} cannot both be in one Zarr group: the one would lie"
                f" in the other; {hint}"
            )


def _is_no_name(part: str) -> bool:
    return (
        not 0 < len(part.encode()) <= _LONGEST_NAME
        or part.startswith((".", "__"))
        or part == METADATA
    )


def told_by_manifest(found: Sequence[Input]) -> Described | None:
    """What the manifest beside the files tells, if one conversion wrote them all and tells it.

    Raises:
        ReadError: If it is damaged.
        ArgumentError: If no array can have one of the names.
    """
    folders = {split_path(file.url)[0] for file in found}
    if len(folders) > 1:
        return None
    (folder,) = folders
    try:
        manifest = Manifest.read(folder, storage_options=found[0].options)
    except NotFoundError:
        return None
    except ReadError:
        if is_remote(folder):  # a store that shows its files alone
            return None
        raise
    settings = manifest.settings
    written = {file.name for file in manifest.files}
    if settings.get("features") is None or not {file.name for file in found} <= written:
        return None
    where = f"{manifest_place(folder)}: features"
    described = Described(
        features_from_json(settings["features"], where=where),
        _objects(settings.get("arrays"), where),
        _objects({"": settings.get("attributes")}, where).get("", {}),
        _objects(settings.get("group_attributes"), where),
    )
    check_names(described.features)
    _check_arrays(described, where)
    return described


def manifest_place(folder: str) -> str:
    """Where the manifest is, for people."""
    return f"the manifest in {folder}"


def _objects(value: object, where: str) -> dict[str, Any]:
    """JSON objects by name; those that are null are left out."""
    found = {} if value is None else value
    if isinstance(found, dict):
        kept = {name: one for name, one in found.items() if one is not None}
        if all(isinstance(one, dict) for one in kept.values()):
            return kept
    raise ReadError(f"{where}: are not told as objects by name, got {value!r:.80}")


def _check_arrays(described: Described, where: str) -> None:
    """Refuse what does not fit the arrays of the features."""
    for name, (dtype, rank) in _arrays(described.features).items():
        told = described.arrays.get(name)
        if told is None:
            continue
        names = ["attributes", "dimension_names", "fill_value"]
        try:
            fits = sorted(told) == names and isinstance(told["attributes"], dict)
            dims = told["dimension_names"]
            fits = fits and (dims is None or len(dims) == rank)
            fits = fits and all(isinstance(dim, str | None) for dim in dims or ())
            if fits and told["fill_value"] is not None:
                fill_scalar(told["fill_value"], dtype)
        except (TypeError, ValueError, OverflowError, KeyError):
            fits = False
        if not fits:
            raise ReadError(
                f"{where}: what is told of array {name!r} does not fit it: {told!r:.200}"
            )


def _arrays(features: Mapping[str, Feature]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Dtype and number of axes of all arrays, by name."""
    found = {}
    for name, feature in features.items():
        rank = 1 + len(feature.item_shape)
        if feature.ragged:
            found[f"{name}/{VALUES}"] = feature.numpy_dtype, rank
            found[f"{name}/{OFFSETS}"] = np.dtype(np.int64), 1
        else:
            found[name] = feature.numpy_dtype, rank
    return found
