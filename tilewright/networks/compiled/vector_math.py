"""Writes sigmoid, SiLU, GELU and QuantizeLinear with functions that are computed in vectors.

After `FastMathTransform`, TVM computes `exp`, `erf` and `tanh` by polynomials. Operators that
contain them would still call the C library once a value. So would rounding half away from zero,
which is not what ONNX says: it rounds half to even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi

Legalization = Callable[[Any, Any], Any]


def vector_legalizations() -> Mapping[str, Legalization]:
    """What `LegalizeOps` takes for these operators. Values that are not float32 keep TVM's way, and
    so do integers of more than eight bits."""
    made = {
        "relax.sigmoid": _sigmoid,
        "relax.nn.silu": _silu,
        "relax.nn.gelu": _gelu,
        "relax.nn.gelu_tanh": _gelu_tanh,
    }
    found = {name: _legalization(name, compute) for name, compute in made.items()}
    return {**found, "relax.quantize": _quantise}


def _legalization(name: str, compute: Callable[[Any], Any]) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalized(builder: Any, call: Any) -> Any:
        if str(call.args[0].ty.dtype) != "float32":
            return usual(builder, call)
        hint = name.rpartition(".")[2]
        return builder.call_te(compute, call.args[0], primfunc_name_hint=hint)

    return legalized


def _quantise(builder: Any, call: Any) -> Any:
    x, scale, zero = call.args
    dtype, axis = str(call.attrs.out_dtype), int(call.attrs.axis)
    if str(x.ty.dtype) != "float32" or dtype not in ("int8", "uint8"):
        return tvm.ir.Op.get("relax.quantize").get_attr("FLegalize")(builder, call)
    least, most = (float(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))

    def compute(x: Any, scale: Any, zero: Any) -> Any:
        def value(*place: Any) -> Any:
            at = () if scale.ndim == 0 else (place[axis],)
            zero_at = () if zero.ndim == 0 else (place[axis],)
            steps = tirx.nearbyint(x[place] / scale[at]) + tirx.Cast("float32", zero[zero_at])
            return tirx.Cast(dtype, tirx.max(tirx.min(steps, most), least))

        return te.compute(x.shape, value, name="quantize")

    return builder.call_te(compute, x, scale, zero, primfunc_name_hint="quantize")


def _sigmoid(x: Any) -> Any:
    # fast_exp cuts its argument at 88, so the sum stays finite.
    return 1.0 / (1.0 + topi.fast_exp(-x))


def _silu(x: Any) -> Any:
    return x * _sigmoid(x)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + topi.fast_erf(x * sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    # 0.5 (1 + tanh y) is the sigmoid of 2 y.
    return x * _sigmoid(x * (1.0 + 0.044715 * x * x) * (2 * sqrt(2 / pi)))
