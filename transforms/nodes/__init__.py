"""Nodes of a chain: frozen values that check themselves, know their length and map indices.

Nodes do not read, and do not start threads: the engine of the loader does. `base` has the protocol
that a node follows, as a numbered contract.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from windrow.transforms.nodes.base import (
    ENDLESS,
    STREAM,
    VAST,
    Indices,
    IntArray,
    Node,
    RowShare,
    Where,
    WorkerSettings,
)
from windrow.transforms.nodes.block_shuffle import BlockShuffleNode
from windrow.transforms.nodes.following import check_shards, shard_of
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
from windrow.transforms.nodes.regroup import (
    BatchNode,
    JoinNode,
    PieceNode,
    RegroupNode,
    Remainder,
    ZipNode,
    batch_node,
)
from windrow.transforms.nodes.routing import (
    ConcatenateNode,
    MixNode,
    RoutingNode,
    SelectNode,
    mix_proportions,
)
from windrow.transforms.nodes.same import SameIndices, SameLength, UnseenNode
from windrow.transforms.nodes.shard import (
    BatchParts,
    ShardBatchNode,
    sharded,
    shared,
    unshared,
)
from windrow.transforms.nodes.streams import (
    MixingNode,
    OptionsNode,
    ProcessNode,
    StreamNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
    as_batch,
    as_chain,
    chain_of_rows,
    chains_of,
    has_own,
    lane_share,
    lanes_of,
    named_mixture,
    no_row,
    options_of,
    origin,
    random_access_parts,
    topmost_batch,
    undecided,
)
from windrow.transforms.nodes.tail import RowPosition, Tail, tail_of
from windrow.transforms.nodes.values import (
    ColumnMapNode,
    EachNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    RandomColumnMapNode,
    RandomMapNode,
    ValueNode,
    locality_after,
)
from windrow.transforms.nodes.whole_chain import (
    EPOCHS,
    as_node,
    default_seed,
    described,
    earlier_source,
    fingerprint,
    follows_batch,
    function_names,
    makers,
    may_be_absent,
    seed_for,
    written_parents,
)
from windrow.transforms.row_blocks import Step

if TYPE_CHECKING:
    from windrow.transforms.nodes.buckets import BucketNode
    from windrow.transforms.nodes.cache import CacheNode
    from windrow.transforms.nodes.flatten import (
        FlatMapNode,
        FlattenNode,
        SlotMapNode,
        SlotsNode,
        UnbatchNode,
    )
    from windrow.transforms.nodes.idle import RowWatch, most_without_row
    from windrow.transforms.nodes.interleave import StreamInterleaveNode
    from windrow.transforms.nodes.lengths import lengths_of, over_records
    from windrow.transforms.nodes.limit import StreamLimitNode
    from windrow.transforms.nodes.mixing import StreamMixNode, TokenMixNode, token_sizes
    from windrow.transforms.nodes.on_bad import BAD_ERRORS, on_bad_node
    from windrow.transforms.nodes.own import (
        OwnIndicesNode,
        OwnMapNode,
        OwnStreamNode,
        own_numbers,
        with_own_numbers,
    )
    from windrow.transforms.nodes.packing import (
        BEST_FIT,
        PackNode,
        checked_names,
        checked_sequences,
        checked_too_long,
    )
    from windrow.transforms.nodes.parts import narrowed
    from windrow.transforms.nodes.pieces import ChunksNode
    from windrow.transforms.nodes.planned import PlannedNode
    from windrow.transforms.nodes.sample import SampleNode, sample_node
    from windrow.transforms.nodes.stream_packing import FitPackNode, SplitPackNode, pack_node

# Few chains have these: a worker and a training loop load them only if theirs does.
_MODULE_OF: Final = {
    "BAD_ERRORS": "on_bad",
    "BEST_FIT": "packing",
    "BucketNode": "buckets",
    "CacheNode": "cache",
    "ChunksNode": "pieces",
    "FitPackNode": "stream_packing",
    "FlatMapNode": "flatten",
    "FlattenNode": "flatten",
    "OwnIndicesNode": "own",
    "OwnMapNode": "own",
    "OwnStreamNode": "own",
    "PackNode": "packing",
    "PlannedNode": "planned",
    "RowWatch": "idle",
    "SampleNode": "sample",
    "SlotMapNode": "flatten",
    "SlotsNode": "flatten",
    "SplitPackNode": "stream_packing",
    "StreamInterleaveNode": "interleave",
    "StreamLimitNode": "limit",
    "StreamMixNode": "mixing",
    "TokenMixNode": "mixing",
    "UnbatchNode": "flatten",
    "checked_names": "packing",
    "checked_sequences": "packing",
    "checked_too_long": "packing",
    "lengths_of": "lengths",
    "most_without_row": "idle",
    "narrowed": "parts",
    "on_bad_node": "on_bad",
    "over_records": "lengths",
    "own_numbers": "own",
    "pack_node": "stream_packing",
    "sample_node": "sample",
    "token_sizes": "mixing",
    "with_own_numbers": "own",
}

__all__ = [
    "BAD_ERRORS",
    "BEST_FIT",
    "ENDLESS",
    "EPOCHS",
    "STREAM",
    "VAST",
    "BatchNode",
    "BatchParts",
    "BlockShuffleNode",
    "BucketNode",
    "CacheNode",
    "ChunksNode",
    "ColumnMapNode",
    "ConcatenateNode",
    "EachNode",
    "FilterNode",
    "FitPackNode",
    "FlatMapNode",
    "FlattenNode",
    "IndexNode",
    "Indices",
    "IntArray",
    "JoinNode",
    "LaidOut",
    "LeafNode",
    "MapNode",
    "MapWithIndexNode",
    "MixNode",
    "MixingNode",
    "Node",
    "OptionsNode",
    "OwnIndicesNode",
    "OwnMapNode",
    "OwnStreamNode",
    "PackNode",
    "PieceNode",
    "PlannedNode",
    "ProcessNode",
    "RandomColumnMapNode",
    "RandomMapNode",
    "RangeNode",
    "RegroupNode",
    "ReindexNode",
    "Remainder",
    "RepeatNode",
    "RoutingNode",
    "RowPosition",
    "RowShare",
    "RowWatch",
    "SameIndices",
    "SameLength",
    "SampleNode",
    "SeedNode",
    "SelectNode",
    "ShardBatchNode",
    "ShuffleNode",
    "SliceNode",
    "SlotMapNode",
    "SlotsNode",
    "SourceNode",
    "SplitPackNode",
    "Step",
    "StreamInterleaveNode",
    "StreamLimitNode",
    "StreamMixNode",
    "StreamNode",
    "StreamRepeatNode",
    "StreamWindowShuffleNode",
    "Tail",
    "ToStreamNode",
    "TokenMixNode",
    "UnbatchNode",
    "UnseenNode",
    "ValueNode",
    "Where",
    "WindowShuffleNode",
    "WorkerSettings",
    "ZipNode",
    "as_batch",
    "as_chain",
    "as_node",
    "batch_node",
    "chain_of_rows",
    "chains_of",
    "check_shards",
    "checked_names",
    "checked_sequences",
    "checked_too_long",
    "default_seed",
    "described",
    "earlier_source",
    "fingerprint",
    "follows_batch",
    "function_names",
    "has_own",
    "lane_share",
    "lanes_of",
    "lengths_of",
    "locality_after",
    "makers",
    "may_be_absent",
    "mix_proportions",
    "most_without_row",
    "named_mixture",
    "narrowed",
    "no_row",
    "on_bad_node",
    "options_of",
    "origin",
    "over_records",
    "own_numbers",
    "pack_node",
    "random_access_parts",
    "sample_node",
    "seed_for",
    "shard_of",
    "sharded",
    "shared",
    "sliced",
    "tail_of",
    "token_sizes",
    "topmost_batch",
    "undecided",
    "unshared",
    "with_own_numbers",
    "written_parents",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
