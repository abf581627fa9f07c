"""Reads the features of TensorFlow Datasets from a features.json, without TensorFlow.

A dataset's features are a tree of dicts and sequences. Its leaves hold values. A leaf describes its
values and the sequences around them. From that follow the names under which an Example keeps them, and
in what form.

Invariant: the leaves follow from the JSON, and from the names of classes, alone. Nothing in it is
imported or evaluated. A feature of an unknown type, or one that tfds itself could not read back,
raises an error that names the feature.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import ArraySpec
from windrow.sources.tf_example.features import BYTES, DTYPES, Ragged, numpy_dtype

NUMBER: Final = "number"
IMAGE: Final = "image"
ENCODINGS: Final = ("none", "bytes", "zlib")

Shape: TypeAlias = tuple[int | None, ...]

_MODULE: Final = "tensorflow_datasets."
_TEXTS: Final = ("string", "object", "str", "str_", "bytes", "bytes_")
_DEEPEST: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One feature that holds values.

    Args:
        path: Names of the dicts around it, outermost first, and its own name.
        feature: The type that tfds gave it, such as "ClassLabel".
        kind: "number"; "bytes" for text, and for values that tfds keeps unchanged; or "image".
        dtype: NumPy's name of the values' dtype; "bytes" for kind "bytes".
        shape: Shape of one value, None for an axis that differs; for an image, once decoded.
        lengths: Lengths of the sequences around the value, outermost first, None where one differs.
        encoding: "none", or how the numbers of a value became bytes: "bytes" or "zlib".
        optional: Whether a record may lack the value, which is None then.
        names: Names of classes; None if it has no classes or no names for them.
        facts: Other metadata from tfds, by name: number of classes, format of images, rate of
            samples, kind of box.
    """

    path: tuple[str, ...]
    feature: str
    kind: str
    dtype: str
    shape: Shape = ()
    lengths: Shape = ()
    encoding: str = "none"
    optional: bool = False
    names: tuple[str, ...] | None = None
    facts: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The name under which an Example keeps it, such as "objects/label"."""
        return "/".join(self.path)

    @property
    def in_bytes(self) -> bool:
        """Whether an Example keeps each value as bytes, not as numbers."""
        return self.kind != NUMBER or self.encoding != "none"

    @property
    def dynamic(self) -> bool:
        """Whether an Example keeps the shape of each value too, since more than one axis differs."""
        return self.kind == NUMBER and self.shape.count(None) > 1

    @property
    def nested(self) -> bool:
        """Whether values are in sequences of sequences. An Example keeps their lengths."""
        return len(self.lengths) > 1

    @property
    def levels(self) -> int:
        """Number of nested `Ragged`: sequences whose lengths differ within a record."""
        inner = self.lengths[1:]
        return max((at + 1 for at, length in enumerate(inner) if length is None), default=0)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of values; object for bytes."""
        return np.dtype(object) if self.dtype == BYTES else numpy_dtype(self.dtype)

    @property
    def steady(self) -> bool:
        """Whether all records have numbers, or decoded images, of one shape: columns are arrays."""
        known = None not in (*self.lengths, *self.shape)
        return known and self.dtype != BYTES and not self.optional

    @property
    def attributes(self) -> dict[str, Any]:
        """Its metadata, ready for JSON."""
        out: dict[str, Any] = {"feature": self.feature, "kind": self.kind, "dtype": self.dtype}
        out |= {"shape": list(self.shape), "lengths": list(self.lengths)}
        out |= {"encoding": self.encoding, "optional": self.optional, **dict(self.facts)}
        return out if self.names is None else out | {"names": list(self.names)}

    def spec(self, images: bool) -> ArraySpec | type:
        """The type of a record's value: an array, bytes, a `Ragged`, or object if it may be None."""
        decoded = self.kind != IMAGE or images
        if self.optional:
            return object
        if self.levels:
            return Ragged
        if self.dtype == BYTES or not decoded:
            return ArraySpec(self.lengths + self._bytes_shape, object) if self._many else bytes
        if self.lengths and None in self.shape and self.in_bytes:
            return ArraySpec(self.lengths, object)
        return ArraySpec(self.lengths + self.shape, self.numpy_dtype)

    @property
    def _bytes_shape(self) -> Shape:
        return self.shape if self.kind == BYTES else ()

    @property
    def _many(self) -> bool:
        return bool(self.lengths + self._bytes_shape)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TfdsFeatures:
    """The features of a dataset of tfds.

    Args:
        leaves: The features that hold values, in the order of the JSON.
        json_text: The JSON that declares them.
        labels: The names of classes, by the name of their file without its ".labels.txt".
    """

    leaves: tuple[Leaf, ...]
    json_text: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def from_json(
        cls, value: object, *, where: str, labels: Mapping[str, Sequence[str]] | None = None
    ) -> TfdsFeatures:
        """Reads the features from `value`, the content of a features.json.

        Args:
            value: The parsed JSON.
            where: The file, for messages.
            labels: Names of classes, by feature: "inner-label" for the file `inner-label.labels.txt`.

        Raises:
            SourceError: If `value` does not hold features, or one of them is of an unknown type or
                has no mapping to arrays.

        Example:
            >>> kind = "tensorflow_datasets.core.features."
            >>> label = {"pythonClassName": kind + "class_label_feature.ClassLabel"}
            >>> label["classLabel"] = {"numClasses": "2"}
            >>> tree = {"pythonClassName": kind + "features_dict.FeaturesDict"}
            >>> tree["featuresDict"] = {"features": {"label": label}}
            >>> features = TfdsFeatures.from_json(
            ...     tree, where="features.json", labels={"label": ["cat", "dog"]}
            ... )
            >>> features.class_names("label")
            ('cat', 'dog')
        """
        given = {name: tuple(names) for name, names in (labels or {}).items()}
        reading = _Reading(where, given)
        if reading.type_of(value, ()) not in ("FeaturesDict", "Translation"):
            raise SourceError(f"{where}: features are a FeaturesDict, got {value!r:.80}")
        leaves = tuple(reading.leaves(value, (), ()))
        names = [leaf.name for leaf in leaves]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SourceError(f"{where}: several features have the name {twice[0]!r}; rename one")
        return cls(leaves, json.dumps(value, sort_keys=True), tuple(sorted(given.items())))

    def to_json(self) -> Any:
        """The features in JSON, as `from_json` takes them together with `labels`."""
        return json.loads(self.json_text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.json_text, self.labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TfdsFeatures) and self.leaves == other.leaves

    def __hash__(self) -> int:
        return hash(self.json_text)

    def __repr__(self) -> str:
        return f"TfdsFeatures({', '.join(leaf.name for leaf in self.leaves)})"

    def leaf(self, name: str) -> Leaf:
        """The leaf with a name such as "objects/label".

        Raises:
            ArgumentError: If no leaf has that name.
        """
        for leaf in self.leaves:
            if leaf.name == name:
                return leaf
        names = ", ".join(leaf.name for leaf in self.leaves)
        raise ArgumentError(f"no feature {name!r:.80}; there are {names:.500}")

    def class_names(self, name: str) -> tuple[str, ...] | None:
        """Names of the classes of a feature, in the order of their numbers; None if it has no names.

        Raises:
            ArgumentError: If there is no such feature.
        """
        return self.leaf(name).names

    def spec(self, images: bool = False) -> dict[str, Any]:
        """The tree of a record, with an `ArraySpec` or the type of the value for each leaf."""
        return tree_of({leaf.path: leaf.spec(images) for leaf in self.leaves})


