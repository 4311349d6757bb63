"""Lowers batches of schedules of one workload to programs, with compiled code on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Ragged, Space
from tilewright.targets.vta.fused_patterns import patterns_of, pipeline_of
from tilewright.targets.vta.instruction_format import Layout, layout_of
from tilewright.targets.vta.lowering.bias_lifting import lift_of, lifted_epilogue, lifted_geometry
from tilewright.targets.vta.lowering.canonical_configs import distinct, set_alike
from tilewright.targets.vta.lowering.extended import extended_space, lower_extended
from tilewright.targets.vta.lowering.fused_max_pool import lower_pooled
from tilewright.targets.vta.lowering.fused_shortcut import lower_summed
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_IMMEDIATE,
    Geometry,
    beside_geometry,
    check_composed,
    check_residual,
    epilogue_steps,
    geometry_of,
)
from tilewright.targets.vta.lowering.hidden_features import count_waits
from tilewright.targets.vta.lowering.instruction_writer import ProgramState, new_states
from tilewright.targets.vta.lowering.invalid_configs import OK, OUT_OF_SPACE
from tilewright.targets.vta.lowering.max_pool import check_pool, lower_pool, pool_space
from tilewright.targets.vta.lowering.ml2tuner_space import (
    EVERY_GROUP,
    lower_unchecked,
    unchecked_space,
)
from tilewright.targets.vta.lowering.template import lower_template, template_space
from tilewright.targets.vta.numba_decorators import allocating_helper, as_record, kernel
from tilewright.targets.vta.spec import Machine, VtaSpec
from tilewright.targets.workload import Workload

SpaceName = Literal["template", "extended", "unchecked"]
_LOWERINGS: dict[str, Callable[..., int]] = {
    "template": lower_template,
    "extended": lower_extended,
    "unchecked": lower_unchecked,
    "max_pool": lower_pool,
    "fused_max_pool": lower_pooled,
    "fused_shortcut": lower_summed,
}
"""Compiled lowering functions, by the name of the schedule space. Max-pools and some fused patterns
use a separate entry instead of that of their space."""
RowLowering = Callable[..., tuple[NDArray[np.uint64], NDArray[np.uint64]]]
_CHUNK = 64  # configs that a thread takes at a time
SCRATCH = 1 << 15  # number of instructions; longer programs are written twice


@dataclass(frozen=True)
class Lowering:
    """A workload bound to a machine and a schedule space, with all that compiled lowering needs.

    Attributes:
        workload: the workload.
        spec: specification of the machine.
        kind: name of the schedule space.
        stock: whether the restrictions of the stock compiler apply.
        machine: numbers of the machine.
        layout: bit positions of the instruction fields.
        geometry: packed sizes and memory layout of the workload.
        epilogue: rows of `epilogue_steps`, int64, shape (steps, 3).
        space: the schedule space.
    """

    workload: Workload
    spec: VtaSpec
    kind: SpaceName
    stock: bool
    machine: Machine
    layout: Layout
    geometry: Geometry
    epilogue: NDArray[np.int64]
    space: Space

    @classmethod
    def for_workload(
        cls, workload: Workload, spec: VtaSpec, kind: SpaceName, stock: bool = False
    ) -> Lowering:
        """Bind a workload to a machine and a schedule space.

        For a max-pool layer, all spaces except the unchecked one have the same schedules.

        Args:
            workload: the workload.
            spec: specification of the machine.
            kind: name of the schedule space.
            stock: whether to apply the restrictions of the stock compiler.

        Raises:
            WorkloadError: the machine cannot run the workload with any schedule of the space.
        """
        geometry = geometry_of(workload, spec.machine, column=kind == "extended")
        epilogue = epilogue_steps(workload)
        if workload.operator == "max_pool":
            check_pool(workload)
        check_residual(workload, kind == "extended")
        check_composed(workload, kind == "extended")
        patterns, pipeline = patterns_of(workload), pipeline_of(workload)
        for pattern in patterns:
            pattern.check(workload, kind == "extended")
        if workload.operator == "max_pool":
            if kind == "unchecked":
                raise WorkloadError(
                    f"{workload}: the unchecked space only supports convolutions; use another space"
                )
            space = pool_space(geometry, kind)
        elif kind == "template":
            space = template_space(geometry)
        elif kind == "extended":
            own_space = None if pipeline is None else pipeline.space
            space = (own_space or extended_space)(geometry)
            lift = lift_of(workload, spec.machine)
            geometry = lifted_geometry(geometry, lift)
            epilogue = lifted_epilogue(epilogue, lift, geometry.average_steps)
            for pattern in patterns:
                geometry, epilogue = pattern.lifted(workload, spec.machine, geometry, epilogue)
        else:
            space = unchecked_space()
            if (epilogue[:, 0] != EPILOGUE_IMMEDIATE).any():
                raise WorkloadError(
                    f"{workload}: the unchecked space supports no bias or residual; use the "
                    "extended space"
                )
        return cls(
            workload, spec, kind, stock, spec.machine, layout_of(spec), geometry,
            epilogue, space,
        )  # fmt: skip

    @property
    def records(self) -> tuple[Geometry, Machine, Layout]:
        """Geometry, machine and layout as NumPy records, for fast calls of compiled code."""
        return as_record(self.geometry), as_record(self.machine), as_record(self.layout)

    @property
    def shortcut_geometry(self) -> Geometry | None:
        """Geometry of the convolution's shortcut as a workload of its own, or None without one.

        The tensors of the shortcut and of the convolution are stored in the same memory.
        """
        return beside_geometry(self.workload, self.machine, self.geometry)

    @property
    def pipeline(self) -> str:
        """Key of the lowering function in `_LOWERINGS`.

        It is the name of the schedule space, or of the pipeline of a fused pattern that replaces
        the lowering of the space.
        """
        if self.workload.operator == "max_pool":
            return "max_pool"
        pattern = pipeline_of(self.workload)
        return self.kind if pattern is None else pattern.pipeline

    def program(
        self, values: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64], ProgramState]:
        """Lower a single schedule.

        Args:
            values: knob values (not indices), shape (knobs,).

        Returns:
            The failure code, the instructions of shape (n, 2), the micro-ops of shape (m,), and the
            record with the counts.
        """
        codes, states = np.zeros(1, np.int64), new_states(1)
        insns, uops = self.lower_rows(values[None], 0, 1, codes, states, keep=True)
        return int(codes[0]), insns, uops, states[0]

    def cut_program(
        self, values: NDArray[np.int64], groups: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Lower only the beginning of a schedule of the unchecked space.

        The program ends after the given number of groups of tiles. A group has one tile per virtual
        thread.

        Args:
            values: knob values (not indices), shape (3,).
            groups: number of groups of tiles.

        Returns:
            Instructions of shape (n, 2), and the content of the micro-op scratchpad, shape (m,).
        """
        codes, states = np.zeros(1, np.int64), new_states(1)
        return self.lower_rows(values[None], 0, 1, codes, states, True, (groups,))

    def find_distinct(
        self, values: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find rows of knob values that lead to the same program.

        Args:
            values: knob values (not indices), shape (n, knobs).

        Returns:
            The indices of one representative row per program, shape (rows,), and the position of
            each row's representative in this array, shape (n,). A row has the same failure, program
            and counts as its representative.
        """
        if self.pipeline != "extended":
            return np.arange(len(values)), np.arange(len(values))
        alike = values.copy()
        set_alike(*self.records, self.epilogue, alike)
        return distinct(alike)

    def lower_rows(
        self,
        values: NDArray[np.int64],
        begin: int,
        end: int,
        codes: NDArray[np.int64],
        states: NDArray[np.void],
        keep: bool,
        options: tuple[int, ...] | None = None,
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Lower a range of rows of a batch. The compiled code releases the GIL.

        Args:
            values: knob values (not indices), shape (n, knobs).
            begin: first row.
            end: row after the last one.
            codes: shape (n,); filled with the failure code of each row of the range.
            states: records of shape (n,); filled with the counts of each row of the range.
            keep: whether to return the programs.
            options: options of the compiled lowering; None for the default options.

        Returns:
            The instructions (…, 2) and micro-ops (…,) of the rows that compiled, concatenated. Both
            are empty unless `keep` is set.
        """
        pipeline = self.pipeline
        if options is None:
            options = {"template": (self.stock,), "unchecked": (EVERY_GROUP,)}.get(pipeline, ())
        return row_lowering(pipeline)(
            *self.records, self.epilogue, values, options, begin, end, codes, states, keep
        )

    def programs(
        self, values: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.void], Ragged, Ragged]:
        """Lower a batch and return its programs.

        Args:
            values: knob values (not indices), shape (n, knobs).

        Returns:
            The failure codes (n,); the counts (n,); the instructions, one row of shape (…, 2) per
            config; and the micro-ops, one row of shape (…,) per config. The rows of failed configs
            are empty.
        """
        codes = np.zeros(len(values), np.int64)
        states = new_states(len(values))
        kept: dict[int, tuple[NDArray[np.uint64], NDArray[np.uint64]]] = {}

        def run(begin: int, end: int) -> None:
            kept[begin] = self.lower_rows(values, begin, end, codes, states, keep=True)

        over_chunks(len(values), run)
        chunks = [kept[begin] for begin in sorted(kept)]
        compiled = codes == 0
        return (
            codes,
            states,
            _ragged([insns for insns, _ in chunks], states["instructions"] * compiled),
            _ragged([uops for _, uops in chunks], states["uops"] * compiled),
        )

    def counts(
        self, values: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.void]]:  # fmt: skip
        """Lower a batch and return only the failure codes and the counts.

        Args:
            values: knob values (not indices), shape (n, knobs).

        Returns:
            The failure codes, int64, shape (n,), and the records with the counts, shape (n,).
        """
        codes = np.zeros(len(values), np.int64)
        states = new_states(len(values))

        def run(begin: int, end: int) -> None:
            self.lower_rows(values, begin, end, codes, states, keep=False)

        over_chunks(len(values), run)
        return codes, states


