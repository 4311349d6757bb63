"""Convert an ONNX graph to the normal form that the importer reads.

In the normal form, shapes are static, pads are explicit, and constant expressions are evaluated.

Weights may be stubs without data (`networks.onnx.files.stub`), so a report on a model of half a
gigabyte needs only kilobytes. Operators keep their names. The reason for each removal of an
operator is recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from tilewright.core.user_text import printable
from tilewright.networks.onnx.clean_up import (
    as_additions,
    drop_empty_parts,
    drop_unread_outputs,
    make_scalars,
    simplify_powers,
)
from tilewright.networks.onnx.files import is_stub
from tilewright.networks.onnx.graph import Absorbed, NormalGraph, operators_of
from tilewright.networks.onnx.one_dimensional import as_frame_products, as_images
from tilewright.networks.onnx.opset import raise_opset
from tilewright.networks.onnx.recurrent_operators import steps_first, unroll_recurrent
from tilewright.networks.onnx.reference_model import is_half, widen
from tilewright.networks.onnx.same_padding import (
    WINDOWED,
    kernel_shape,
    replace_attribute,
    same_pads,
)
from tilewright.networks.onnx.static_shapes import (
    fix_inputs,
    fold_shape_arithmetic,
    infer_shapes,
    state_defaults,
)
from tilewright.networks.onnx.to_qdq import as_dequantised_products
from tilewright.networks.onnx.transposed_convolutions import as_convolutions
from tilewright.networks.onnx.volumes import as_frames

HALF_NOTE = (
    "the model uses half precision and is converted to float32; its inputs are float32, "
    "too, and so are its outputs if an accelerator is used"
)
"""Note that is shown to the user of a model in half precision."""
MIN_IR_VERSION = 4  # before it, initializers had to be listed among the inputs


def normalise(model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> NormalGraph:
    """Return the normal form of a copy of a model.

    Args:
        model: the model. Its weights may lack their data.
        input_shapes: shape for each dynamic input, by input name.

    Raises:
        DynamicShapeError: the shape of an input is unknown, or a shape is given for an unknown
            input.
        ModelFileError: the graph contradicts itself.
    """
    normal = fixed_graph(model, input_shapes)
    make_importable(normal)
    return normal


def fixed_graph(model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> NormalGraph:
    """Return a copy of a model with static shapes and with shape arithmetic evaluated.

    Every operator gets a unique name.

    Args:
        model: the model. Its weights may lack their data.
        input_shapes: shape for each dynamic input, by input name.

    Raises:
        DynamicShapeError: the shape of an input is unknown, or a shape is given for an unknown
            input.
        ModelFileError: the graph contradicts itself.
    """
    normal = named_copy(model)
    state_defaults(normal.model)
    _lift_constants(normal)
    make_scalars(normal)
    _take_branches(normal)
    as_additions(normal)
    for transposition in steps_first(normal.graph):
        normal.add_operator(transposition)
    fix_inputs(normal, input_shapes)
    infer_shapes(normal)
    # Each folded shape may make further shapes static, and so more shape arithmetic constant.
    while True:
        make_scalars(normal)
        folded = fold_shape_arithmetic(normal)
        _make_target_shapes_constant(normal)
        if not folded:
            break
        infer_shapes(normal)
    _make_pads_explicit(normal)
    drop_unread_outputs(normal)
    drop_empty_parts(normal)
    simplify_powers(normal)
    _remove_pass_through(normal)
    _write_outputs(normal)
    _drop_unused(normal)
    return normal


def make_importable(normal: NormalGraph) -> None:
    """Rewrite operators of a graph that TVM's importer cannot read, in place.

    Args:
        normal: the graph, with static shapes.
    """
    _make_output_shapes_explicit(normal)
    _merge_pads(normal)
    as_frame_products(normal)
    as_dequantised_products(normal)
    unroll_recurrent(normal)
    as_images(normal)
    as_frames(normal)
    as_convolutions(normal)
    _drop_unused(normal)
    infer_shapes(normal)


def named_copy(model: onnx.ModelProto) -> NormalGraph:
    """Return a copy with unique operator names, in opset 17 or newer and without half precision.

    A model that cannot be converted to opset 17 keeps its opset. Its local functions are inlined.
    """
    copy = deepcopy(inliner.inline_local_functions(model) if model.functions else model)
    copy = raise_opset(copy)
    copy.ir_version = max(copy.ir_version, MIN_IR_VERSION)
    notes: tuple[str, ...] = ()
    if is_half(copy):
        widen(copy)
        notes = (HALF_NOTE,)
    taken: set[str] = set()
    for position, node in enumerate(copy.graph.node):
        name = printable(node.name) or f"{node.op_type}_{position}"
        while name in taken:
            name = f"{name}_{position}"
        taken.add(name)
        node.name = name
    return NormalGraph(copy, operators_of(copy), notes=notes)


def _lift_constants(normal: NormalGraph) -> None:
    """Convert Constant operators to initializers, except text and sparse constants."""
    lifted = set()
    for node in normal.graph.node:
        if node.op_type != "Constant" or (tensor := _constant_value(node)) is None:
            continue
        tensor.name = node.output[0]
        normal.add_tensor(tensor)
        lifted.add(node.name)
    normal.remove(lifted, Absorbed(None, "a constant, known before the model runs"))


def _take_branches(normal: NormalGraph) -> None:
    """Replace each If that has a constant condition by the operators of the taken branch."""
    tensors = normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        condition = tensors.get(node.input[0]) if node.op_type == "If" else None
        if condition is None or is_stub(condition):
            nodes.append(node)
            continue
        taken = "then_branch" if numpy_helper.to_array(condition).all() else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == taken)
        inner = _inline_branch(normal, node, branch)
        nodes += inner
        for operator_node in inner:
            normal.add_operator(operator_node)
        why = f"its condition is constant, so that {taken} is always used"
        normal.absorbed[node.name] = Absorbed(inner[0].name, why)
    normal.replace_nodes(nodes)
    _lift_constants(normal)


def _inline_branch(
    normal: NormalGraph, node: onnx.NodeProto, branch: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return the operators of one branch of an If node as operators of the outer graph.

    The names of the operators and of their tensors are prefixed with the name of the If node.
    Constants of the branch are added to the graph.

    Args:
        normal: the outer graph.
        node: the If node.
        branch: the branch.
    """
    local = {tensor.name for tensor in branch.initializer}
    local.update(name for inner in branch.node for name in inner.output if name)
    names = {name: f"{node.name}/{name}" for name in local}
    results = dict(zip((o.name for o in branch.output), node.output, strict=True))
    for tensor in branch.initializer:
        copy = deepcopy(tensor)
        copy.name = names[tensor.name]
        normal.add_tensor(copy)
    inlined = []
    for position, inner in enumerate(branch.node):
        copy = deepcopy(inner)
        copy.name = f"{node.name}/{inner.name or f'{inner.op_type}_{position}'}"
        inlined.append(copy)
        _rename(copy, names)
    # The result of the If keeps its name.
    for result, outer in results.items():
        source = names.get(result, result)
        inlined.append(
            helper.make_node("Identity", [source], [outer], name=f"{node.name}/{result}/result")
        )
    return inlined


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename tensors that an operator reads or writes, including those in its subgraphs.

    Args:
        node: the operator, which is changed in place.
        names: new name by old name.
    """
    for tensors in (node.input, node.output):
        for index, name in enumerate(tensors):
            tensors[index] = names.get(name, name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename(inner, names)
            for output in graph.output:
                output.name = names.get(output.name, output.name)


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    attribute = node.attribute[0]
    if attribute.name == "value":
        return deepcopy(attribute.t)
    kinds: dict[str, Callable[[], Any]] = {
        "value_int": lambda: np.int64(attribute.i),
        "value_ints": lambda: np.array(attribute.ints, np.int64),
        "value_float": lambda: np.float32(attribute.f),
        "value_floats": lambda: np.array(attribute.floats, np.float32),
    }
    # Text and sparse constants stay operators.
    if attribute.name not in kinds:
        return None
    return numpy_helper.from_array(np.asarray(kinds[attribute.name]()))


def _make_target_shapes_constant(normal: NormalGraph) -> None:
    """Replace computed target shapes of Expand and Reshape by constants if the result is static."""
    shapes, tensors = normal.shapes(), normal.tensors()
    for node in normal.graph.node:
        if node.op_type not in ("Expand", "Reshape") or len(node.input) < 2:
            continue
        shape = shapes.get(node.output[0])
        if shape is None or 0 in shape or node.input[1] in tensors:
            continue
        name = f"{node.output[0]}/shape"
        normal.add_tensor(numpy_helper.from_array(np.array(shape, np.int64), name))
        node.input[1] = name


def _remove_pass_through(normal: NormalGraph) -> None:
    """Remove operators that return their input: Identity, Dropout, and casts to the same type.

    An operator that writes a graph output stays, unless the operator before it can write that
    output instead.
    """
    users, types = normal.users(), normal.types()
    outputs = {output.name for output in normal.graph.output}
    renamed: dict[str, str] = {}
    removed = set()
    makers = {name: node for node in normal.graph.node for name in node.output}
    without_subgraphs = not any(
        a.HasField("g") or a.graphs for n in normal.graph.node for a in n.attribute
    )
    for node in normal.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        mask_used = any(users[name] for name in node.output[1:])
        target = next((a.i for a in node.attribute if a.name == "to"), 0)
        same = node.op_type == "Cast" and types.get(node.input[0]) == target
        if not (same or node.op_type in ("Identity", "Dropout")) or mask_used:
            continue
        source, result = node.input[0], node.output[0]
        if result in outputs:
            if (
                not without_subgraphs
                or source in outputs
                or source not in makers
                # other readers need the old name
                or users[source] != 1
            ):
                continue
            maker = makers[source]
            maker.output[list(maker.output).index(source)] = result
            makers[result] = maker
        else:
            renamed[result] = source
        removed.add(node.name)
    normal.remove(removed, Absorbed(None, "returns its input unchanged at inference"))


def _write_outputs(normal: NormalGraph) -> None:
    """Insert an Identity before each graph output that is a constant.

    An operator then writes the output, so that it can be part of a region that onnxruntime runs.
    """
    tensors = normal.tensors()
    for output in normal.graph.output:
        name = output.name
        if name not in tensors:
            continue
        tensors[name].name = constant = f"{name}/constant"
        for node in normal.graph.node:
            _rename(node, {name: constant})
        node = helper.make_node("Identity", [constant], [name], name=f"{name}/identity")
        normal.graph.node.append(node)
        normal.add_operator(node)


def _make_pads_explicit(normal: NormalGraph) -> None:
    """Replace the attribute `auto_pad` of convolutions and pools by `pads`."""
    shapes = normal.shapes()
    for node in normal.graph.node:
        automatic = any(a.name == "auto_pad" and a.s != b"NOTSET" for a in node.attribute)
        kernel = kernel_shape(node, shapes)
        if node.op_type not in WINDOWED or not automatic or kernel is None:
            continue
        if node.input[0] not in shapes:
            continue
        replace_attribute(node, "pads", same_pads(node, kernel, shapes[node.input[0]][2:]))
        replace_attribute(node, "auto_pad", None)


def _make_output_shapes_explicit(normal: NormalGraph) -> None:
    """Replace `output_shape` and `auto_pad` of transposed convolutions by `pads`.

    The rules are those of the ONNX operator ConvTranspose. With SAME padding, the output size is
    the input size times the stride.
    """
    shapes = normal.shapes()
    for node in normal.graph.node:
        numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
        kernel = kernel_shape(node, shapes)
        mode = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
        same = mode in (b"SAME_UPPER", b"SAME_LOWER")
        if node.op_type != "ConvTranspose" or kernel is None or node.input[0] not in shapes:
            continue
        ones = [1] * len(kernel)
        strides = numbers.get("strides", ones)
        if same and "output_shape" not in numbers and all(map(operator.ge, kernel, strides)):
            # If the kernel is smaller than the stride, onnxruntime's results differ from ONNX's
            # definition.
            numbers["output_shape"] = list(map(operator.mul, shapes[node.input[0]][2:], strides))
        if mode == b"VALID":
            replace_attribute(node, "auto_pad", None)
        if "output_shape" not in numbers:
            continue
        extra = numbers.get("output_padding", [0] * len(kernel))
        begins, ends = [], []
        for i, (size, taps, stride, dilation, target_size) in enumerate(zip(
            shapes[node.input[0]][2:], kernel, strides,
            numbers.get("dilations", ones), numbers["output_shape"][-len(kernel):], strict=True,
        )):  # fmt: skip
            total = stride * (size - 1) + extra[i] + dilation * (taps - 1) + 1 - target_size
            extra[i] += max(-total, 0)  # the requested size exceeds the size without padding
            total = max(total, 0)
            begins.append(total // 2 if mode == b"SAME_UPPER" else total - total // 2)
            ends.append(total - begins[-1])
        for name, value in (
            ("auto_pad", None), ("output_shape", None), ("pads", begins + ends),
            ("output_padding", extra),
        ):  # fmt: skip
            replace_attribute(node, name, value)


def _merge_pads(normal: NormalGraph) -> None:
    """Merge zero padding into the convolution after it, if that is the only reader of the Pad.

    A sequence of Pads is merged as well.
    """
    users, tensors = normal.users(), normal.tensors()
    pads = {node.output[0]: node for node in normal.graph.node if node.op_type == "Pad"}
    merged: dict[str, str] = {}
    for conv in [node for node in normal.graph.node if node.op_type == "Conv"]:
        while (pad := pads.get(conv.input[0])) is not None and users[conv.input[0]] == 1:
            spatial = _spatial_padding(pad, tensors)
            automatic = any(a.name == "auto_pad" and a.s != b"NOTSET" for a in conv.attribute)
            if spatial is None or automatic:
                break
            explicit_pads = next((list(a.ints) for a in conv.attribute if a.name == "pads"), [])
            conv_pads = explicit_pads or [0] * len(spatial)
            replace_attribute(
                conv, "pads", [a + b for a, b in zip(conv_pads, spatial, strict=True)]
            )
            conv.input[0] = pad.input[0]
            merged[pad.name] = conv.name
    # Remove them after the loop, because removing an operator replaces the nodes it iterates over.
    for name, conv_name in merged.items():
        normal.remove({name}, Absorbed(conv_name, "padding of the convolution"))


def _spatial_padding(
    pad: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]
) -> list[int] | None:
    """Return the number of zeros that a Pad adds around images.

    Args:
        pad: the Pad operator.
        tensors: constants by tensor name.

    Returns:
        Number of zeros before each spatial dimension, followed by the number after each. None if
        the Pad uses other values, removes elements, or pads the batch or channels.
    """
    amounts = _zero_padding(pad, tensors)
    if amounts is None:
        return None
    rank = len(amounts) // 2
    spatial = amounts[2:rank] + amounts[rank + 2 :]
    if any(amounts[:2]) or any(amounts[rank : rank + 2]) or min(spatial, default=0) < 0:
        return None
    return spatial


def _zero_padding(pad: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> list[int] | None:
    """Return the number of zeros that a Pad adds to each dimension.

    Args:
        pad: the Pad operator.
        tensors: constants by tensor name.

    Returns:
        Number of zeros before each dimension, followed by the number after each. None if these
        numbers are not constant, or if the Pad uses other values than zero.
    """
    attributes = {attribute.name: attribute for attribute in pad.attribute}
    mode = attributes["mode"].s if "mode" in attributes else b"constant"
    if mode != b"constant" or len(pad.input) > 3:
        return None
    inputs = list(pad.input[1:])
    if any(name and (name not in tensors or is_stub(tensors[name])) for name in inputs):
        return None
    constants = [numpy_helper.to_array(tensors[name]) if name else None for name in inputs]
    value = constants[1] if len(constants) > 1 else None
    if (value is not None and value.any()) or ("value" in attributes and attributes["value"].f):
        return None
    if constants and constants[0] is not None:
        return [int(amount) for amount in constants[0]]
    return list(attributes["pads"].ints) if "pads" in attributes else None


def _drop_unused(normal: NormalGraph) -> None:
    """Remove operators whose results are not used, and tensors that nothing reads."""
    if any(a.HasField("g") or a.graphs for node in normal.graph.node for a in node.attribute):
        return  # a subgraph may read any outer tensor by name
    wanted = {output.name for output in normal.graph.output}
    dead = set()
    for node in reversed(normal.graph.node):
        if wanted.isdisjoint(node.output):
            dead.add(node.name)
        else:
            wanted.update(node.input)
    normal.remove(dead, Absorbed(None, "its result is not used"))
    users = normal.users()
    kept = [tensor for tensor in normal.graph.initializer if users[tensor.name]]
    del normal.graph.initializer[:]
    normal.graph.initializer.extend(kept)
