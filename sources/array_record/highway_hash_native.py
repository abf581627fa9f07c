"""HighwayHash-64 of many messages, one after the other, compiled by llvmlite.

Only `highway_hash` imports it, and only if llvmlite is installed: it takes 0.1 s, and 70 MB for the
library. On one core it hashes 2 to 6 GB/s for any number of messages. The code uses vectors of 256
bits, which LLVM turns into the instructions of the processor.

Contract:
1. Its hashes equal those that `highway_hash` computes in NumPy.
2. It reads only the bytes of the given messages, and does not hold the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from string import Template
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import missing_extra

try:
    import llvmlite.binding as llvm
except ImportError as error:
    raise missing_extra("windrow.sources.array_record.highway_hash_native", "fast") from error

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.uint64]

# `%at` is the state: four vectors of four lanes, v0, v1, m0 and m1 of the algorithm.
_CODE: Final = Template("""
%lanes = type <4 x i64>
%state = type [4 x %lanes]

define internal %lanes @mixed(%lanes %given) alwaysinline {
  %bytes = bitcast %lanes %given to <32 x i8>
  %moved = shufflevector <32 x i8> %bytes, <32 x i8> poison, <32 x i32> <$mixing>
  %found = bitcast <32 x i8> %moved to %lanes
  ret %lanes %found
}

define internal %lanes @product(%lanes %low_of, %lanes %high_of) alwaysinline {
  %low = and %lanes %low_of, <$low>
  %high = lshr %lanes %high_of, <$half>
  %found = mul %lanes %low, %high
  ret %lanes %found
}

define internal void @add(ptr %at, %lanes %words) alwaysinline {
  %v0.at = getelementptr %state, ptr %at, i64 0, i64 0
  %v1.at = getelementptr %state, ptr %at, i64 0, i64 1
  %m0.at = getelementptr %state, ptr %at, i64 0, i64 2
  %m1.at = getelementptr %state, ptr %at, i64 0, i64 3
  %v0 = load %lanes, ptr %v0.at
  %v1 = load %lanes, ptr %v1.at
  %m0 = load %lanes, ptr %m0.at
  %m1 = load %lanes, ptr %m1.at
  %more = add %lanes %m0, %words
  %v1.more = add %lanes %v1, %more
  %product.0 = call %lanes @product(%lanes %v1.more, %lanes %v0)
  %m0.new = xor %lanes %m0, %product.0
  %v0.more = add %lanes %v0, %m1
  %product.1 = call %lanes @product(%lanes %v0.more, %lanes %v1.more)
  %m1.new = xor %lanes %m1, %product.1
  %v1.mixed = call %lanes @mixed(%lanes %v1.more)
  %v0.new = add %lanes %v0.more, %v1.mixed
  %v0.mixed = call %lanes @mixed(%lanes %v0.new)
  %v1.new = add %lanes %v1.more, %v0.mixed
  store %lanes %v0.new, ptr %v0.at
  store %lanes %v1.new, ptr %v1.at
  store %lanes %m0.new, ptr %m0.at
  store %lanes %m1.new, ptr %m1.at
  ret void
}

; The last bytes of a message, 1 to 31, as the packet that stands for them.
define internal void @add_rest(ptr %at, ptr %bytes, i64 %count) {
  %packet = alloca %lanes
  store %lanes zeroinitializer, ptr %packet
  %even = and i64 %count, 28
  call void @llvm.memcpy.p0.p0.i64(ptr %packet, ptr %bytes, i64 %even, i1 false)
  %odd = and i64 %count, 3
  %long = icmp uge i64 %count, 16
  br i1 %long, label %overlapping, label %short

overlapping: ; with the last four bytes once more
  %four = sub i64 %count, 4
  %four.from = getelementptr i8, ptr %bytes, i64 %four
  %four.to = getelementptr i8, ptr %packet, i64 28
  %last.four = load i32, ptr %four.from, align 1
  store i32 %last.four, ptr %four.to, align 1
  br label %add

short:
  %some = icmp ne i64 %odd, 0
  br i1 %some, label %three, label %add

three: ; the first, middle and last of at most three bytes
  %middle = lshr i64 %odd, 1
  %middle.place = add i64 %even, %middle
  %last.place = sub i64 %count, 1
  %first.from = getelementptr i8, ptr %bytes, i64 %even
  %middle.from = getelementptr i8, ptr %bytes, i64 %middle.place
  %last.from = getelementptr i8, ptr %bytes, i64 %last.place
  %first.to = getelementptr i8, ptr %packet, i64 16
  %middle.to = getelementptr i8, ptr %packet, i64 17
  %last.to = getelementptr i8, ptr %packet, i64 18
  %first = load i8, ptr %first.from
  %middle.byte = load i8, ptr %middle.from
  %last = load i8, ptr %last.from
  store i8 %first, ptr %first.to
  store i8 %middle.byte, ptr %middle.to
  store i8 %last, ptr %last.to
  br label %add

add:
  %up = shl i64 %count, 32
  %twice = or i64 %up, %count
  %one.lane = insertelement %lanes poison, i64 %twice, i32 0
  %counts = shufflevector %lanes %one.lane, %lanes poison, <4 x i32> zeroinitializer
  %v0.at = getelementptr %state, ptr %at, i64 0, i64 0
  %v1.at = getelementptr %state, ptr %at, i64 0, i64 1
  %v0 = load %lanes, ptr %v0.at
  %v1 = load <8 x i32>, ptr %v1.at
  %v0.new = add %lanes %v0, %counts
  %turn = bitcast %lanes %counts to <8 x i32>
  %v1.new = call <8 x i32> @llvm.fshl.v8i32(<8 x i32> %v1, <8 x i32> %v1, <8 x i32> %turn)
  store %lanes %v0.new, ptr %v0.at
  store <8 x i32> %v1.new, ptr %v1.at
  %words = load %lanes, ptr %packet
  call void @add(ptr %at, %lanes %words)
  ret void
}

