"""Kernels of the CPU target for the library of a built network.

A kernel that was written for float32 tensors can be rewritten to read and write bfloat16 tensors,
so that half as many bytes pass between layers (`narrow_parameters`). The rewritten kernel still
computes in float32: it converts values to float32 when it reads them, and rounds them to bfloat16
when it stores them. A channel block of a bfloat16 tensor may comprise several of the kernel's
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.core.errors import WorkloadError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import (
    BufferLoad,
    BufferStore,
    Expression,
    For,
    Place,
    PrimFunc,
    Statement,
    TirBuffer,
    TvmTarget,
)
from tilewright.targets.anchor import DType
from tilewright.targets.base import Space
from tilewright.targets.capabilities import MachineTraits
from tilewright.targets.cpu.compile import llvm_target, lowering, scheduled
from tilewright.targets.cpu.kernels.amx_tiles import BFLOAT16, bfloat16_of
from tilewright.targets.cpu.kernels.conv2d_amx import ConvolutionTiles
from tilewright.targets.cpu.kernels.int8_dot_product import computes_int8
from tilewright.targets.cpu.kernels.kernel import DoesNotApply, KnobValues
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

tvm_ffi = lazy_module("tvm_ffi")
tirx = lazy_module("tvm.tirx")
ir = lazy_module("tvm.ir")


class NetworkKernels:
    """Base class that implements `HasTraits` and `CompilesKernels` of `targets.capabilities`.

    Attributes:
        spec: the processor, which the subclass sets.
        space: function that returns the search space of a workload, which the subclass sets.
    """

    spec: CpuSpec
    space: Callable[[Workload], Space]

    @property
    def traits(self) -> MachineTraits:
        """Element types that the kernels support, and the element type of float layers.

        The supported types include int8 only if the processor can compute it.
        """
        dtypes: tuple[DType, ...] = ("float32",)
        if computes_int8(self.spec):
            dtypes = ("float32", "int8")
        float_type: DType = "bfloat16" if self.spec.bfloat16 else "float32"
        return MachineTraits(dtypes=frozenset(dtypes), float_type=float_type)

    @property
    def registers(self) -> int:
        """Capacity of the vector registers, as a number of vectors of 16 float32 values."""
        return self.spec.registers * self.spec.lanes // 16

    @property
    def threads(self) -> int:
        """Number of threads that the kernels are written for."""
        return self.spec.threads

    def rule(self, workload: Workload) -> tuple[int, ...]:
        """Return the rule schedule of a workload, which is chosen without compiling or measuring.

        Args:
            workload: the workload.

        Returns:
            One knob index per knob.

        Raises:
            WorkloadError: no kernel computes the workload.
        """
        values = kernel_for(workload, self.spec).baseline_values(workload, self.spec)
        return tuple(knob.values.index(values[knob.name]) for knob in self.space(workload).knobs)

    def kernel(self, workload: Workload, config: Sequence[int]) -> KernelCode:
        """Return the code of a kernel with a given schedule.

        Args:
            workload: the workload.
            config: one knob index per knob.

        Raises:
            WorkloadError: no kernel computes the workload, or the config is not a valid schedule.
        """
        return _code(workload, self.spec, self.space(workload).describe(config))

    def code_target(self) -> TvmTarget:
        """Return TVM's target for this processor."""
        return llvm_target(self.spec)

    def code_pipeline(self) -> str:
        """Return the name of TVM's lowering pipeline: see `targets.cpu.compile`."""
        return lowering()

    def kernel_error(
        self, workload: Workload, config: Sequence[int], function: Callable[..., object]
    ) -> float:
        """Run a compiled kernel in this process and return its error on random tensors.

        Args:
            workload: the workload.
            config: one knob index per knob.
            function: the compiled kernel.

        Returns:
            The largest error, as a fraction of the reference's largest value; infinite if the
            kernel left output values unwritten.
        """
        space = self.space(workload)
        tensors = SampleTensors(workload, self.spec, space)
        arguments = tensors.arguments(space.describe(config))
        function(*arguments)
        return tensors.error(arguments[-1].numpy())


def _code(workload: Workload, spec: CpuSpec, values: KnobValues) -> KernelCode:
    try:
        function = scheduled(workload, spec, values)
    except DoesNotApply as error:
        raise WorkloadError(
            f"{workload}: the schedule {dict(values)} cannot be applied ({error}); choose "
            "another schedule"
        ) from None
    made = kernel_for(workload, spec)
    image = workload.operator == "conv2d"
    return KernelCode(
        function,
        channel_block(workload.in_channels, spec.lanes) if image else 0,
        channel_block(workload.out_channels, spec.lanes) if image else 0,
        lambda weights: made.pack_weights(weights, workload, spec, values),
        _make_narrowing(workload, spec, values, function),
        _stored_block(workload, spec),
    )