def tree_of(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Turns values by path into nested dicts.

    Example:
        >>> tree_of({("a",): 1, ("b", "c"): 2})
        {'a': 1, 'b': {'c': 2}}
    """
    out: dict[str, Any] = {}
    for path, value in values.items():
        inner = out
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return out


def _again(json_text: str, labels: tuple[tuple[str, tuple[str, ...]], ...]) -> TfdsFeatures:
    return TfdsFeatures.from_json(json.loads(json_text), where="features", labels=dict(labels))


class _Reading:
    """Reads the JSON of features; its errors name the file and the feature."""

    def __init__(self, where: str, labels: Mapping[str, tuple[str, ...]]) -> None:
        self._where = where
        self._labels = labels

    def type_of(self, value: object, path: tuple[str, ...]) -> str:
        """The type of a feature of tfds: the last part of its Python name."""
        if not isinstance(value, dict):
            raise self._error(path, f"must be a JSON object, got {value!r:.80}")
        name = value.get("pythonClassName") or value.get("python_class_name") or value.get("type")
        if not isinstance(name, str):
            raise self._error(path, f"has no type (pythonClassName), got {value!r:.80}")
        if not name.startswith(_MODULE):
            raise self._unknown(path, name)
        return name.rpartition(".")[2]

    def leaves(self, value: Any, path: tuple[str, ...], lengths: Shape) -> Iterator[Leaf]:
        """Yields the leaves of a feature; `lengths` are the lengths of the sequences around it."""
        if len(path) + len(lengths) > _DEEPEST:
            raise self._error(path, f"is nested in more than {_DEEPEST} other features")
        kind = self.type_of(value, path)
        content = self._content(value, path)
        match kind:
            case "FeaturesDict":
                for name, inner in self._children(value, path).items():
                    yield from self.leaves(inner, (*path, name), lengths)
            case "Sequence" | "Dataset":
                length = self._size(_get(content, "length", -1), path)
                yield from self.leaves(_get(content, "feature", None), path, (*lengths, length))
            case "Translation":
                for name in self._strings(_get(content, "languages", []), path):
                    yield self._bytes((*path, name), lengths, "Text")
            case "TranslationVariableLanguages":
                facts = (("languages", tuple(self._strings(_get(content, "languages", []), path))),)
                for name in ("language", "translation"):
                    yield self._bytes((*path, name), (*lengths, None), "Text", facts)
            case "Text":
                if _get(content, "use_encoder", False):
                    raise self._error(path, "is text in an encoding of its own; rebuild it as text")
                yield self._bytes(path, lengths, kind)
            case "Image" | "LabeledImage":
                yield self._image(content, path, lengths, kind)
            case "Video":
                shape = self._shape(_get(content, "shape", None), path) or (None,) * 3 + (3,)
                if len(shape) != 4:
                    raise self._error(
                        path, f"is a video of shape {shape}, which does not have 4 axes"
                    )
                inner = {**content, "shape": list(shape[1:])}
                yield self._image(inner, path, (*lengths, shape[0]), kind)
            case "Tensor" | "Scalar" | "ClassLabel" | "BBoxFeature" | "BBox" | "Audio":
                yield self._tensor(content, path, lengths, kind)
            case _:
                raise self._unknown(path, kind)

    def _tensor(self, content: Any, path: tuple[str, ...], lengths: Shape, kind: str) -> Leaf:
        shape = self._shape(_get(content, "shape", None), path)
        names, facts = None, {}
        match kind:
            case "ClassLabel":
                dtype, shape = "int64", ()
                facts = {"num_classes": self._count(content, path)}
                names = self._names(path, facts["num_classes"])
            case "BBoxFeature" | "BBox":
                dtype, shape = "float32", (4,)
                facts = {"bbox_format": _get(content, "bbox_format", None)}
            case _:
                dtype = self._dtype(_get(content, "dtype", "float32"), path)
        if kind == "Audio":
            shape = shape or (None,)
            rate = self._whole(_get(content, "sample_rate", 0), path) or None
            facts = {"sample_rate": rate, "file_format": _get(content, "file_format", None)}
            if _get(content, "lazy_decode", False):
                self._check_lazy(content, path)
                return self._bytes(path, lengths, kind, (*_known(facts), ("lazy_decode", True)))
        encoding = self._encoding(content, path)
        optional = bool(_get(content, "optional", False)) and not lengths
        for name in ("minimum", "maximum"):
            facts[name] = _get(content, name, None)
        leaf = Leaf(
            *(path, kind, BYTES if dtype == BYTES else NUMBER, dtype, shape, lengths, encoding),
            *(optional, names, _known(facts)),
        )
        self._check(leaf)
        return leaf

    def _bytes(
        self,
        path: tuple[str, ...],
        lengths: Shape,
        kind: str,
        facts: tuple[tuple[str, Any], ...] = (),
    ) -> Leaf:
        return Leaf(path, kind, BYTES, BYTES, lengths=lengths, facts=facts)

    def _image(self, content: Any, path: tuple[str, ...], lengths: Shape, kind: str) -> Leaf:
        shape = self._shape(_get(content, "shape", None), path)
        shape = shape or (None, None, 1 if kind == "LabeledImage" else 3)
        dtype = self._dtype(_get(content, "dtype", "uint8"), path)
        if dtype not in ("uint8", "uint16", "float32") or len(shape) not in (3, 4):
            raise self._error(path, f"is an image of {dtype} {shape}, which tfds does not support")
        if shape[-1] == 0:  # any number of channels
            shape = (*shape[:-1], None)
        facts = {"encoding_format": _get(content, "encoding_format", None) or None}
        label = _get(content, "label", None)
        names = None
        if kind == "LabeledImage":
            facts["num_classes"] = self._count(label if isinstance(label, dict) else {}, path)
            names = self._names(path, facts["num_classes"])
        return Leaf(path, kind, IMAGE, dtype, shape, lengths, names=names, facts=_known(facts))

    def _check(self, leaf: Leaf) -> None:
        """Refuses a feature that tfds could not write, or could not read back."""
        if leaf.dtype == BYTES and leaf.encoding != "none":
            raise self._error(leaf.path, f"is text with encoding={leaf.encoding!r}")
        if leaf.in_bytes and leaf.encoding != "none":
            return
        if leaf.dtype in ("complex64", "complex128"):
            raise self._error(
                leaf.path,
                f"is {leaf.dtype} without encoding, which an Example cannot hold; build it with"
                " encoding='bytes'",
            )
        if 0 in leaf.shape and (leaf.lengths or None in leaf.shape):
            raise self._error(
                leaf.path,
                f"is of shape {leaf.shape}, whose items have no values, so that they cannot be"
                " counted",
            )
        loose = leaf.shape if leaf.nested else leaf.lengths + leaf.shape
        if loose.count(None) > (0 if leaf.nested else 1):
            raise self._error(
                leaf.path,
                f"has values of shape {leaf.shape} in sequences of {leaf.lengths}, and an Example does"
                " not keep the shape of each; build it with encoding='bytes' or 'zlib'",
            )

    def _check_lazy(self, content: Any, path: tuple[str, ...]) -> None:
        if self._encoding(content, path) != "none":
            raise self._error(
                path, "is audio with lazy_decode and encoding, which tfds cannot read"
            )

    def _content(self, value: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        """The content of a feature apart from its type, from new JSON and earlier versions of it."""
        if "type" in value:
            content = value.get("content", {})
            if isinstance(content, str):
                try:
                    content = json.loads(content)
                except ValueError as error:
                    raise self._error(path, f"has a content that is not JSON: {error}") from error
        else:
            fixed = ("pythonClassName", "python_class_name", "description", "valueRange")
            rest = [name for name in value if name not in (*fixed, "value_range")]
            content = value[rest[0]] if rest else {}
            if rest and rest[0] in ("jsonFeature", "json_feature"):
                text = _get(content, "json", "{}") if isinstance(content, dict) else ""
                try:
                    content = json.loads(text)
                except (TypeError, ValueError) as error:
                    raise self._error(path, f"has a content that is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise self._error(path, f"has the content {content!r:.80}, which is not a JSON object")
        return content

    def _children(self, value: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        content = self._content(value, path)
        # The first versions had the features directly, later ones under this name.
        later = value.get("proto_cls") or "featuresDict" in value or "features_dict" in value
        inner = content.get("features", {}) if later else content
        if not isinstance(inner, dict):
            raise self._error(path, f"has features that are not a JSON object: {inner!r:.80}")
        return inner

    def _encoding(self, content: Any, path: tuple[str, ...]) -> str:
        encoding = _get(content, "encoding", "none") or "none"
        if not isinstance(encoding, str) or encoding.lower() not in ENCODINGS:
            raise self._error(
                path, f"has the unknown encoding {encoding!r:.40}; tfds has {', '.join(ENCODINGS)}"
            )
        return encoding.lower()

    def _dtype(self, value: object, path: tuple[str, ...]) -> str:
        if value in _TEXTS:
            return BYTES
        if value not in DTYPES:
            raise self._error(
                path,
                f"is of the unknown dtype {value!r:.40}; known are string, {', '.join(DTYPES)}",
            )
        return str(value)

    def _shape(self, value: object, path: tuple[str, ...]) -> Shape:
        if isinstance(value, dict):
            value = _get(value, "dimensions", [])
        if not isinstance(value, list | type(None)):
            raise self._error(path, f"has the shape {value!r:.80}, which is not a list of sizes")
        shape = tuple(self._size(size, path) for size in value or [])
        if math.prod(size or 1 for size in shape) > 2**40:
            raise self._error(path, f"has the shape {shape}, which is too large")
        return shape

    def _size(self, value: object, path: tuple[str, ...]) -> int | None:
        size = None if value is None else self._whole(value, path)
        return None if size is None or size < 0 else size

    def _whole(self, value: object, path: tuple[str, ...]) -> int:
        # Protobuf's JSON has 64-bit integers as strings.
        try:
            if isinstance(value, str | int) and not isinstance(value, bool):
                return int(value)
        except ValueError:
            pass
        raise self._error(path, f"has {value!r:.40} where a whole number belongs")

    def _count(self, content: Any, path: tuple[str, ...]) -> int | None:
        count = _get(content, "num_classes", None)
        return None if count is None else self._whole(count, path)

    def _strings(self, value: object, path: tuple[str, ...]) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(path, f"has {value!r:.80} where languages belong")
        return value

    def _names(self, path: tuple[str, ...], count: int | None) -> tuple[str, ...] | None:
        """The names of `count` classes, which tfds keeps in a file named after the path."""
        stem = "-".join(name.replace("/", ".") for name in path)
        names = self._labels.get(stem, self._labels.get("/".join(path)))
        if names is not None and count and len(names) != count:
            raise self._error(
                path,
                f"has {count} classes, and {stem}.labels.txt names {len(names)}; build or copy the"
                " dataset again",
            )
        return names

    def _error(self, path: tuple[str, ...], what: str) -> SourceError:
        return SourceError(f"{self._where}: feature {'/'.join(path)!r} {what}")

    def _unknown(self, path: tuple[str, ...], name: str) -> SourceError:
        return self._error(
            path,
            f"is of type {name!r:.100}, which has no mapping to arrays; rebuild the dataset with a"
            " feature of tensorflow_datasets.core.features, or read it by tfds",
        )


def _get(content: Mapping[str, Any], name: str, default: Any) -> Any:
    """The value under a name in snake case, or in camel case as protobuf's JSON has it."""
    if name in content:
        return content[name]
    first, *others = name.split("_")
    return content.get(first + "".join(map(str.capitalize, others)), default)


def _known(facts: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in facts.items() if value is not None)
