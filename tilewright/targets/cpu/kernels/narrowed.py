"""Lets a kernel read and write tensors of bfloat16 where it was written for float32.

Half as many bytes pass between layers. A kernel computes as before: it widens what it reads, and
rounds what it stores. Channels of such a tensor may lie in blocks that are several of the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu.kernels.matrix_tiles import bfloat16_of
from tilewright.targets.cpu.spec import CpuSpec

tvm_ffi = lazy_module("tvm_ffi")
tirx = lazy_module("tvm.tirx")
ir = lazy_module("tvm.ir")


def narrowed(function: Any, blocks: Mapping[int, int], spec: CpuSpec) -> Any:
    """A function of loops written out, whose parameters of these numbers hold bfloat16 as uint16
    instead of float32, in `blocks` of so many channels: (n, c / block, h, w, block)."""
    params, body = list(function.params), function.body
    for number, block in blocks.items():
        old = params[number]
        n, count, height, width, each = (int(size) for size in old.shape)
        shape = n, count * each // block, height, width, block
        new = tirx.decl_buffer(shape, "uint16", name=str(old.name))
        body = _replaced(body, old, new, spec)
        params[number] = new
    return tirx.PrimFunc(params, body, function.ret_type).with_attrs(function.attrs)


def _replaced(body: Any, old: Any, new: Any, spec: CpuSpec) -> Any:
    each = int(old.shape[4])
    several = int(new.shape[4]) // each

    def place(indices: Any) -> list[Any]:
        n, block, y, x, i = indices
        if several == 1:
            return [n, block, y, x, i]
        inside = tirx.indexmod(block, several) * each
        return [n, tirx.indexdiv(block, several), y, x, inside + i]

    def load(found: Any) -> Any:
        if not found.source.same_as(old):
            return found
        bits = tirx.Cast("uint32", tirx.BufferLoad(new, place(found.indices)))
        return tirx.reinterpret("float32", tirx.shift_left(bits, tirx.const(16, "uint32")))

    def stores(within: Any, lanes: int) -> Any:
        def store(found: Any) -> Any:
            if not found.buffer.same_as(old):
                return found
            value = bfloat16_of(found.value, lanes, spec)
            return tirx.BufferStore(new, value, place(found.indices))

        return tvm_ffi.structural_map(within, (tirx.BufferStore, store))

    def loop(found: Any) -> Any:
        if found.kind != tirx.ForKind.VECTORIZED:
            return found
        return stores(found, int(found.extent))

    body = tvm_ffi.structural_map(body, (ir.TensorLoad, load))
    return stores(tvm_ffi.structural_map(body, (tirx.For, loop)), 1)
