"""Implements what several kernels share: fused epilogues, divisors, what fits into registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu.kernels.activations import activated
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.steps.registry import STEP_KINDS
from tilewright.targets.steps.step import AluOperation
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")


def with_epilogue(w: Workload, sums: Any, shape: tuple[int, ...], ob: int) -> tuple[list[Any], Any]:
    """What the epilogue takes as placeholders, and the result of all steps on `sums`, a te tensor
    of `shape` (n, channel block, y, x, channel of a block of `ob`), or larger."""
    inputs = epilogue_inputs(w, shape, ob)

    def value(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
        return epilogue_value(w, inputs, sums[n, o, y, x, b], (n, o, y, x, b))

    return list(inputs.values()), te.compute(shape, value, name="out")


def epilogue_inputs(w: Workload, shape: tuple[int, ...], ob: int) -> dict[str, Any]:
    """The placeholders of `epilogue_tensors`."""
    channels = (w.out_channels // ob, ob)
    return {
        name: te.placeholder(channels if name in A_CHANNEL else shape, dtype, name=name)
        for name, dtype in epilogue_tensors(w).items()
    }


def tensors_type(w: Workload) -> str:
    """Of its data, its output, and weights before they are packed: products of bfloat16 are of
    rounded float32."""
    return "float32" if w.dtype == "bfloat16" else w.dtype


def sums_type(w: Workload) -> str:
    """Of the sums of products."""
    return "int32" if w.dtype == "int8" else "float32"


def widened(w: Workload, number: Any) -> Any:
    """A number of the data or the weights, as its products are summed."""
    return number if w.dtype == "float32" else tirx.Cast(sums_type(w), number)


A_CHANNEL = frozenset({"bias", "shr_channel"})
"""Steps whose tensors have one value an output channel; those of others are like the output."""
_STEPS = {"bias", "add", "residual", "offset", "shr", "shr_channel", "shl", "min", "max"}
_FLOATS = {"bias": "float32", "residual": "float32"}
_INTEGERS = {"bias": "int32", "shr_channel": "int32", "add": "int32", "residual": "int8"}


def computes(step: EpilogueOp) -> bool:
    """Whether kernels compute a step: those known by name, and those that ALU operations make
    up."""
    return (
        step.kind in _STEPS
        or step.kind in FUNCTIONS
        or bool(STEP_KINDS[step.kind].operations(step.value))
    )


def epilogue_tensors(w: Workload) -> dict[str, str]:
    """The element types of what the epilogue's steps take, in the order a kernel takes them."""
    kinds = {step.kind for step in w.epilogue}
    known = _INTEGERS if w.dtype == "int8" else _FLOATS
    return {name: dtype for name, dtype in known.items() if name in kinds}


def epilogue_value(
    w: Workload,
    inputs: dict[str, Any],
    found: Any,
    at: tuple[Any, ...],
    channel: tuple[Any, ...] | None = None,
) -> Any:
    """All steps on `found`, the sum at the place `at`: (n, channel block, y, x, channel), or others
    where `channel`, the place in the bias, is given."""
    place = (at[1], at[-1]) if channel is None else channel
    if w.dtype == "int8":
        tensors = {name: inputs[name][place if name in A_CHANNEL else at] for name in inputs}
        return _in_integers(w, tensors, found)
    for step in w.epilogue:
        if step.kind == "bias":
            found = found + inputs["bias"][place]
        elif step.kind == "residual":
            found = found + inputs["residual"][at]
        elif step.kind in FUNCTIONS:
            found = activated(step.kind, found)
        else:
            clip = tirx.max if step.kind == "max" else tirx.min
            found = clip(found, tirx.const(float(step.value), "float32"))
    return found


def wrapping_sum(one: Any, other: Any) -> Any:
    """Of two int32, modulo 2^32. TVM tells LLVM that sums of signed numbers never wrap, and takes
    what is cast from unsigned ones for positive: neither is so."""
    unsigned = tirx.reinterpret("uint32", one) + tirx.reinterpret("uint32", other)
    return tirx.reinterpret("int32", unsigned)


def _in_integers(w: Workload, tensors: dict[str, Any], found: Any) -> Any:
    """All steps on an int32 sum, which wrap as the reference's do, and its lowest eight bits;
    `tensors` are the values at its place."""
    for step in w.epilogue:
        constant = tirx.const(step.value, "int32")
        if step.kind in ("bias", "add"):
            found = wrapping_sum(found, tensors[step.kind])
        elif step.kind == "residual":
            residual = tirx.shift_left(tirx.Cast("int32", tensors["residual"]), constant)
            found = wrapping_sum(found, residual)
        elif step.kind == "offset":
            found = wrapping_sum(found, constant)
        elif step.kind == "shr_channel":
            found = tirx.shift_right(found, tensors["shr_channel"])
        elif step.kind in ("shr", "shl"):
            shift = tirx.shift_right if step.kind == "shr" else tirx.shift_left
            found = shift(found, constant)
        elif step.kind in ("min", "max"):
            found = (tirx.max if step.kind == "max" else tirx.min)(found, constant)
        else:
            found = _composed(STEP_KINDS[step.kind].operations(step.value), found)
    return tirx.Cast("int8", found)


def _composed(operations: Sequence[AluOperation], found: Any) -> Any:
    """A step on an int32 sum that ALU operations make up."""
    of = {
        "add": wrapping_sum, "min": tirx.min, "max": tirx.max, "shr": tirx.shift_right
    }  # fmt: skip
    copy = found
    for each in operations:
        constant = tirx.const(each.value, "int32")
        if each.place == "take":
            copy = found
        elif each.place == "aside":
            copy = of[each.operation](copy, constant)
        else:
            found = of[each.operation](found, copy if each.place == "back" else constant)
    return found


def registers(spec: CpuSpec) -> int:
    """Vector registers of the instruction set: AVX-512 has 32, AVX2 and SSE 16."""
    return 32 if spec.lanes == 16 else 16


def vectors(block: int, lanes: int) -> int:
    """Vector registers that `block` numbers take: a rest takes one for each power of two in it."""
    return block // lanes + (block % lanes).bit_count()


def with_row_epilogue(w: Workload, sums: Any) -> tuple[list[Any], Any]:
    """What `with_epilogue` does, on rows of output channels: `sums` of shape (..., channels), the
    bias of shape (channels,)."""
    inputs = {
        name: te.placeholder(
            (w.out_channels,) if name in A_CHANNEL else sums.shape, dtype, name=name
        )
        for name, dtype in epilogue_tensors(w).items()
    }

    def value(*place: Any) -> Any:
        return epilogue_value(w, inputs, sums[place], place, place[-1:])

    return list(inputs.values()), te.compute(sums.shape, value, name="out")


def divisors(number: int, at_most: int) -> tuple[int, ...]:
    """Of `number`, rising, none above `at_most`."""
    return tuple(d for d in range(1, min(number, at_most) + 1) if number % d == 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted` by factor."""
    return min(divisors(number, number), key=lambda d: max(d / wanted, wanted / d))


def even_parts(length: int, at_most: int) -> int:
    """The length of each of the fewest equal parts, none longer than `at_most`, that cover
    `length`; the last one may reach over it."""
    return -(-length // -(-length // at_most))
