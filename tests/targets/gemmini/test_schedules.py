"""Compares random schedules, run on the functional simulator, with numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets import gemmini, make_target
from tilewright.targets.gemmini.lowering.batch import WorkloadLowering
from tilewright.targets.gemmini.lowering.memory_layout import constants
from tilewright.targets.workload import Workload, canonical, parse_workload

ROUNDED = "bias, >> even 8, min 127, max 0"
LAYERS = {
    "dense:n=128,c=128,o=128": ROUNDED,
    "dense:n=1,c=100,o=10": ROUNDED,
    "dense:n=49,c=72,o=40": ">> 8, min 127, max 0",
    "dense:n=20,c=48,o=100": ROUNDED,
    "conv2d:n=1,c=32,h=9,w=9,o=48,k=3,s=2,p=1": ROUNDED,
    "conv2d:n=1,c=20,h=20,w=20,o=24,k=3,s=1,p=1": "bias, residual 7, >> even 9, min 127, max -128",
    "conv2d:n=1,c=32,h=6,w=6,o=32,k=1,s=1,p=0": "+ 77, weighted 300, >> even 9, min 127, max -128",
    "conv2d:n=2,c=16,h=7,w=7,o=32,k=1,s=2,p=0": ROUNDED,
    "conv2d:n=1,c=40,h=10,w=10,o=40,k=3,s=1,p=1,g=40": ROUNDED,
    "conv2d:n=1,c=24,h=9,w=9,o=48,k=3,s=1,p=1,g=3,d=2": ROUNDED,
    "conv2d:n=1,c=24,h=9,w=9,o=24,k=1,s=1,p=0,g=24": ">> even 2, min 127, max -128",
    "conv2d:n=1,c=3,h=30,w=30,o=32,k=7,s=2,p=3x2x1x3": ROUNDED,
}
Array = NDArray[np.int64]


def sums(w: Workload, data: Array, weight: Array) -> Array:
    """Compute the sums of products, one kernel position at a time, shape (n, o, oh, ow)."""
    padded = np.pad(data, ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)))
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    out = np.zeros((w.batch, w.out_channels, w.sums_height, w.sums_width), np.int64)
    for i in range(w.kernel_h):
        for j in range(w.kernel_w):
            y, x = i * w.dilation_h, j * w.dilation_w
            seen = padded[
                :, :, y : y + (w.sums_height - 1) * w.stride_h + 1 : w.stride_h,
                x : x + (w.sums_width - 1) * w.stride_w + 1 : w.stride_w,
            ]  # fmt: skip
            for g in range(w.groups):
                outs, ins = (slice(g * n, (g + 1) * n) for n in (per_out, per_in))
                out[:, outs] += np.einsum("nchw,oc->nohw", seen[:, ins], weight[outs, :, i, j])
    return out


def expected(w: Workload, tensors: dict[str, Array]) -> Array:
    """Compute the output step by step in exact arithmetic. All sums fit into 24 bits."""
    total = sums(w, tensors["data"], tensors["weight"])
    for step in w.epilogue:
        if step.kind == "bias":
            total = total + tensors["bias"][:, None, None]
        elif step.kind == "offset":
            total = total + step.value
        elif step.kind in ("residual", "weighted"):
            factor = step.value if step.kind == "weighted" else 2**step.value
            total = total + tensors["residual"] * factor
        elif step.kind == "shr":
            total = total // 2**step.value
        elif step.kind == "shr_even":
            total = np.round(total / 2**step.value).astype(np.int64)
        else:
            total = (np.minimum if step.kind == "min" else np.maximum)(total, step.value)
    return total


def in_memory(image: Array) -> NDArray[np.int8]:
    """Convert (n, c, h, w) to the layout in memory, with the channels last.

    The channels are padded to 16, 32 or a multiple of 64.
    """
    rows = np.moveaxis(image, 1, -1)
    step = next((size for size in (16, 32) if rows.shape[-1] <= size), 64)
    return np.pad(rows, ((0, 0),) * 3 + ((0, -rows.shape[-1] % step),)).astype(np.int8)


@pytest.mark.parametrize("text", LAYERS)
def test_drawn_schedules_compute_a_layer(text: str) -> None:
    workload, rng = parse_workload(text, LAYERS[text]), np.random.default_rng(5)
    target = make_target("gemmini")
    lowering = target.lowering(workload)  # type: ignore[attr-defined]
    g, w = lowering.geometry, workload
    shapes = {
        "data": (w.batch, w.in_channels, w.height, w.width),
        "weight": (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w),
        "residual": (w.batch, w.out_channels, w.out_height, w.out_width),
    }
    tensors = {name: rng.integers(-128, 128, shape) for name, shape in shapes.items()}
    tensors["bias"] = rng.integers(-(1 << 19), 1 << 19, w.out_channels)
    image = np.zeros(1 << 21, np.uint8)
    bias = tensors["bias"] if "bias" in LAYERS[text] else None
    parts = {"data": in_memory(tensors["data"]), **constants(g, tensors["weight"], bias)}
    if g.epilogue.residual:
        parts["residual"] = in_memory(tensors["residual"])
    for role, values in parts.items():
        at = g.addresses[role] - 0x80000000
        image[at : at + values.nbytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
    space, want, ran = target.space(workload), expected(w, tensors), 0
    lowered = target.lower(workload, space.unravel(rng.integers(0, space.size, 16)))
    for row in np.flatnonzero(lowered.ok):
        program = lowered.programs["commands"][row]
        after = gemmini.execute(*program.T, image.tobytes(), 0x80000000)
        at = g.addresses["output"] - 0x80000000
        pixels = want.shape[0] * want.shape[2] * want.shape[3]
        stored = np.frombuffer(after, np.int8)[at : at + pixels * g.output_stride]
        got = stored.reshape(w.batch, w.out_height, w.out_width, -1)[..., : w.out_channels]
        assert np.array_equal(np.moveaxis(got, -1, 1), want), space.describe(lowered.configs[row])
        ran += 1
    assert ran >= 8


def test_rounding_down_is_exact_at_every_tie_behind_a_relu() -> None:
    """The sums are at and around all ties of all shifts: the bias of a product with zeros."""
    for shift in range(1, 16):
        workload = parse_workload("dense:n=1,c=16,o=1024", f"bias, >> {shift}, min 127, max 0")
        target = make_target("gemmini")
        g = target.lowering(workload).geometry  # type: ignore[attr-defined]
        base = np.arange(-128, 128)[:, None] * 2**shift
        bias = (base + np.array([-1, 0, 1, 2 ** (shift - 1)])).ravel()
        lowered = target.lower(workload, np.zeros((1, 11), np.int32))
        image = np.zeros(1 << 20, np.uint8)
        at = g.addresses["bias"] - 0x80000000
        stored = (bias + g.epilogue.constant).astype(np.int32).view(np.uint8)
        image[at : at + len(stored)] = stored
        after = gemmini.execute(*lowered.programs["commands"][0].T, image.tobytes(), 0x80000000)
        at = g.addresses["output"] - 0x80000000
        got = np.frombuffer(after, np.int8)[at : at + 1024]
        assert np.array_equal(got, np.clip(bias // 2**shift, 0, 127)), shift


@pytest.mark.parametrize(
    ("epilogue", "said"),
    [
        (">> 8, min 127, max -128", ">> even 8"),
        (">> 16, min 127, max 0", "at most 15 bits"),
        (">> even 8, min 96, max 0", "clips to 0…96"),
        (">> channel, min 127, max 0", "is not supported"),
        ("residual 14, >> even 8, min 127, max 0", "multiplied by 16384"),
        (">> even 8", "only -128…127"),
    ],
)
def test_an_epilogue_that_no_store_computes_is_refused(epilogue: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        make_target("gemmini").space(parse_workload("dense:n=1,c=16,o=16", epilogue))


@pytest.mark.parametrize(
    "text",
    ["max_pool:n=1,c=16,h=8,w=8,k=2,s=2,p=0", "dense:n=1,c=16,o=16,dtype=float32",
     "batch_matmul:n=2,h=16,c=16,o=16"],
)  # fmt: skip
def test_an_operator_that_the_array_lacks_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="conv2d and dense in int8"):
        make_target("gemmini").space(parse_workload(text))


def test_tiles_that_do_not_fit_are_typed_failures() -> None:
    target = make_target("gemmini")
    workload = parse_workload("conv2d:n=1,c=128,h=14,w=14,o=128,k=3,s=1,p=1", ROUNDED)
    space = target.space(workload)
    drawn = np.random.default_rng(0).integers(0, space.size, 30)
    lowered = target.lower(workload, space.unravel(drawn))
    assert {"scratchpad", "accumulator"} <= set(lowered.failures)
    measured = target.measure(lowered.rows(~lowered.ok))
    assert set(measured.status) == {"compile_error"}
    assert all("rows, but only" in reason for reason in measured.reason)


def test_no_other_target_takes_rounding_for_a_shift() -> None:
    workload = parse_workload("dense:n=1,c=32,o=32", ROUNDED)
    with pytest.raises(WorkloadError, match="--target gemmini"):
        make_target("vta-pynq").space(workload)


def test_a_machine_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"memory_latency_cycles": 100, "cycles_per_beat": 2}')
    slow, fast = make_target(f"gemmini:{path}"), make_target("gemmini")
    workload = parse_workload("dense:n=64,c=64,o=64")
    config = np.zeros((1, len(fast.space(workload).knobs)), np.int32)
    cycles = [int(t.measure(t.lower(workload, config)).cycles[0]) for t in (slow, fast)]
    assert slow.name == "mine"
    assert cycles[0] > cycles[1]


def test_workloads_of_one_canonical_form_have_one_space() -> None:
    """Workloads with the same canonical form have the same space.

    The layers of a network take the schedule of their canonical form, so its config must be in each
    layer's space.
    """
    target = make_target("gemmini")
    for text in ("dense:n=1,c=2560,o=4", "conv2d:n=1,c=64,h=5,w=5,o=16,k=1,s=1,p=0"):
        for shift in (0, 5, 13, 20):
            workload = parse_workload(text, f">> even {shift}, min 127, max -128")
            assert target.space(workload).knobs == target.space(canonical(workload)).knobs


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=1,c=20,h=22,w=22,o=20,k=20,s=1,p=2", ROUNDED),  # large weight stages
        ("conv2d:n=1,c=20,h=9,w=9,o=20,k=22,s=1,p=11", ">> even 14, min 127, max -128"),
        ("dense:n=1,c=4000,o=1000", "bias, weighted 127, >> even 14, min 127, max -128"),
    ],
)
def test_a_rule_gives_a_schedule_with_a_program_for_every_workload(
    text: str, epilogue: str
) -> None:
    lowering = WorkloadLowering.for_workload(
        parse_workload(text, epilogue), make_target("gemmini").spec
    )
    config = np.array([lowering.config_of(lowering.vendor[1])], np.int32)
    assert lowering.lower(config).ok.all()


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:n=1,c=61,h=18,w=18,o=365,k=25,s=8,p=12",  # one block's weights exceed half
        "conv2d:n=1,c=482,h=20,w=250,o=482,k=11,s=1,p=5,g=482",  # too many products for a program
    ],
)
def test_a_workload_that_no_schedule_runs_is_left_to_the_cpu(text: str) -> None:
    with pytest.raises(
        WorkloadError, match=r"no schedule can run on .*; run this layer on the CPU"
    ):
        make_target("gemmini").space(parse_workload(text, ROUNDED))
