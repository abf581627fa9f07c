"""Nodes of a chain: frozen values that check themselves, know their length and map indices.

Nodes do not read, and do not start threads: the engine of the loader does. `base` has the protocol
that a node follows, as a numbered contract.
"""

from windrow.transforms.nodes.base import (
    ENDLESS,
    STREAM,
    Indices,
    IntArray,
    Node,
    SameLength,
    Step,
    UnseenNode,
    Where,
    WorkerSettings,
    default_seed,
    described,
    fingerprint,
    function_names,
    may_be_absent,
    seed_for,
)
from windrow.transforms.nodes.block_shuffle import BlockShuffleNode
from windrow.transforms.nodes.buckets import BucketNode
from windrow.transforms.nodes.index import (
    IndexNode,
    ReindexNode,
    RepeatNode,
    SeedNode,
    ShuffleNode,
    SliceNode,
    WindowShuffleNode,
    sliced,
)
from windrow.transforms.nodes.leaves import LaidOut, LeafNode, RangeNode, SourceNode
from windrow.transforms.nodes.lengths import lengths_of
from windrow.transforms.nodes.packing import BEST_FIT, PackNode, checked_names, checked_too_long
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.nodes.regroup import BatchNode, JoinNode, RegroupNode, ZipNode
from windrow.transforms.nodes.routing import (
    ConcatenateNode,
    MixNode,
    RoutingNode,
    SelectNode,
    mix_proportions,
)
from windrow.transforms.nodes.streams import (
    ProcessNode,
    StreamLimitNode,
    StreamMixNode,
    StreamNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
    as_chain,
    chains_of,
    origin,
)
from windrow.transforms.nodes.values import (
    ColumnMapNode,
    EachNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    RandomMapNode,
    ValueNode,
)

__all__ = [
    "BEST_FIT",
    "ENDLESS",
    "STREAM",
    "BatchNode",
    "BlockShuffleNode",
    "BucketNode",
    "ColumnMapNode",
    "ConcatenateNode",
    "EachNode",
    "FilterNode",
    "IndexNode",
    "Indices",
    "IntArray",
    "JoinNode",
    "LaidOut",
    "LeafNode",
    "MapNode",
    "MapWithIndexNode",
    "MixNode",
    "Node",
    "PackNode",
    "PlannedNode",
    "ProcessNode",
    "RandomMapNode",
    "RangeNode",
    "RegroupNode",
    "ReindexNode",
    "RepeatNode",
    "RoutingNode",
    "SameLength",
    "SeedNode",
    "SelectNode",
    "ShuffleNode",
    "SliceNode",
    "SourceNode",
    "Step",
    "StreamLimitNode",
    "StreamMixNode",
    "StreamNode",
    "StreamRepeatNode",
    "StreamWindowShuffleNode",
    "ToStreamNode",
    "UnseenNode",
    "ValueNode",
    "Where",
    "WindowShuffleNode",
    "WorkerSettings",
    "ZipNode",
    "as_chain",
    "chains_of",
    "checked_names",
    "checked_too_long",
    "default_seed",
    "described",
    "fingerprint",
    "function_names",
    "lengths_of",
    "may_be_absent",
    "mix_proportions",
    "origin",
    "seed_for",
    "sliced",
]
