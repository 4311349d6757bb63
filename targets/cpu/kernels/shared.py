"""What several kernels share: fused epilogues, divisors."""

from __future__ import annotations

from typing import Any

from targets.workload import Workload


def with_epilogue(w: Workload, sums: Any, shape: tuple[int, ...], ob: int) -> tuple[list[Any], Any]:
    """The bias and the residual as placeholders, and the result of all steps on `sums`, a te tensor
    of `shape` (n, channel block, y, x, channel of a block of `ob`)."""
    from tvm import te, tirx

    inputs: dict[str, Any] = {}
    if any(step.kind == "bias" for step in w.epilogue):
        inputs["bias"] = te.placeholder((w.out_channels // ob, ob), name="bias")
    if any(step.kind == "residual" for step in w.epilogue):
        inputs["residual"] = te.placeholder(shape, name="residual")

    def value(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
        found = sums[n, o, y, x, b]
        for step in w.epilogue:
            if step.kind == "bias":
                found = found + inputs["bias"][o, b]
            elif step.kind == "residual":
                found = found + inputs["residual"][n, o, y, x, b]
            else:
                clip = tirx.max if step.kind == "max" else tirx.min
                found = clip(found, tirx.const(float(step.value), "float32"))
        return found

    return list(inputs.values()), te.compute(shape, value, name="out")


def divisors(number: int, at_most: int) -> tuple[int, ...]:
    """Of `number`, rising, none above `at_most`."""
    return tuple(d for d in range(1, min(number, at_most) + 1) if number % d == 0)