def over_chunks(rows: int, run: Callable[[int, int], None]) -> None:
    """Call `run(begin, end)` for chunks of rows, in one thread per core.

    Args:
        rows: number of rows.
        run: processes the rows from `begin` to `end` (exclusive). It must release the GIL, or the
            threads run one after the other.
    """
    if rows <= _CHUNK:  # starting a thread would take longer than lowering these rows
        run(0, rows)
        return
    begins = range(0, rows, _CHUNK)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(begins))) as pool:
        for done in [pool.submit(run, b, min(b + _CHUNK, rows)) for b in begins]:
            done.result()


def _ragged(chunks: list[NDArray[np.uint64]], lengths: NDArray[np.int64]) -> Ragged:
    """Combine chunks of concatenated rows into one ragged array.

    Args:
        chunks: the chunks, in order.
        lengths: length of each row, shape (n,).
    """
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return Ragged(values, offsets)


@allocating_helper
def _grow(kept: NDArray[np.uint64], size: int, new_size: int) -> NDArray[np.uint64]:
    """Return a longer array that begins with the first rows of another array.

    Args:
        kept: the array.
        size: number of rows to keep.
        new_size: number of rows of the result.
    """
    grown = np.empty((new_size, kept.shape[1]), np.uint64)
    # Plain loops: for its error message, an assignment of slices compiles numba's strings, too.
    for i in range(size):
        for j in range(kept.shape[1]):
            grown[i, j] = kept[i, j]
    return grown