define internal i64 @finished(ptr %at) alwaysinline {
entry:
  br label %turn

turn:
  %number = phi i64 [0, %entry], [%after, %turn]
  %halves = load <8 x i32>, ptr %at
  %turned = shufflevector <8 x i32> %halves, <8 x i32> poison,
    <8 x i32> <i32 5, i32 4, i32 7, i32 6, i32 1, i32 0, i32 3, i32 2>
  %words = bitcast <8 x i32> %turned to %lanes
  call void @add(ptr %at, %lanes %words)
  %after = add i64 %number, 1
  %again = icmp ult i64 %after, 4
  br i1 %again, label %turn, label %sum

sum:
  %v1.at = getelementptr %state, ptr %at, i64 0, i64 1
  %m0.at = getelementptr %state, ptr %at, i64 0, i64 2
  %m1.at = getelementptr %state, ptr %at, i64 0, i64 3
  %v0 = load i64, ptr %at
  %v1 = load i64, ptr %v1.at
  %m0 = load i64, ptr %m0.at
  %m1 = load i64, ptr %m1.at
  %v = add i64 %v0, %v1
  %m = add i64 %m0, %m1
  %found = add i64 %v, %m
  ret i64 %found
}

define i64 @hash(ptr %bytes, i64 %length, ptr %begin) alwaysinline {
entry:
  %at = alloca %state
  call void @llvm.memcpy.p0.p0.i64(ptr %at, ptr %begin, i64 128, i1 false)
  %whole = and i64 %length, -32
  br label %packets

packets:
  %place = phi i64 [0, %entry], [%behind, %packet]
  %more = icmp ult i64 %place, %whole
  br i1 %more, label %packet, label %last

packet:
  %from = getelementptr i8, ptr %bytes, i64 %place
  %words = load %lanes, ptr %from, align 1
  call void @add(ptr %at, %lanes %words)
  %behind = add i64 %place, 32
  br label %packets

last:
  %rest = and i64 %length, 31
  %some = icmp ne i64 %rest, 0
  br i1 %some, label %rest.add, label %finish

rest.add:
  %rest.from = getelementptr i8, ptr %bytes, i64 %whole
  call void @add_rest(ptr %at, ptr %rest.from, i64 %rest)
  br label %finish

finish:
  %found = call i64 @finished(ptr %at)
  ret i64 %found
}

define void @hashes(ptr %data, ptr %starts, ptr %stops, i64 %messages, ptr %begin, ptr %found) {
entry:
  br label %next

next:
  %number = phi i64 [0, %entry], [%after, %message]
  %more = icmp ult i64 %number, %messages
  br i1 %more, label %message, label %done

message:
  %start.at = getelementptr i64, ptr %starts, i64 %number
  %stop.at = getelementptr i64, ptr %stops, i64 %number
  %start = load i64, ptr %start.at
  %stop = load i64, ptr %stop.at
  %length = sub i64 %stop, %start
  %bytes = getelementptr i8, ptr %data, i64 %start
  %hash = call i64 @hash(ptr %bytes, i64 %length, ptr %begin)
  %found.at = getelementptr i64, ptr %found, i64 %number
  store i64 %hash, ptr %found.at
  %after = add i64 %number, 1
  br label %next

done:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare <8 x i32> @llvm.fshl.v8i32(<8 x i32>, <8 x i32>, <8 x i32>)
""")


class NativeHash:
    """The compiled function. The engine keeps its code in memory.

    Args:
        begin: The state of a message before its first byte, uint64 `(4, 4)`.
        mixing: The source of each byte of a pair of lanes when the lanes are mixed, 16 numbers.
    """

    def __init__(self, begin: Lanes, mixing: Sequence[int]) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
        )
        both = [place + 16 * pair for pair in (0, 1) for place in mixing]
        code = _CODE.substitute(
            mixing=", ".join(f"i32 {place}" for place in both),
            low=", ".join(["i64 4294967295"] * 4),
            half=", ".join(["i64 32"] * 4),
        )
        module = llvm.parse_assembly(code)
        # Only marked functions are inlined: more takes longer than it gains.
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
        passes.getModulePassManager().run(module, passes)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        self._begin = np.ascontiguousarray(begin)
        pointer: Any = ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(None, *[pointer] * 3, ctypes.c_int64, *[pointer] * 2)
        self._hashes = kind(self._engine.get_function_address("hashes"))

    def __call__(self, data: Bytes, starts: Ints, stops: Ints) -> Lanes:
        """The hash of each message `data[start:stop]`. All must lie within `data`, which is not checked.

        Args:
            data: Contiguous.
            starts: Contiguous.
            stops: Contiguous.

        Returns:
            uint64 `(messages,)`.
        """
        result = np.empty(len(starts), np.uint64)
        data_at, starts_at, stops_at, begin_at, found_at = (
            one.ctypes.data for one in (data, starts, stops, self._begin, result)
        )
        self._hashes(data_at, starts_at, stops_at, len(starts), begin_at, found_at)
        return result
