"""Features of tfds as their JSON says them: of today and of earlier versions, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kitchen import kitchen_features
from tests.tfds_json import MODULE, one, sequence, tensor, tree
from windrow.errors import ArgumentError, SourceError
from windrow.sources.tfds.features import TfdsFeatures

KITCHEN = TfdsFeatures.from_json(
    kitchen_features(),
    where="features.json",
    labels={"label": ["red", "green", "blue"], "mask": ["a", "b", "c"]},
)


def read(value: Any, **labels: list[str]) -> TfdsFeatures:
    return TfdsFeatures.from_json(value, where="features.json", labels=labels)


def test_class_names() -> None:
    assert KITCHEN.class_names("label") == ("red", "green", "blue")
    assert KITCHEN.class_names("rank") is None
    assert KITCHEN.class_names("text") is None
    with pytest.raises(ArgumentError, match="no feature 'colour'; there are "):
        KITCHEN.class_names("colour")
    label = one("class_label_feature.ClassLabel", "classLabel", {"numClasses": "2"})
    nested = read(tree(**{"in": sequence(tree(**{"a/b": label}))}), **{"in-a.b": ["x", "y"]})
    assert nested.class_names("in/a/b") == ("x", "y")


def test_earlier_versions_of_the_json() -> None:
    """A type and a content, which is a dict, protobuf's JSON, or that as a string."""

    def old(kind: str, content: Any, **others: Any) -> dict[str, Any]:
        return {"type": MODULE + kind, "content": content, **others}

    proto = {"proto_cls": "tensorflow_datasets.ClassLabel"}
    image = {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "jpeg"}
    early = read(
        old(
            "features_dict.FeaturesDict",
            {
                "image": old("image_feature.Image", image),
                "label": old("class_label_feature.ClassLabel", '{"numClasses": "10"}', **proto),
                "line": old("tensor_feature.Tensor", {"shape": [None, 2], "dtype": "float32"}),
                "old": old("feature.Tensor", {"shape": [], "dtype": "string"}),
                "texts": old(
                    "sequence_feature.Sequence",
                    {"feature": old("text_feature.Text", {}), "length": None},
                ),
            },
        )
    )
    sizes = {"dimensions": ["-1", "-1", "3"]}
    jpeg = {"shape": sizes, "dtype": "uint8", "encodingFormat": "jpeg"}
    late = read(
        tree(
            image=one("image_feature.Image", "image", jpeg),
            label=one("class_label_feature.ClassLabel", "classLabel", {"numClasses": "10"}),
            line=tensor("float32", -1, 2),
            old=tensor("string"),
            texts=sequence(one("text_feature.Text", "text", {})),
        )
    )
    assert early.leaves == late.leaves
    legacy = old(
        "features_dict.FeaturesDict",
        late.to_json()["featuresDict"],
        proto_cls="tensorflow_datasets.FeaturesDict",
    )
    assert read(legacy).leaves == late.leaves
    wrapped = one(
        "features_dict.FeaturesDict", "jsonFeature", {"json": json.dumps({"x": tensor("bool")})}
    )
    assert read(wrapped).leaves == read(tree(x=tensor("bool"))).leaves


def test_a_feature_may_have_the_name_of_a_key() -> None:
    features = read(tree(features=tensor("bool"), type=tensor("int8"), content=tensor("int16")))
    assert [leaf.name for leaf in features.leaves] == ["features", "type", "content"]
    assert read(tree()).leaves == ()


DEEP: dict[str, Any] = tensor("int8")
for _ in range(70):
    DEEP = sequence(DEEP)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([], r"feature '' must be a JSON object, got \[\]"),
        ({}, "feature '' has no type"),
        (tensor("int8"), "features are a FeaturesDict, got"),
        (
            tree(x=one("new.Smell", "smell", {})),
            "'x' is of type 'Smell', which has no mapping.*reb",
        ),
        (
            tree(a=tree(x={"pythonClassName": "os.system", "jsonFeature": {}})),
            "'a/x' is of type 'os.system', which has no mapping",
        ),
        (tree(x=tensor("quint8")), "'x' is of the unknown dtype 'quint8'; known are string, bool"),
        (
            tree(x=tensor("int8", encoding="gzip")),
            "'x' has the unknown encoding 'gzip'; tfds has none, bytes, zlib",
        ),
        (tree(x=tensor("string", encoding="zlib")), "'x' is text with encoding='zlib'"),
        (tree(x=tensor("complex64")), "'x' is complex64 without encoding.*encoding='bytes'"),
        (
            tree(x=tensor("int8", -1, -1)),
            "'x' has values of shape .*an Example does not keep the shape of each; build it with",
        ),
        (
            tree(x=sequence(tensor("int8", 0))),
            "whose items have no values, so that they cannot be counted",
        ),
        (tree(x=tensor("int8", 2**21, 2**21)), "which is too large"),
        (
            tree(x=one("text_feature.Text", "jsonFeature", {"json": '{"use_encoder": true}'})),
            "'x' is text in an encoding of its own",
        ),
        (
            tree(x=one("audio_feature.Audio", "audio", {"lazyDecode": True, "encoding": "zlib"})),
            "'x' is audio with lazy_decode and encoding",
        ),
        (tree(x=one("image_feature.Image", "image", {"dtype": "int8"})), "'x' is an image of int8"),
        (
            tree(x=one("video_feature.Video", "video", {"shape": {"dimensions": ["2", "3"]}})),
            "'x' is a video of shape",
        ),
        (
            tree(x=one("translation_feature.Translation", "t", {"languages": [1]})),
            "languages belong",
        ),
        (
            tree(**{"a/b": tensor("int8"), "a": tree(b=tensor("int8"))}),
            "have the name 'a/b'; rename",
        ),
        (tree(x=DEEP), "'x' is nested in more than 64 other features"),
    ],
)
def test_what_is_refused(value: Any, match: str) -> None:
    with pytest.raises(SourceError, match=rf"^features\.json: .*{match}"):
        read(value)