@cache
def row_lowering(pipeline: str) -> RowLowering:
    """Compile the loop that lowers the rows of a batch, for one entry of `_LOWERINGS`.

    Each lowering function has its own loop, so that a command compiles only the functions that it
    uses.

    Args:
        pipeline: key of the lowering function in `_LOWERINGS`.
    """
    lower = _LOWERINGS[pipeline]

    def lower_rows(
        geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
        values: NDArray[np.int64], options: tuple[int, ...], begin: int, end: int,
        codes: NDArray[np.int64], states: NDArray[np.void], keep: bool,
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:  # fmt: skip
        # Programs are written one after the other. Without `keep`, each program overwrites the last
        # one.
        insns, written = np.empty((SCRATCH, 2), np.uint64), 0
        uops = np.zeros(1 << m.log_uop_depth, np.uint64)
        kept_uops, uop_count = np.empty((256, 1), np.uint64), 0
        for r in range(begin, end):
            state = states[r]
            code = lower(geo, m, lay, epilogue, values[r], insns[written:], uops, state, options)
            while code == OUT_OF_SPACE:
                insns = _grow(insns, written, 2 * written + state.instructions * 5 // 4)
                code = lower(
                    geo, m, lay, epilogue, values[r], insns[written:], uops, state, options
                )
            codes[r] = code
            if code != OK:
                continue
            count_waits(insns[written : written + state.instructions], lay, m, state)
            if keep:
                written += state.instructions
                if uop_count + state.uops > len(kept_uops):
                    kept_uops = _grow(kept_uops, uop_count, 2 * (uop_count + state.uops))
                for i in range(state.uops):
                    kept_uops[uop_count + i, 0] = uops[i]
                uop_count += state.uops
        return insns[:written], kept_uops[:uop_count, 0].copy()

    # numba names compiled symbols after this name and a counter of the process. If different
    # processes write two symbols of one name into the cache, and one process loads both, the second
    # one reads the constants of the first.
    lower_rows.__qualname__ = f"lower_rows_{pipeline}"
    compiled: RowLowering = kernel(lower_rows)
    return compiled
