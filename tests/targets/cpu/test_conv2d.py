"""Compares compiled convolutions with the reference, for random schedules.

Configs that are not compiled must give a reason.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tilewright.targets.cpu.compile import FUNCTION, Compiler, scheduled
from tilewright.targets.cpu.kernels import winograd
from tilewright.targets.cpu.kernels.conv2d import Convolution
from tilewright.targets.cpu.kernels.conv2d_shapes import MAX_UNROLLED, CpuTiling, pixels
from tilewright.targets.cpu.kernels.tile_arithmetic import even_parts, nearest_divisor
from tilewright.targets.cpu.kernels.winograd import WINOGRAD_SIZES
from tilewright.targets.cpu.layouts import channel_block, pack_channels, unpack_channels
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.workload import Workload, parse_workload

KERNEL = Convolution()
TOLERANCE = 1e-4
"""Allowed error relative to the largest correct value."""
EPILOGUES = ("", "bias, relu", "residual 0", "bias, residual 0, relu, min 6", "max -1, bias")
LAYERS = (
    "conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3",
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,p=1",
    "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,p=1",
    "conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2",
    "conv2d:n=1,c=24,h=56,w=56,o=144,k=1",
    "conv2d:n=1,c=64,h=149,w=149,o=96,k=3",
    "conv2d:n=1,c=192,h=35,w=35,o=48,k=1",
    "conv2d:n=1,c=768,h=17,w=17,o=192,k=1x7,p=0x3",
    "conv2d:n=1,c=32,h=147,w=147,o=71,k=5,p=2,d=2",
)


@st.composite
def convolutions(draw: st.DrawFn) -> Workload:
    """Draw convolutions with odd sizes, paddings, strides, dilations and partly filled vectors."""
    small = st.integers(1, 3)
    kernel = draw(st.one_of(st.just((3, 3)), st.just((1, 1)), st.tuples(small, small)))
    stride = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2)]))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1)]))
    pads = draw(st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.integers(0, 2)] * 4)))
    if kernel == (1, 1):
        pads = (0, 0, 0, 0)
    channels = st.sampled_from([1, 3, 7, 16, 24, 32, 48, 64])
    return Workload(
        "conv2d",
        draw(st.integers(1, 2)),
        draw(channels),
        draw(st.integers(6, 19)),
        draw(st.integers(6, 19)),
        draw(channels),
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        pad_top=pads[0],
        pad_left=pads[1],
        pad_bottom=pads[2],
        pad_right=pads[3],
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        post=parse_epilogue(draw(st.sampled_from(EPILOGUES))),
        dtype="float32",
    )


def error(workload: Workload, spec: CpuSpec, values: dict[str, int], folder: Path) -> float:
    """Return the error of the compiled kernel, relative to the largest correct value."""
    import tvm

    compiled = Compiler().compile(workload, spec, values)
    assert not compiled.failure, compiled.reason
    path = folder / f"{len(list(folder.iterdir()))}.so"
    path.write_bytes(compiled.library)
    function = tvm.runtime.load_module(str(path))[FUNCTION]
    tensors = SampleTensors(workload, spec, CpuTarget(spec).space(workload))
    arguments = tensors.arguments(values)
    function(*arguments)
    return tensors.error(arguments[-1].numpy())


@pytest.mark.slow(seconds=5)
@given(workload=convolutions(), data=st.data())
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck), deadline=None)
def test_any_schedule_gives_the_right_numbers(
    workload: Workload, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = this_machine()
    values = {
        knob.name: data.draw(st.sampled_from(knob.values), knob.name)
        for knob in KERNEL.knobs(workload, spec)
    }
    values["unroll_channels"] = min(values["unroll_channels"], 2)
    values["unroll_kernel"] = min(values["unroll_kernel"], 1)
    assert error(workload, spec, values, tmp_path_factory.mktemp("made")) <= TOLERANCE


@pytest.mark.slow(seconds=0.6)
@pytest.mark.parametrize(
    "text",
    [
        "c=16,h=9,w=11,o=32,k=3,p=5,d=5",
        "c=16,h=7,w=19,o=16,k=3,s=2,p=9,d=6",
        "c=8,h=1,w=40,o=16,k=1x3,p=0x12,d=1x8",
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_taps_that_stand_in_the_padding_are_left_out(text: str, parts: int, tmp_path: Path) -> None:
    workload, spec = parse_workload(f"conv2d:n=1,{text},dtype=float32", "bias"), this_machine()
    values = {**KERNEL.baseline_values(workload, spec), "algorithm": 0, "parts_ic": parts}
    for tile in ({}, {"tile_ow": 1, "tile_oh": 1}, {"tile_ow": 3, "tile_oh": 2, "tile_oc": 1}):
        assert error(workload, spec, values | tile, tmp_path) <= TOLERANCE
    near = parse_workload("conv2d:n=1,c=16,h=9,w=11,o=32,k=3,p=1,dtype=float32", "bias")
    written = [
        str(scheduled(w, spec, KERNEL.baseline_values(w, spec) | {"algorithm": 0, "copy": 0}))
        for w in (workload, near)
    ]
    assert ["if " in text.replace("if_then_else", "") for text in written] == [True, False]


@pytest.mark.slow(seconds=0.3)
@pytest.mark.parametrize("size", [0, *WINOGRAD_SIZES])
@pytest.mark.parametrize("narrow", [False, True])
def test_every_algorithm_computes_sizes_that_no_tile_divides(
    size: int, narrow: bool, tmp_path: Path
) -> None:
    workload = parse_workload("conv2d:n=1,c=32,h=13,w=17,o=48,k=3,p=1,dtype=float32", "bias, relu")
    own = this_machine()
    spec = CpuSpec(own.threads, 4, own.mcpu, own.model) if narrow else own
    values = {**KERNEL.baseline_values(workload, spec), "algorithm": size, "parts_oh": 2}
    assert error(workload, spec, values, tmp_path) <= TOLERANCE


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("size", WINOGRAD_SIZES)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("stages", [0, 1])
def test_winograd_transforms_its_weights_in_the_kernel(
    size: int, parts: int, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "MOST_STORED", 0)
    monkeypatch.setattr(winograd, "MUCH_MORE", 1)
    workload = parse_workload("conv2d:n=1,c=32,h=9,w=11,o=48,k=3,p=1,dtype=float32", "bias, relu")
    spec = this_machine()
    values = {
        **KERNEL.baseline_values(workload, spec),
        "algorithm": size, "parts_ic": parts, "stages": stages,
    }  # fmt: skip
    assert error(workload, spec, values, tmp_path) <= TOLERANCE
    packed = KERNEL.pack_weights(np.zeros((48, 32, 3, 3), np.float32), workload, spec, values)
    assert packed.size == 48 * 32 * 9


def allocated(function: Any) -> int:
    """Return the number of elements in the largest buffer that a function allocates."""
    from tvm import IRModule, s_tir, transform

    passes = s_tir.transform
    steps = [
        passes.PlanAndUpdateBufferAllocationLocation(), passes.ConvertBlocksToOpaque(),
        passes.CompactBufferAllocation(), passes.LowerOpaqueBlock(),
    ]  # fmt: skip
    lowered = transform.Sequential(steps)(IRModule({"main": function}))
    shapes = re.findall(r"alloc_buffer\(\(([\d, ]+)\)", lowered.script())
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("copy", [0, 1, 2])
def test_images_of_a_batch_are_transformed_in_the_same_memory(
    copy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "SECOND_CACHE", 1 << 14)
    spec, sizes = this_machine(), list[int]()
    for images in (1, 3):
        text = f"conv2d:n={images},c=32,h=9,w=11,o=48,k=3,p=1,dtype=float32"
        workload = parse_workload(text, "bias, relu")
        values = {
            **KERNEL.baseline_values(workload, spec),
            "algorithm": 4, "stages": 1, "copy": copy,
        }  # fmt: skip
        assert error(workload, spec, values, tmp_path) <= TOLERANCE
        sizes.append(allocated(scheduled(workload, spec, values)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("channels", "size", "growth"), [(64, 56, 4), (128, 28, 4), (256, 14, 1), (512, 16, 1)]
)
def test_large_weights_are_not_stored_transformed(channels: int, size: int, growth: int) -> None:
    """Transformed weights are four times as large, so the library would exceed the model."""
    text = f"conv2d:n=1,c={channels},h={size},w={size},o={channels},k=3,p=1,dtype=float32"
    workload, spec = parse_workload(text, "bias"), this_machine()
    values = KERNEL.baseline_values(workload, spec)
    assert values["algorithm"] == 4
    weights = np.zeros((channels, channels, 3, 3), np.float32)
    assert KERNEL.pack_weights(weights, workload, spec, values).size == growth * weights.size


def test_winograd_keeps_its_error_small_with_many_channels(tmp_path: Path) -> None:
    workload = parse_workload("conv2d:n=1,c=512,h=8,w=8,o=32,k=3,p=1,dtype=float32", "")
    spec = this_machine()
    values = {**KERNEL.baseline_values(workload, spec), "algorithm": 4, "stages": 1}
    assert error(workload, spec, values, tmp_path) <= TOLERANCE


@pytest.mark.parametrize("text", LAYERS)
def test_the_space_is_finite_and_the_baseline_config_lies_in_it(text: str) -> None:
    workload, spec = parse_workload(f"{text},dtype=float32", "bias"), this_machine()
    wide = CpuSpec(spec.threads, 16, spec.mcpu, spec.model)  # narrower vectors give more blocks
    assert 1e4 <= CpuTarget(wide).space(workload).size <= 1e9
    space = CpuTarget(spec).space(workload)
    values = KERNEL.baseline_values(workload, spec)
    assert [values[knob.name] in knob.values for knob in space.knobs] == [True] * len(space.knobs)
    size = pixels(workload)
    if values["algorithm"]:
        size = (-(-size[0] // values["algorithm"]), -(-size[1] // values["algorithm"]))
    tiling = CpuTiling.for_config(workload, spec, values, size)
    # With 7×7 pixels, two vectors per tile bring no gain.
    least = min(spec.registers // 2, 2 * size[1])
    assert least <= tiling.accumulators <= spec.registers - 2
    narrow = CpuSpec(spec.threads, 8, spec.mcpu, spec.model)
    values = KERNEL.baseline_values(workload, narrow)
    tiling = CpuTiling.for_config(workload, narrow, values, size)
    held = tiling.accumulators + tiling.tile[0] + 1  # for sums, weights and a data value
    assert held <= 16, "a register tile of AVX2 is spilled"
    assert 8 <= tiling.accumulators <= 14


@pytest.mark.parametrize("channels", [16, 24, 32, 40, 48, 64, 80, 120, 200, 320])
@pytest.mark.parametrize("kernel", [1, 5])
def test_the_rules_tile_loads_less_than_it_multiplies(channels: int, kernel: int) -> None:
    """A tile with only one block of channels would load a value for each multiplication."""
    text = f"conv2d:n=1,c=32,h=28,w=28,o={channels},k={kernel},p={kernel // 2},dtype=float32"
    workload, spec = parse_workload(text, "bias"), CpuSpec(1, 8, "", "")
    values = KERNEL.baseline_values(workload, spec)
    tiling = CpuTiling.for_config(workload, spec, values, pixels(workload))
    blocks, high, long = tiling.tile
    assert blocks + high * long <= 0.8 * blocks * high * long


def test_the_rule_unrolls_a_kernel_only_where_registers_hold_its_numbers() -> None:
    text = "conv2d:n=1,c=128,h=1,w=251,o=256,k=1x3,p=0x1,dtype=float32"
    workload = parse_workload(text, "bias")
    unrolled = {
        lanes: KERNEL.baseline_values(workload, CpuSpec(1, lanes, "", ""))["unroll_kernel"]
        for lanes in (8, 16)
    }
    assert unrolled == {8: 0, 16: 1}


@pytest.mark.parametrize("text", LAYERS)
def test_tiles_cover_the_output_and_chunks_divide_them(text: str) -> None:
    workload, spec = parse_workload(f"{text},dtype=float32", "bias"), this_machine()
    space = CpuTarget(spec).space(workload)
    rng = np.random.default_rng(1)
    for config in space.unravel(rng.integers(0, space.size, 200)):
        t = CpuTiling.for_config(workload, spec, space.describe(config), pixels(workload))
        rows, columns = pixels(workload)
        assert rows <= t.covered_size[0] < rows + t.tile[1]
        assert columns <= t.covered_size[1] < columns + t.tile[2]
        assert all(tiles % chunk == 0 for tiles, chunk in zip(t.tiles, t.chunk, strict=True))


def test_too_much_unrolling_is_refused_before_it_is_compiled() -> None:
    workload, own = parse_workload(f"{LAYERS[1]},dtype=float32", "bias"), this_machine()
    spec = CpuSpec(own.threads, 16, own.mcpu, own.model)
    values = {
        knob.name: knob.values[-1] if "unroll" in knob.name else knob.values[0]
        for knob in KERNEL.knobs(workload, spec)
    } | {"tile_ow": 28}  # fmt: skip
    compiled = Compiler().compile(workload, spec, values)
    assert compiled.failure == "code_too_large"
    assert "unroll_channels" in compiled.reason
    assert str(MAX_UNROLLED) in compiled.reason


@given(length=st.integers(1, 300), wanted=st.integers(1, 300))
def test_parts_are_even_and_divisors_divide(length: int, wanted: int) -> None:
    part = even_parts(length, wanted)
    assert 1 <= part <= wanted
    assert -(-length // part) == -(-length // min(wanted, length))
    divisor = nearest_divisor(length, wanted)
    assert length % divisor == 0


@given(channels=st.integers(1, 200), lanes=st.sampled_from([4, 8, 16]))
def test_packing_channels_is_undone(channels: int, lanes: int) -> None:
    tensor = np.arange(channels * 6, dtype=np.float32).reshape(1, channels, 2, 3)
    packed = pack_channels(tensor, channel_block(channels, lanes))
    np.testing.assert_array_equal(unpack_channels(packed), tensor)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("size", ["w=1001,o=128,k=1x3,s=1", "w=4001,o=64,k=1x3,s=1x4"])
def test_the_rule_leaves_no_thread_without_tiles(size: str, threads: int) -> None:
    """A row has 167 tiles, which have no divisor near an eighth."""
    workload = parse_workload(f"conv2d:n=1,c=64,h=1,{size},p=0x1,dtype=float32", "bias")
    spec = replace(this_machine(), threads=threads)
    values = KERNEL.baseline_values(workload, spec)
    t = CpuTiling.for_config(workload, spec, values, pixels(workload))
    chunks = np.prod([count // item for count, item in zip(t.tiles, t.chunk, strict=True)])
    assert chunks >= 2 * threads
