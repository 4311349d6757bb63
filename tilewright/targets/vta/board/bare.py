"""Decides whether a program runs without Python: the C runtime packs, copies and (de)quantises, no
more."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.targets.vta.board.bounds import fits_table
from tilewright.targets.vta.board.program import BoardProgram

DTYPES = ("int8", "uint8", "float32")
"""Of the tensors that it converts."""


def why_not_bare(program: BoardProgram, host_work: Sequence[str] = ()) -> str:
    """Why the C runtime cannot run a program, empty if it can; `host_work` names what
    the host must compute beside that."""
    ports = [port for step in program.steps for port in (*step.loads, *step.stores)]
    foreign = [f"{p.name} is {p.dtype}" for p in ports if p.dtype not in DTYPES]
    weights = [p.name for p in ports if p.form == "weights"]
    bits = 1 << program.spec.log_inp_width
    if host_work:
        return f"the host must compute {', '.join(host_work)}"
    if len(program.steps) != 1:
        return f"it runs in {len(program.steps)} steps with work of the host between them"
    if weights:
        return f"the host must pack {', '.join(weights)} as weights"
    if foreign:
        return f"{', '.join(foreign)}, neither int8, uint8 nor float32"
    if bits != 8:
        return f"activations have {bits} bits instead of 8"
    return _why_not_whole(program)


def _why_not_whole(program: BoardProgram) -> str:
    """Likewise, of its inputs and outputs."""
    step = program.steps[0]
    inputs = {value.name for value in program.inputs}
    stored = {port.name for port in step.stores}
    foreign = [port.name for port in step.loads if port.name not in inputs]
    copied = [value.name for value in program.outputs if value.name not in stored]
    strange = [f"{v.name} is {v.dtype} of shape {v.shape}"
               for v in (*program.inputs, *program.outputs) if not fits_table(v)]  # fmt: skip
    if foreign:
        return f"the host must make {', '.join(foreign)}, which no input is"
    if copied:
        return f"the host must make {', '.join(copied)}, which no layer writes as such"
    if strange:
        return f"{', '.join(strange)}, which the runtime does not take"
    return ""
