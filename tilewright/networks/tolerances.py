"""Default bounds on how far the outputs of an artifact may be from those of its source model.

A bound of a program for an accelerator is a relative error: the norm of the difference over the
norm of the output. A bound of a compiled library is the largest difference of a value, as a share
of the output's largest value. `tilewright build --tolerance` replaces either.
"""

from __future__ import annotations

OF_QUANTISED = 0.1
"""Bound for a model that is quantised already, whose numbers the hardware has to give."""
OF_FLOAT = 0.5
"""Bound for a float model on an accelerator, which int8 changes itself."""
OF_FLOAT32 = 1e-4
"""Bound for a library that computes in float32, and for each of its kernels."""
OF_BFLOAT16 = 0.05
"""Bound for a library whose layers multiply in bfloat16, which keeps eight bits of a number."""
OF_STORED = 2.0**-6
"""Bound for one kernel that reads or writes bfloat16."""


def program_tolerance(*, quantised: bool) -> float:
    """Return the bound on the outputs of a program for an int8 accelerator."""
    return OF_QUANTISED if quantised else OF_FLOAT


def library_tolerance(float_type: str, *, quantised: bool) -> float:
    """Return the bound on the outputs of a library whose layers multiply numbers of a type."""
    if quantised:
        return OF_QUANTISED
    return OF_BFLOAT16 if float_type == "bfloat16" else OF_FLOAT32
