"""Hypothesis strategies for every kind of layer that a VTA runs, and for their schedules.

`KINDS` has one strategy per kind. `test_drawn_schedules.py` tests the properties that all kinds
share; each kind's own properties are tested in a separate file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import EpilogueOp, parse_epilogue
from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.tensor_packing import random_tensors
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload

PYNQ = VtaSpec.load("vta-pynq")
_NARROW_BLOCKS = {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 13, "LOG_ACC_BUFF_SIZE": 14}
SPECS = [
    PYNQ,
    VtaSpec.load("small"),
    VtaSpec.load("evta-zcu102"),
    VtaSpec.load("large"),
    VtaSpec.from_mapping(_NARROW_BLOCKS | {"LOG_WGT_BUFF_SIZE": 15}),
    VtaSpec.from_mapping({"LOG_BLOCK_IN": 5, "LOG_BLOCK_OUT": 4}),
    VtaSpec.from_mapping(
        {
            "LOG_BATCH": 1, "LOG_BLOCK_IN": 3, "LOG_BLOCK_OUT": 4, "LOG_INP_BUFF_SIZE": 13,
            "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 14,
        }
    ),
]  # fmt: skip
PRESETS = [*SPECS, VtaSpec.load("huge")]
SQUARE = [
    PYNQ,
    VtaSpec.load("small"),
    VtaSpec.load("vta-pynq-512"),
    VtaSpec.load("large"),
    VtaSpec.from_mapping(
        {
            "LOG_BATCH": 1, "LOG_BLOCK_IN": 3, "LOG_BLOCK_OUT": 3, "LOG_INP_BUFF_SIZE": 13,
            "LOG_WGT_BUFF_SIZE": 14, "LOG_ACC_BUFF_SIZE": 14,
        }
    ),
]  # fmt: skip
"""Machines with square blocks. Only these can move a pixel unchanged through the GEMM core into the
accumulators."""
SCANT = VtaSpec.from_mapping({"LOG_BLOCK": 5, "LOG_WGT_BUFF_SIZE": 14, "LOG_ACC_BUFF_SIZE": 16})
"""A machine with only sixteen weight elements of 128 beats each, so that most layers stream their
weights."""
RESIDUAL_SPECS = [
    PYNQ,
    VtaSpec.load("small"),
    VtaSpec.load("large"),
    VtaSpec.from_mapping(
        {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 11, "LOG_WGT_BUFF_SIZE": 14, "LOG_ACC_BUFF_SIZE": 13}
    ),
    VtaSpec.from_mapping(_NARROW_BLOCKS | {"LOG_BATCH": 1}),
]  # fmt: skip

EPILOGUES = [
    ">> 8, min 127, max 0",
    "bias, >> 8, min 127, max -128",
    "bias, add, relu, >> 7, min 127",
    "add, >> 6, min 127, max -128",
    "",
    ">> 4, add, min 127, max 0",
    "relu, bias, << 1, >> 9, max -128, min 127",
    "bias, >> channel 8, min 127, max -128",
    "bias 32, >> channel, min 127, max 0",
    "add, >> channel, relu, min 127",
]
POOLED_EPILOGUES = [
    "bias, >> 8, min 127, max 0",
    "bias 32, >> 9, min 127, max -128",
    "bias, >> channel 6, min 127, max 0",
    ">> channel, min 127, max 0",
    "+ 128, >> 8, min 127, max 0, max 3",
    "",
    "<< 1, >> 9, max -128, min 127",
]
BEFORE_AVERAGE = [
    "bias, >> 8, min 127, max 0",
    "bias 32, residual 3, >> 9, min 127, max -128",
    "bias, residual 9, >> 9, min 127, max 0",
    "add, >> 8, min 127, max -128",
    "bias, >> channel 6, min 127, max 0",
    "",
]
BEHIND_AVERAGE = [
    "+ 2048, >> 12, min 127, max -128",
    "+ 32, >> 6, max 0, min 90",
    "<< 2, >> 9, min 127, max -128",
    "",
]
LEAKY_EPILOGUES = [
    "bias, leaky 3, + 128, >> 8, min 127, max -128",
    "bias 32, residual 3, leaky 1, + 64, >> 7, min 127, max -128",
    "add, leaky 7, >> 9, min 127, max -128",
    ">> 4, add, leaky 5, >> 2, min 127, max -128",
    "leaky 15, leaky 2, >> channel, min 90, max -3",
    ">> 8, min 127, max -128, leaky 4",
]
OF_SHORTCUT = [
    "bias, >> 8, min 127, max -128, << 3",
    "bias, >> 8, min 127, max -128",
    "bias 32, >> 9, max -128, min 127, << 10",
    "bias, >> channel 6, min 127, max 0, << 1",
    "+ 128, >> 8, min 127, max -128",
    "",
]
BEHIND_SHORTCUT = [
    "bias, >> 8, min 127, max 0",
    "bias 32, >> 9, min 100, max -128",
    "bias, >> channel 6, min 127, max 0",
    "+ 128, >> 8, min 127, max 0",
    "bias, >> 8, max 0",
    "",
]
POOL_EPILOGUES = ["", "", ">> 1, min 127, max 0", "+ 5, << 1, min 100", "relu"]
RESIDUAL_SCALES = (0, 3, 6, 7, 9)
RESIDUAL_EPILOGUES = (
    "residual {k}, >> 8, min 127, max -128",
    "bias, residual {k}, >> 8, min 127, max 0",
    "residual {k}, bias, + 128, >> 8, min 127",
    "add, residual {k}, >> 5",
    "bias, residual {k}, add, relu, >> 7, min 127",
    "residual {k}, relu, add, >> 7",
)


# -- layers ------------------------------------------------------------------------------------


def _epilogue(draw: st.DrawFn, texts: list[str]) -> tuple[EpilogueOp, ...]:
    return parse_epilogue(draw(st.sampled_from(texts)))


def _pads(draw: st.DrawFn, kernel: tuple[int, int]) -> tuple[int, ...]:
    """Draw the top, left, bottom and right padding, each less than the kernel size."""
    return draw(st.tuples(*[st.integers(0, kernel[a % 2] - 1) for a in range(4)]))


@st.composite
def convolutions(draw: st.DrawFn) -> Workload:
    """Draw convolutions with odd sizes, kernels up to 7×7, and all kinds of attributes.

    These are strides, asymmetric padding, dilation, batches and groups.
    """
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    dilation = draw(st.sampled_from([1, 1, 1, 2]))
    reach = [(k - 1) * dilation + 1 for k in kernel]
    pads = _pads(draw, kernel)
    height = draw(st.integers(reach[0], reach[0] + 12))
    width = draw(st.integers(reach[1], reach[1] + 12))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return Workload(
        "conv2d", draw(st.integers(1, 3)), draw(st.integers(1, 40)) * groups, height, width,
        draw(st.integers(1, 40)) * groups, *kernel, *stride, *pads, dilation, dilation, groups,
        post=_epilogue(draw, EPILOGUES),
    )  # fmt: skip


@st.composite
def batched_dense(draw: st.DrawFn) -> Workload:
    """Draw dense layers whose rows may or may not fill the machine's batch."""
    return Workload(
        "dense", draw(st.integers(2, 70)), draw(st.integers(1, 130)), 1, 1,
        draw(st.integers(1, 130)), post=_epilogue(draw, EPILOGUES),
    )  # fmt: skip


