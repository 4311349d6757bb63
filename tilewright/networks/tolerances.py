"""Default limits on the difference between an artifact's outputs and those of its source model.

For an accelerator program, the difference is a relative error: the norm of the difference divided
by the norm of the output. For a compiled library, it is the largest absolute difference divided by
the largest absolute output value. `tilewright build --tolerance` overrides both.
"""

from __future__ import annotations

OF_QUANTISED = 0.1
"""Limit for a quantised model. It is smaller than the limit for a float model, because the hardware
has to reproduce the integers of the model itself."""
OF_FLOAT = 0.5
"""Limit for a float model on an accelerator. It is large because the conversion to int8 itself
causes errors."""
OF_FLOAT32 = 1e-4
"""Limit for a library that computes in float32, and for each kernel of such a library."""
OF_BFLOAT16 = 0.05
"""Limit for a library whose layers multiply in bfloat16. A bfloat16 number has 8 significant
bits."""
OF_STORED = 2.0**-6
"""Limit for a single kernel that reads or writes tensors that are stored in bfloat16."""


def program_tolerance(*, quantised: bool) -> float:
    """Return the default limit on the relative error of a program for an int8 accelerator.

    Args:
        quantised: whether the source model is quantised.
    """
    return OF_QUANTISED if quantised else OF_FLOAT


def library_tolerance(float_type: str, *, quantised: bool) -> float:
    """Return the default limit on the error of a compiled CPU library.

    The error is the largest absolute difference divided by the largest absolute output value.

    Args:
        float_type: type in which the layers multiply, "float32" or "bfloat16".
        quantised: whether the source model is quantised.
    """
    if quantised:
        return OF_QUANTISED
    return OF_BFLOAT16 if float_type == "bfloat16" else OF_FLOAT32
