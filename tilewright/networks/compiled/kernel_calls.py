"""Rewrite a network's Relax module so that it calls kernels for the layers that have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import IRModule

from tilewright.core.tvm_types import (
    Array,
    BlockBuilder,
    RelaxConstant,
    RelaxExpr,
    RelaxVar,
    Tensor,
    TirBuffer,
)
from tilewright.networks.compiled.bfloat16_tensors import Bfloat16Tensors
from tilewright.networks.compiled.channel_rearrangements import PixelsBeside, channel_shuffles
from tilewright.networks.compiled.image_operators import local_responses
from tilewright.networks.compiled.layers import KernelLayer
from tilewright.networks.compiled.operands_in_place import (
    SHAPES,
    FrameTaps,
    MovedAxes,
    frame_taps,
    moved_operand,
    moved_result,
    on_moved,
    reading_frames,
)
from tilewright.networks.compiled.packed_operators import (
    CONCAT,
    EACH,
    PAIRS,
    POOLS,
    packed_concat,
    packed_norm,
    packed_result,
    reduce_pixels,
    resize_image,
)
from tilewright.networks.compiled.packed_tensors import FLOAT_BLOCK, OPAQUE, PackedTensors
from tilewright.networks.compiled.recurrences import (
    Recurrence,
    packed_weights,
    part_of,
    recurrence_function,
    recurrences,
    sums_of,
)
from tilewright.networks.errors import ImportFailedError
from tilewright.networks.relax.batch_norm import ITEM, NORM
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

Moved = tuple[tuple[int, MovedAxes], ...]
"""Parameters of a function whose axes are permuted in memory, compared with the stand-alone kernel.
Each entry consists of the index of the parameter and its axes."""
Stored = tuple[tuple[int, int], ...]
"""Parameters of a function that are stored in bfloat16. Each entry consists of the index of the
parameter and the number of channels per block."""
KERNEL = "tilewright.kernel"
"""Name of an attribute. It marks functions that already have a schedule."""
BFLOAT16 = "uint16"
"""Element type of tensors that hold the bits of bfloat16 values."""
NARROWED = frozenset((*EACH, *PAIRS, *POOLS, ITEM))
"""Operators whose result can be rounded to bfloat16 in the same function, because TVM fuses the
rounding with them."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A network whose layers call kernels.

    The sequences have one entry per layer.

    Attributes:
        module: the rewritten Relax module.
        layers: the layers with kernels, in execution order.
        called: name of the function that each layer calls.
        moved: for each layer, the parameters that are tensors with permuted axes, compared with the
            stand-alone kernel.
        bfloat16: for each layer, the parameters that are stored in bfloat16.
        frames: for each layer, whether its kernel reads frames of a volume in place of an image
            that is gathered from them (see `frame_taps`).
    """

    module: IRModule
    layers: Sequence[KernelLayer]
    called: Sequence[str]
    moved: Sequence[Moved]
    bfloat16: Sequence[Stored]
    frames: Sequence[bool]


def rewrite_calls(
    flat: FlatGraph, layers: Sequence[KernelLayer], kernels: Mapping[Workload, KernelCode],
    registers: int,
) -> Rewritten:  # fmt: skip
    """Rewrite a network so that its layers call kernels.

    Args:
        flat: the network. The new `main` has the same parameters and results.
        layers: the layers that kernels compute.
        kernels: code of the kernel of each of these layers' workloads.
        registers: number of vectors of 16 values that fit into the processor's registers.

    Raises:
        ImportFailedError: the network contains branches or loops.
    """
    old = flat.module["main"]
    blocks = old.body.blocks
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        raise ImportFailedError(
            "the network contains branches or loops, which cannot be compiled with kernels; "
            "export it without them"
        )
    other_functions = {
        var: f for var, f in flat.module.functions.items() if var.name_hint != "main"
    }
    # Functions that TVM's importer has written in TIR.
    builder = relax.BlockBuilder(IRModule(other_functions))
    params = [relax.Var(str(param.name), param.ty) for param in old.params]
    taps = frame_taps(flat, layers, kernels)
    in_bfloat16 = Bfloat16Tensors(flat, layers, kernels, taps)
    new_main = _RewrittenMain(builder, kernels, flat, in_bfloat16, taps, registers)
    for new_param, old_param in zip(params, old.params, strict=True):
        new_main.tensors.record(old_param, plain=new_param)
    by_result = {layer.result.var: layer for layer in layers}
    anchors = frozenset(layer.match.anchor.var for layer in layers)
    loops = {
        recurrence.product: recurrence
        for recurrence in recurrences(flat)
        if anchors.isdisjoint(recurrence.inside)
    }
    inside = frozenset[RelaxVar]().union(
        *(layer.inside for layer in layers),
        *(recurrence.inside for recurrence in loops.values()),
        *(recurrence.inside for recurrence in taps.values()),
    )
    with builder.function("main", params):
        with builder.dataflow():
            for binding in flat.bindings:
                if binding.var in loops:
                    new_main.recurrence(loops[binding.var])
                elif binding.var in by_result:
                    new_main.kernel(by_result[binding.var])
                elif binding.var not in inside and binding.var not in new_main.done:
                    new_main.other(binding)
            result = builder.emit_output(new_main.result(old.body.body))
        builder.emit_func_output(result)
    module = relax.transform.DeadCodeElimination()(builder.finalize())
    return Rewritten(
        module, new_main.layers, new_main.called, new_main.moved, new_main.bfloat16, new_main.frames
    )


class _RewrittenMain:
    """Builder of the rewritten `main` function, to which calls are added in execution order.

    Args:
        builder: Relax builder of the new module.
        kernels: code of the kernel of each workload.
        flat: the source network.
        in_bfloat16: the tensors that are stored in bfloat16.
        taps: frames of volumes that kernels read in place, by variable of the gathered image.
        registers: number of vectors of 16 values that fit into the processor's registers.
    """

    def __init__(
        self, builder: BlockBuilder, kernels: Mapping[Workload, KernelCode], flat: FlatGraph,
        in_bfloat16: Bfloat16Tensors, taps: Mapping[RelaxVar, FrameTaps], registers: int,
    ) -> None:  # fmt: skip
        self._registers = registers
        self._taps = taps
        self._in_bfloat16 = in_bfloat16
        self._beside = in_bfloat16.beside
        self._shuffles = channel_shuffles(flat)
        self._responses = local_responses(flat)
        self._rows: dict[RelaxVar, tuple[RelaxExpr, int]] = {}  # rows of the results of recurrences
        self._builder = builder
        self._kernels = kernels
        self._flat = flat
        self._functions: dict[tuple[Workload, Moved, Stored, FrameTaps | None], RelaxExpr] = {}
        self.tensors = PackedTensors(builder)
        # Calls that a kernel computes although no layer contains them.
        self.done: set[RelaxVar] = set()
        self.layers: list[KernelLayer] = []
        self.called: list[str] = []
        self.moved: list[Moved] = []
        self.bfloat16: list[Stored] = []
        self.frames: list[bool] = []

    def kernel(self, layer: KernelLayer) -> None:
        """Append a call of a layer's kernel, which reads and writes packed tensors.

        Args:
            layer: the layer.
        """
        code = self._kernels[layer.workload]
        wanted = [shape_of_parameter(parameter) for parameter in code.function.params]
        moved: list[tuple[int, MovedAxes]] = []
        narrowed: dict[int, int] = {}
        taps = self._taps.get(layer.data)
        if layer.weight is None:
            operands = layer.data, layer.match.anchor.args[1]
            arguments = [self._operand(i, var, wanted, moved) for i, var in enumerate(operands)]
        else:
            data = self._image(layer.data, layer.match.anchor.args[0], code.data_block)
            if taps is not None:
                data, (frames, channels, *size) = taps.source, taps.shape
                block = code.data_block
                wanted[0] = frames, channels // block, *size, block
            arguments = [self._read_narrowed(data, code, code.data_block, narrowed, 0)]
            arguments.append(_constant(code.pack_weights(layer.weight)))
        # `wanted` also contains the shapes of the added tensors and of the result.
        constants = [
            _constant(array.reshape(shape))
            for array, shape in zip(layer.constants, wanted[len(arguments) :], strict=False)
        ]
        if layer.scaled_by is not None:
            constants[:2] = self._runtime_scales(constants[:2], *layer.scaled_by)
        arguments += constants
        for var in layer.added:
            parameter_number = len(arguments)
            var = self._image(var, layer.result.var, code.out_block)
            arguments.append(
                self._read_narrowed(var, code, code.out_block, narrowed, parameter_number)
            )
        result = layer.result
        permuted = moved_result(self._flat, result) if layer.weight is None else None
        if permuted is not None and permuted[1].fits(wanted[-1]):
            result, axes = permuted
            moved.append((len(wanted) - 1, axes))
            wanted[-1] = axes.shape
            self.done.add(result.var)
        narrow = code.narrowed is not None and result.var in self._in_bfloat16
        if narrow:
            block = self._in_bfloat16.block(result.var) or code.out_block
            narrowed[len(wanted) - 1] = block
        for parameter_number, block_size in narrowed.items():
            wanted[parameter_number] = _in_blocks(wanted[parameter_number], block_size)
        fitting = [
            self.tensors.reshape(arg, shape)
            for arg, shape in zip(arguments, wanted[:-1], strict=True)
        ]
        stored = tuple(sorted(narrowed.items()))
        function = self._function(layer.workload, code, tuple(moved), stored, taps)
        out = relax.TensorType(wanted[-1], BFLOAT16 if narrow else layer.workload.out_dtype)
        written = self.tensors.emit(relax.call_tir(function, fitting, out))
        self._record_result(result, written, narrowed.get(len(wanted) - 1, code.out_block), narrow)
        self.layers.append(layer)
        self.called.append(str(function.name_hint))
        self.moved.append(tuple(moved))
        self.bfloat16.append(stored)
        self.frames.append(taps is not None)

    def other(self, binding: Binding) -> None:
        """Append an operator without a kernel, which TVM compiles.

        It computes on packed tensors where this is possible.

        Args:
            binding: the operator in the source network.
        """
        beside = self._beside.get(binding.var)
        if beside is not None and self._put_beside(binding, beside):
            return
        norm = self._flat.by_var.get(binding.value.tuple_value) if binding.op == ITEM else None
        if binding.op == CONCAT and self._joined_rows(binding):
            return
        # A split would copy all of its parts, including those that only a recurrence reads.
        part = part_of(self._flat, binding)
        if part is not None and part.axis == 0 and part.through is not None:
            value = self.tensors.as_plain(part.source)
            result = self.tensors.emit(_some_rows(value, part.begin, part.begin + part.length))
            self.tensors.record(binding.var, plain=result)
            return
        if (response := self._responses.get(binding.var)) is not None:
            block = min(self.tensors.block_of(response.source), FLOAT_BLOCK)
            self.tensors.record(binding.var, plain=self.tensors.normalise(response))
            if block:
                self.tensors.as_packed(binding.var, block)  # later operators read the packed form
            return
        shuffle = self._shuffles.get(binding.var)
        if (
            shuffle is not None
            and (packed_form := self.tensors.shuffle_channels(shuffle)) is not None
        ):
            self.tensors.record(binding.var, packed=packed_form[0], block=packed_form[1])
            return
        if (result := resize_image(self.tensors, binding)) is not None:
            image, block = result
            if block:
                self.tensors.record(binding.var, packed=image, block=block)
            else:
                self.tensors.record(binding.var, plain=image)
            return
        narrow = binding.var in self._in_bfloat16
        wide = narrow or self._in_bfloat16.block(binding.var) > 0
        if norm is not None and norm.op == NORM and binding.value.index == 0:
            packed_form = packed_norm(self.tensors, norm, self._flat, wide=wide)
        elif binding.op == CONCAT:
            packed_form = packed_concat(self.tensors, binding, bfloat16=narrow)
        else:
            by_var = self._flat.by_var
            packed_form = packed_result(self.tensors, binding, by_var, bfloat16=narrow, wide=wide)
        if packed_form is not None:
            expression, block = packed_form
            result = self.tensors.emit(expression)
            if str(result.ty.dtype) == BFLOAT16:
                self.tensors.put_bfloat16(binding.var, result, block)
            elif narrow and binding.op in NARROWED:
                self.tensors.put_bfloat16(binding.var, self.tensors.narrow(result), block)
            else:
                self.tensors.record(binding.var, packed=result, block=block)
            return
        if (result := reduce_pixels(self.tensors, binding)) is not None:
            self.tensors.record(binding.var, plain=result)
            return
        known = {var: self.tensors.as_plain(var) for var in variables(binding.value)}
        if binding.op in SHAPES and binding.shape is not None and len(known) == 1:
            (value,) = known.values()
            self.tensors.record(binding.var, plain=self.tensors.reshape(value, binding.shape))
            return
        self.tensors.record(
            binding.var, plain=self.tensors.emit(_replace_variables(binding.value, known))
        )

    def recurrence(self, recurrence: Recurrence) -> None:
        """Append a call of one function that computes all steps of a recurrence.

        Args:
            recurrence: the recurrence, such as an unrolled LSTM.
        """
        gates, *begin = (
            self.tensors.as_plain(var) for var in (recurrence.given, *recurrence.begin)
        )
        bfloat16 = self._in_bfloat16.used
        width = sums_of(recurrence.weights.shape[1], self._registers)
        function = recurrence_function(recurrence, shape_of(gates) or (), width, bfloat16)
        function = function.with_attrs({KERNEL: 1, "op_pattern": OPAQUE})
        name = self._builder.add_func(function.without_attr("global_symbol"), "recurrence")
        weights = packed_weights(recurrence.weights, width, bfloat16)
        arrays = [_constant(array) for array in (weights, *recurrence.constants)]
        steps = len(recurrence.results)
        state_rows = self.tensors.emit(
            relax.call_tir(
                name, [gates, arrays[0], *begin, *arrays[1:]],
                relax.TensorType((steps, recurrence.weights.shape[0]), "float32"),
            )
        )  # fmt: skip
        for step, var in enumerate(recurrence.results):
            row = step if recurrence.by == 1 else steps - 1 - step
            self._rows[var] = state_rows, row
            self.tensors.record(var, plain=self.tensors.emit(_some_rows(state_rows, row, row + 1)))

    def _joined_rows(self, binding: Binding) -> bool:
        """Emit a concatenation of rows, some of which a recurrence wrote into one tensor.

        Consecutive rows of that tensor are read as one slice.

        Args:
            binding: the operator.

        Returns:
            True if the concatenation was emitted. False, without emitting anything, if the operator
            is not such a concatenation.
        """
        (parts,), shape = binding.args, binding.shape or ()
        axis = binding.value.attrs.axis
        if len(shape) != 2 or axis is None or int(axis) or not isinstance(parts, relax.Tuple):
            return False
        if not any(field in self._rows for field in parts.fields):
            return False
        pieces: list[tuple[RelaxExpr, int, int]] = []  # tensor, first row, one past the last row
        for field in parts.fields:
            rows, row = self._rows.get(field, (self.tensors.as_plain(field), -1))
            if pieces and row > 0 and pieces[-1][0].same_as(rows) and pieces[-1][2] == row:
                pieces[-1] = rows, pieces[-1][1], row + 1
            else:
                pieces.append((rows, row, row + 1))
        joined = [
            rows if row < 0 or (row, end) == (0, (shape_of(rows) or ())[0])
            else self.tensors.emit(_some_rows(rows, row, end))
            for rows, row, end in pieces
        ]  # fmt: skip
        whole = joined[0] if len(joined) == 1 else self.tensors.emit(relax.op.concat(joined, 0))
        self.tensors.record(binding.var, plain=whole)
        return True

    def _put_beside(self, binding: Binding, beside: PixelsBeside) -> bool:
        """Emit a rearrangement of channels to pixels on packed tensors.

        Args:
            binding: the last operator of the rearrangement.
            beside: the rearrangement.

        Returns:
            True if the rearrangement was emitted. False, without emitting anything, if it is not
            possible on packed tensors.
        """
        narrow = binding.var in self._in_bfloat16
        rearranged = self.tensors.channels_to_pixels(beside, bfloat16=narrow)
        if rearranged is None:
            return False
        image, block = rearranged
        if narrow:
            self.tensors.put_bfloat16(binding.var, image, block)
        else:
            self.tensors.record(binding.var, packed=image, block=block)
        return True

    def result(self, expression: RelaxExpr) -> RelaxExpr:
        """Return the expression that the rewritten function returns.

        Args:
            expression: the result of the source network's `main`. Its variables are replaced by
                tensors of the rewritten function, in the model's layout.
        """
        known = {var: self.tensors.as_plain(var) for var in variables(expression)}
        return _replace_variables(expression, known)

    def _runtime_scales(
        self, constants: Sequence[RelaxExpr], scale: RelaxExpr, zero: RelaxExpr
    ) -> list[RelaxExpr]:
        """Return the scales that an epilogue reads if the data's scale is only known at run time.

        Args:
            constants: the array of `targets.steps.quantised.pack_scales`, and the scales of the
                weights, one per channel.
            scale: scale of the data.
            zero: zero point of the data.

        Returns:
            The array with the zero point inserted, and for each channel the product of both scales.
        """
        numbers, scales = constants
        scale, zero = self.tensors.as_plain(scale), self.tensors.as_plain(zero)
        packed = self._builder.emit_te(_with_zero, numbers, zero, primfunc_name_hint="with_zero")
        return [packed, self.tensors.emit(relax.op.multiply(scales, scale))]

    def _image(self, var: RelaxVar, image: RelaxExpr, block: int) -> RelaxExpr:
        """Return a variable that can be read as a packed image, reshaping it if necessary.

        Args:
            var: variable of the tensor.
            image: expression whose shape is that of the image.
            block: channels per block that the kernel reads. If it is 0, the kernel does not read
                packed images, and `var` is returned.
        """
        if not block or shape_of(var) == shape_of(image):
            return var
        reshaped = self.tensors.reshape(self.tensors.as_plain(var), shape_of(image) or ())
        self.tensors.record(reshaped, plain=reshaped)
        return reshaped

    def _operand(
        self, number: int, var: RelaxVar, wanted: list[tuple[int, ...]],
        moved: list[tuple[int, MovedAxes]],
    ) -> RelaxExpr:  # fmt: skip
        """Return the tensor that a kernel reads as an operand of a product of two activations.

        If the network permutes the axes of the operand before the product, and the kernel can read
        the original tensor, then the original tensor is returned.

        Args:
            number: number of the kernel's parameter.
            var: variable of the operand.
            wanted: shapes of the kernel's parameters. The entry of this parameter is replaced if
                the original tensor is returned.
            moved: list of (parameter number, permutation). An entry is added if the original tensor
                is returned.
        """
        permuted = moved_operand(self._flat, var)
        if permuted is None or not permuted[1].fits(wanted[number]):
            return self.tensors.as_plain(var)
        before, axes = permuted
        moved.append((number, axes))
        wanted[number] = axes.shape
        return self.tensors.as_plain(before)

    def _read_narrowed(
        self, var: RelaxVar, code: KernelCode, block: int, narrowed: dict[int, int], number: int
    ) -> RelaxExpr:
        """Return a tensor in the form that a kernel reads: bfloat16 if possible, otherwise float32.

        bfloat16 is possible if the tensor is stored in bfloat16 and the kernel can read it.

        Args:
            var: variable of the tensor.
            code: code of the kernel.
            block: channels per block that the kernel reads, or 0 for the model's layout.
            narrowed: channels per block of each bfloat16 parameter, by parameter number. An entry
                is added if the tensor is read in bfloat16.
            number: number of the kernel's parameter.
        """
        stored = self.tensors.stored_block(var, block) if code.narrowed and block else 0
        if not stored:
            return self._read(var, block)
        narrowed[number] = stored
        return self.tensors.bfloat16(var, stored)

    def _read(self, var: RelaxVar, block: int) -> RelaxExpr:
        return self.tensors.as_packed(var, block) if block else self.tensors.as_plain(var)

    def _record_result(
        self, result: Binding, written: RelaxExpr, block: int, narrowed: bool
    ) -> None:
        shape = result.shape or ()
        if not block:
            self.tensors.record(result.var, plain=self.tensors.reshape(written, shape))
            return
        n, c, h, w = shape
        packed = self.tensors.reshape(written, (n, c // block, h, w, block))
        if narrowed:
            self.tensors.put_bfloat16(result.var, packed, block)
        else:
            self.tensors.record(result.var, packed=packed, block=block)

    def _function(
        self, workload: Workload, code: KernelCode, moved: Moved, narrowed: Stored,
        taps: FrameTaps | None,
    ) -> RelaxExpr:  # fmt: skip
        key = workload, moved, narrowed, taps
        if key not in self._functions:
            name = f"{workload.operator}_{workload.id}"
            function = on_moved(code.function, moved) if moved else code.function
            if narrowed and code.narrowed is not None:
                function = code.narrowed(dict(narrowed))
            if taps is not None:
                function = reading_frames(function, taps)
            function = function.with_attrs({KERNEL: 1, "op_pattern": OPAQUE})
            function = function.without_attr("global_symbol")
            self._functions[key] = self._builder.add_func(function, name)
        return self._functions[key]


def shape_of_parameter(parameter: TirBuffer) -> tuple[int, ...]:
    """Return the shape of a buffer parameter of a TensorIR function."""
    return tuple(int(size) for size in parameter.ty.shape)


def _with_zero(numbers: Tensor, zero: Tensor) -> Tensor:
    """Return an array of scales in which the first element holds the bits of an integer zero point.

    The result has the form that `targets.steps.quantised.pack_scales` produces for a zero point
    that is known at compile time.

    Args:
        numbers: the array of scales, float32.
        zero: the zero point, a tensor with one element.
    """
    bits = tirx.reinterpret("float32", tirx.Cast("int32", zero[(0,) * zero.ndim]))
    return te.compute(
        numbers.shape, lambda i: tirx.Select(i == 0, bits, numbers[i]), name="with_zero"
    )


def _in_blocks(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Return the shape of a packed tensor after a change of its block size.

    Args:
        shape: shape (n, c / old block, h, w, old block).
        block: the new number of channels per block.
    """
    n, count, height, width, old_block = shape
    return n, count * old_block // block, height, width, block


def _some_rows(matrix: RelaxExpr, begin: int, end: int) -> RelaxExpr:
    return relax.op.strided_slice(matrix, axes=[0], begin=[begin], end=[end])


def _constant(array: Array) -> RelaxConstant:
    return relax.const(np.ascontiguousarray(array), str(array.dtype))


def _replace_variables(value: RelaxExpr, known: Mapping[RelaxVar, RelaxExpr]) -> RelaxExpr:
    """Return an expression in which variables are replaced by other expressions.

    Args:
        value: the expression.
        known: replacement of each variable. Variables without a replacement remain.
    """
    if isinstance(value, relax.Var):
        return known.get(value, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_replace_variables(field, known) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_replace_variables(value.tuple_value, known), value.index)
    if isinstance(value, relax.Call):
        arguments = [_replace_variables(argument, known) for argument in value.args]
        return relax.Call(value.op, arguments, value.attrs, value.ty_args)
    return value