def _make_narrowing(
    workload: Workload, spec: CpuSpec, values: KnobValues, function: PrimFunc
) -> Callable[[Mapping[int, int]], PrimFunc] | None:
    """Return a function that rewrites a kernel to take bfloat16 parameters, or None.

    The rewriting is supported for bfloat16 convolutions and for depthwise float convolutions, on
    processors whose layers use bfloat16. Kernels of other grouped convolutions read single values,
    each of which would need its own conversion.

    Args:
        workload: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.
        function: the kernel's scheduled function.

    Returns:
        A function that maps a mapping from parameter number to channels per block of the new
        parameter to the rewritten kernel. None if the kernel does not support bfloat16 parameters.
    """
    if not spec.bfloat16 or workload.operator != "conv2d" or workload.dequantises:
        return None
    if workload.dtype != "bfloat16" and workload.groups < workload.in_channels:
        return None
    if workload.dtype == "int8":
        return None

    def made(blocks: Mapping[int, int]) -> PrimFunc:
        left, code = dict(blocks), function
        kernel = kernel_for(workload, spec)
        if isinstance(kernel, ConvolutionTiles) and 0 in left:
            code = kernel.of_stored(workload, spec, values, left.pop(0))
        return narrow_parameters(code, left, spec)

    return made


def _stored_block(workload: Workload, spec: CpuSpec) -> int:
    """Return the block size with which AMX tiles can load bfloat16 data without copying them.

    Args:
        workload: a bfloat16 convolution.
        spec: the processor.

    Returns:
        Channels per block of the data; 0 if the kernel has to copy the data first.
    """
    tiles = isinstance(kernel_for(workload, spec), ConvolutionTiles)
    row = BFLOAT16.in_row
    return row if tiles and workload.dtype == "bfloat16" and workload.in_channels % row == 0 else 0


# -- kernels on tensors of bfloat16 ------------------------------------------------------------


def narrow_parameters(function: PrimFunc, blocks: Mapping[int, int], spec: CpuSpec) -> PrimFunc:
    """Replace float32 parameters of a function by bfloat16 parameters.

    Args:
        function: scheduled and lowered function, whose loops are explicit.
        blocks: channels per block of each new parameter, by parameter number.
        spec: the processor.

    Returns:
        The rewritten function. New parameters hold the bits of bfloat16 values as uint16, in shape
        (n, c / block, h, w, block).
    """
    params, body = list(function.params), function.body
    for number, block in blocks.items():
        old = params[number]
        n, count, height, width, old_block = (int(size) for size in old.shape)
        shape = n, count * old_block // block, height, width, block
        new = tirx.decl_buffer(shape, "uint16", name=str(old.name))
        body = _replace_buffer(body, old, new, spec)
        params[number] = new
    return tirx.PrimFunc(params, body, function.ret_type).with_attrs(function.attrs)


def _replace_buffer(body: Statement, old: TirBuffer, new: TirBuffer, spec: CpuSpec) -> Statement:
    old_block = int(old.shape[4])
    several = int(new.shape[4]) // old_block

    def place(indices: Place) -> Place:
        n, block, y, x, i = indices
        if several == 1:
            return [n, block, y, x, i]
        inside = tirx.indexmod(block, several) * old_block
        return [n, tirx.indexdiv(block, several), y, x, inside + i]

    def load(access: BufferLoad) -> Expression:
        if not access.source.same_as(old):
            return access
        bits = tirx.Cast("uint32", tirx.BufferLoad(new, place(access.indices)))
        return tirx.reinterpret("float32", tirx.shift_left(bits, tirx.const(16, "uint32")))

    def stores(within: Statement, lanes: int) -> Statement:
        def store(access: BufferStore) -> Statement:
            if not access.buffer.same_as(old):
                return access
            value = bfloat16_of(access.value, lanes, spec)
            return tirx.BufferStore(new, value, place(access.indices))

        return tvm_ffi.structural_map(within, (tirx.BufferStore, store))

    def loop(statement: For) -> Statement:
        if statement.kind != tirx.ForKind.VECTORIZED:
            return statement
        return stores(statement, int(statement.extent))

    body = tvm_ffi.structural_map(body, (ir.TensorLoad, load))
    return stores(tvm_ffi.structural_map(body, (tirx.For, loop)), 1)
