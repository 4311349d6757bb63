"""What several kernels share: fused epilogues, divisors, what fits into registers."""

from __future__ import annotations

from typing import Any

from targets.cpu.spec import CpuSpec
from targets.workload import Workload


def with_epilogue(w: Workload, sums: Any, shape: tuple[int, ...], ob: int) -> tuple[list[Any], Any]:
    """The bias and the residual as placeholders, and the result of all steps on `sums`, a te tensor
    of `shape` (n, channel block, y, x, channel of a block of `ob`), or larger."""
    from tvm import te

    inputs = epilogue_inputs(w, shape, ob)

    def value(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
        return epilogue_value(w, inputs, sums[n, o, y, x, b], (n, o, y, x, b))

    return list(inputs.values()), te.compute(shape, value, name="out")


def epilogue_inputs(w: Workload, shape: tuple[int, ...], ob: int) -> dict[str, Any]:
    """The placeholders `bias` and `residual`, where the epilogue has such a step."""
    from tvm import te

    inputs: dict[str, Any] = {}
    if any(step.kind == "bias" for step in w.epilogue):
        inputs["bias"] = te.placeholder((w.out_channels // ob, ob), name="bias")
    if any(step.kind == "residual" for step in w.epilogue):
        inputs["residual"] = te.placeholder(shape, name="residual")
    return inputs


def epilogue_value(
    w: Workload,
    inputs: dict[str, Any],
    found: Any,
    at: tuple[Any, ...],
    channel: tuple[Any, ...] | None = None,
) -> Any:
    """All steps on `found`, the sum at the place `at`: (n, channel block, y, x, channel), or others
    where `channel`, the place in the bias, is given."""
    from tvm import tirx

    for step in w.epilogue:
        if step.kind == "bias":
            found = found + inputs["bias"][(at[1], at[-1]) if channel is None else channel]
        elif step.kind == "residual":
            found = found + inputs["residual"][at]
        else:
            clip = tirx.max if step.kind == "max" else tirx.min
            found = clip(found, tirx.const(float(step.value), "float32"))
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
    from tvm import te

    inputs: dict[str, Any] = {}
    if any(step.kind == "bias" for step in w.epilogue):
        inputs["bias"] = te.placeholder((w.out_channels,), name="bias")
    if any(step.kind == "residual" for step in w.epilogue):
        inputs["residual"] = te.placeholder(sums.shape, name="residual")

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