@st.composite
def residual_layers(draw: st.DrawFn) -> Workload:
    """Draw layers with a residual: convolutions with groups and batches, and dense layers."""
    text = draw(st.sampled_from(RESIDUAL_EPILOGUES))
    epilogue = parse_epilogue(text.format(k=draw(st.sampled_from(RESIDUAL_SCALES))))
    if draw(st.integers(0, 3)) == 0:
        rows, c, o = draw(st.tuples(st.integers(1, 60), st.integers(1, 130), st.integers(1, 130)))
        return Workload("dense", rows, c, 1, 1, o, post=epilogue)
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    size = draw(st.tuples(st.integers(kernel[0], 15), st.integers(kernel[1], 15)))
    pads = _pads(draw, kernel)
    stride = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    groups = draw(st.sampled_from([1, 1, 2, 20]))
    channels = draw(st.tuples(st.integers(1, 40 // groups), st.integers(1, 60 // groups)))
    return Workload(
        "conv2d", draw(st.integers(1, 3)), channels[0] * groups, *size, channels[1] * groups,
        *kernel, *stride, *pads, 1, 1, groups, post=epilogue,
    )  # fmt: skip


@st.composite
def pools(draw: st.DrawFn) -> Workload:
    """Draw max-pools with windows below, at and above the stride, and asymmetric padding."""
    kernel = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    pads = _pads(draw, kernel)
    height = draw(st.integers(max(1, kernel[0] - pads[0] - pads[2]), kernel[0] + 14))
    width = draw(st.integers(max(1, kernel[1] - pads[1] - pads[3]), kernel[1] + 14))
    channels = draw(st.integers(1, 70))
    return Workload(
        "max_pool", draw(st.integers(1, 3)), channels, height, width, channels, *kernel, *stride,
        *pads, groups=channels, post=_epilogue(draw, POOL_EPILOGUES),
    )  # fmt: skip


@st.composite
def convolutions_with_pools(draw: st.DrawFn) -> tuple[Workload, Pool]:
    """Draw convolutions with max-pools.

    The window is at least as large as the stride. Padding before and after the sums is asymmetric,
    sizes are odd, and there are groups and batches. There may be fewer sums than a window has.
    """
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.sampled_from([1, 1, 1, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    window = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = tuple(draw(st.integers(1, size)) for size in window)
    pads, behind = _pads(draw, kernel), _pads(draw, window)
    reach = [(k - 1) * dilation + 1 for k in kernel]
    # at least as many sums as a window has
    least = [reach[0] + window[0] - 1, reach[1] + window[1] - 1]
    height = draw(st.integers(least[0], least[0] + 12))
    width = draw(st.integers(least[1], least[1] + 12))
    return Workload(
        "conv2d", draw(st.integers(1, 2)), draw(st.integers(1, 40)) * groups, height, width,
        draw(st.integers(1, 40)) * groups, *kernel,
        *draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), *pads, dilation, dilation, groups,
        post=_epilogue(draw, POOLED_EPILOGUES),
    ), Pool(*window, *stride, *behind)  # fmt: skip


def with_pool(convolution: Workload, pool: Pool) -> Workload:
    """Fuse a pool into a convolution. Reject the example if there are too few sums."""
    try:
        return convolution.with_patterns(pool)
    except WorkloadError:
        assume(False)
        raise


@st.composite
def pooled_convolutions(draw: st.DrawFn) -> Workload:
    return with_pool(*draw(convolutions_with_pools()))


def _maybe_with_shortcut(draw: st.DrawFn, own: Workload) -> Workload:
    """Add a shortcut to half of the layers that can have one."""
    tensors = any(op.kind in ("add", "residual") for op in own.epilogue)
    if own.groups > 1 or tensors or not draw(st.booleans()):
        return own
    first = parse_epilogue("bias, >> 8, min 127, max -128, << 3")
    size = own.out_height, own.out_width
    return own.with_patterns(Shortcut(draw(st.integers(1, 40)), *size, epilogue=first))


def _grouped(draw: st.DrawFn, epilogues: list[str]) -> Workload:
    """Draw convolutions with groups and batches, on images from 1×1 to several tiles."""
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = _pads(draw, kernel)
    groups = draw(st.sampled_from([1, 1, 1, 2, 20]))
    return Workload(
        "conv2d", draw(st.integers(1, 3)), draw(st.integers(1, 3 if groups > 2 else 40)) * groups,
        draw(st.integers(kernel[0], 12)), draw(st.integers(kernel[1], 12)),
        draw(st.integers(1, 3 if groups > 2 else 40)) * groups, *kernel,
        *draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), *pads, groups=groups,
        post=_epilogue(draw, epilogues),
    )  # fmt: skip


@st.composite
def averaged(draw: st.DrawFn) -> Workload:
    """Draw convolutions whose outputs are averaged, some with a shortcut."""
    own = _grouped(draw, BEFORE_AVERAGE)
    behind = _epilogue(draw, BEHIND_AVERAGE)
    own = _maybe_with_shortcut(draw, own)
    return own.with_patterns(Average(own.out_height, own.out_width, behind))


@st.composite
def leaking(draw: st.DrawFn) -> Workload:
    """Draw layers with a leaky ReLU, some with a shortcut or an average."""
    own = _maybe_with_shortcut(draw, _grouped(draw, LEAKY_EPILOGUES))
    if draw(st.booleans()):
        behind = parse_epilogue("+ 32, >> 6, max -128, min 127")
        own = own.with_patterns(Average(own.out_height, own.out_width, behind))
    return own


@st.composite
def with_shortcuts(draw: st.DrawFn) -> Workload:
    """Draw convolutions with shortcuts.

    Kernels, strides and batches vary. The shortcut has its own strides, and its image may be larger
    than the part that these strides read.
    """
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = _pads(draw, kernel)
    own = Workload(
        "conv2d", draw(st.integers(1, 2)), draw(st.integers(1, 70)),
        draw(st.integers(kernel[0], 14)), draw(st.integers(kernel[1], 14)),
        draw(st.integers(1, 70)), *kernel,
        *draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), *pads,
        post=_epilogue(draw, BEHIND_SHORTCUT),
    )  # fmt: skip
    steps = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    sizes = [
        (out - 1) * step + 1 + draw(st.integers(0, step - 1))
        for out, step in zip((own.out_height, own.out_width), steps, strict=True)
    ]
    epilogue = _epilogue(draw, OF_SHORTCUT)
    return own.with_patterns(Shortcut(draw(st.integers(1, 70)), *sizes, *steps, epilogue))


class Kind(NamedTuple):
    """A kind of layer: a strategy for layers, the machines that run them, and their spaces.

    If `may_be_refused` is set, some layers have no schedule on machines without square blocks,
    because they have a residual.
    """

    layers: st.SearchStrategy[Workload]
    specs: list[VtaSpec]
    spaces: tuple[SpaceName, ...] = ("extended",)
    may_be_refused: bool = False


KINDS = {
    "plain": Kind(
        st.one_of(convolutions(), batched_dense()), SPECS, ("extended", "extended", "template")
    ),
    "residual": Kind(residual_layers(), [*RESIDUAL_SPECS, SCANT]),
    "max_pool": Kind(pools(), SQUARE),
    "pooled": Kind(pooled_convolutions(), SPECS),
    "averaged": Kind(averaged(), PRESETS, may_be_refused=True),
    "leaky": Kind(leaking(), PRESETS, may_be_refused=True),
    "shortcut": Kind(with_shortcuts(), SPECS),
}


# -- schedules ---------------------------------------------------------------------------------


def drawn_values(lowering: Lowering, seed: int, count: int = 24) -> np.ndarray:
    """Draw knob values of random configs, shape (count, knobs)."""
    flat = np.random.default_rng(seed).integers(0, lowering.space.size, count)
    return lowering.space.values(lowering.space.unravel(flat))


def accepted(lowering: Lowering, seed: int, count: int = 24) -> np.ndarray:
    """Return the knob values (n, knobs) of those among `count` random configs that lower."""
    values = drawn_values(lowering, seed, count)
    codes, _ = lowering.counts(values)
    return values[codes == 0]


def complaints(lowering: Lowering, values: np.ndarray) -> list[str]:
    """Return reasons why a program may behave differently on hardware or after another program.

    On hardware, tokens may be lost or data overwritten too early. Another program would be
    disturbed by leftover tokens.
    """
    program = program_with_data(
        lowering, values, random_tensors(lowering.workload, lowering.machine, 0)
    )
    assert program is not None
    left = simulate(program, lowering.spec).tokens_left
    names = [f.name for f in lint(program, lowering.spec) if f.severity != "note"]
    return names + [f"tokens in {queue}" for queue, count in left.items() if count]
