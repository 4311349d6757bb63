"""Find chains of operators that can be fused.

A chain starts with an anchor, such as a convolution or a pool. The operators after it become steps
of the anchor's epilogue, for example a bias or a ReLU. `targets.steps` defines the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.ir import GenericConst

from tilewright.core.tvm_types import CallAttributes, RelaxExpr, RelaxVar
from tilewright.networks.fused_calls import CallOperator, Quantisation, StepKind
from tilewright.networks.relax.bindings import Binding, FlatGraph, is_per_channel, shape_of
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps import STEP_KINDS

CONV2D, MATMUL = "relax.nn.conv2d", "relax.matmul"
ADD, RELU, CLIP = "relax.add", "relax.nn.relu", "relax.clip"
MAX_POOL, AVERAGE_POOL, MEAN = "relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.mean"
ADAPTIVE_POOL = "relax.nn.adaptive_avg_pool2d"
RESHAPES = frozenset(("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"))
MOVES = frozenset(("relax.permute_dims", "relax.concat", "relax.strided_slice"))
"""Operators that move values without computing. In contrast to `RESHAPES`, they may change the
order of the values in memory."""
QUANTISE, DEQUANTISE = "relax.quantize", "relax.dequantize"

# the order an accumulator can take them in; quantisation may stand between two, but before no bias
RANK: Mapping[StepKind, int] = {"bias": 1, "add": 2, "relu": 3, "clip": 3, "activation": 3}
BEHIND: Mapping[CallOperator, int] = {
    "conv2d": 0, "dense": 0, "matmul": 2, "max_pool": 2, "average_pool": 2, "add": 2,
    "elementwise": 3,
}  # fmt: skip
"""Rank (see `RANK`) that the first operation after an anchor has to exceed to be fused with the
anchor, by the kind of anchor. If an operation could be fused with two anchors, the kind that is
listed first has priority."""


@dataclass(frozen=True, eq=False)
class Link:
    """An operation in a chain, which is fused into the operator at which the chain starts.

    Attributes:
        binding: the operation.
        position: index of the argument through which the operation reads the result of the chain so
            far.
        kind: kind of the epilogue step.
    """

    binding: Binding
    position: int
    kind: StepKind


@dataclass(frozen=True, eq=False)
class Match:
    """An anchor, such as a convolution, and the chain of operations that are fused into it.

    Attributes:
        operator: kind of operator that the anchor computes.
        anchor: binding of the anchor.
        chain: the fused operations, in order.
    """

    operator: CallOperator
    anchor: Binding
    chain: tuple[Link, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """All epilogue steps, beginning with the anchor if it is itself a step, such as a ReLU."""
        own = own_kind(self.anchor)
        return self.chain if own is None else (Link(self.anchor, 0, own), *self.chain)

    @property
    def result(self) -> Binding:
        """The binding of the final result."""
        return self.chain[-1].binding if self.chain else self.anchor

    @property
    def vars(self) -> frozenset[RelaxVar]:
        """The variables that the match binds."""
        return frozenset((self.anchor.var, *(link.binding.var for link in self.chain)))

    @property
    def signature(self) -> Signature:
        """The operators in order, each with the index of the argument that continues the chain."""
        return ((self.anchor.op, 0), *((k.binding.op, k.position) for k in self.chain))


Signature = tuple[tuple[str, int], ...]


def own_kind(anchor: Binding) -> StepKind | None:
    """Return the step kind of an anchor that is itself an epilogue step.

    Such anchors are additions, activations and requantisations that do not follow another anchor.

    Args:
        anchor: binding of the anchor.

    Returns:
        The kind of the step, or None for other anchors, such as convolutions.
    """
    kinds: Mapping[str, StepKind] = {
        ADD: "add", RELU: "relu", CLIP: "clip", QUANTISE: "quantise"
    }  # fmt: skip
    return "activation" if step_of(anchor) is not None else kinds.get(anchor.op)


def matches(flat: FlatGraph) -> list[Match]:
    """Find every operator of a network at which a chain of fused operations starts (an anchor).

    Chains do not overlap. If several chains could contain an operator, products have priority over
    pooling, and pooling has priority over anchors that are steps themselves. Among anchors of the
    same kind, the longest chain has priority.

    Args:
        flat: the graph.

    Returns:
        The matches, in execution order.
    """
    order = list(BEHIND)
    candidates = [
        Match(operator, binding, chain_behind(flat, binding, operator))
        for binding in flat.bindings
        if (operator := anchor_kind(flat, binding)) is not None
    ]
    whole = [
        Match(m.operator, m.anchor, m.chain[:length])
        for m in candidates
        for length in range(len(m.chain) + 1)
        if length == 0 or _is_end(m.chain[length - 1])
    ]
    place = {b.var: i for i, b in enumerate(flat.bindings)}
    whole.sort(
        key=lambda m: (order.index(m.operator), -len(m.chain), m.signature, place[m.anchor.var])
    )
    taken: set[RelaxVar] = set()
    claimed = []
    for match in whole:
        if not match.vars & taken:
            taken |= match.vars
            claimed.append(match)
    return sorted(claimed, key=lambda m: place[m.anchor.var])


def anchor_kind(flat: FlatGraph, binding: Binding) -> CallOperator | None:
    """Return the kind of operator that an anchor computes.

    Args:
        flat: the graph.
        binding: the candidate.

    Returns:
        The kind, or None if the binding is not an anchor. An anchor is an operator at which a chain
        can start, and whose data change with each run.
    """
    if binding.shape is None or not binding.args or flat.is_constant(binding.args[0]):
        return None
    if binding.op in (CONV2D, MATMUL):
        return _product(flat, binding)
    if binding.op in (MAX_POOL, AVERAGE_POOL, MEAN, ADAPTIVE_POOL):
        return _pool(binding)
    if binding.op == ADD:
        one, two = binding.args
        same = shape_of(one) == shape_of(two) == binding.shape
        return "add" if same and not flat.is_constant(two) else None
    if binding.op == RELU or (binding.op == CLIP and _bounds(binding) is not None):
        return "elementwise"
    if step_of(binding) is not None:
        return "elementwise"
    if binding.op == QUANTISE and _is_constant_scale(flat, binding):
        source = flat.by_var.get(binding.args[0])
        if source is not None and source.op == DEQUANTISE:
            return "elementwise" if _scales(source) != _scales(binding) else None
    return None


def _product(flat: FlatGraph, binding: Binding) -> CallOperator | None:
    data, weight = binding.args[:2]
    shapes = shape_of(data), shape_of(weight)
    if shapes[0] is None or shapes[1] is None:
        return None
    if binding.op == CONV2D:
        plain = binding.value.attrs.data_layout == "NCHW" and len(shapes[1]) == 4
        return "conv2d" if plain and flat.is_constant(weight) else None
    if flat.is_constant(weight):
        return "dense" if len(shapes[1]) == 2 else None
    one, two = shapes[0], shapes[1]
    return "matmul" if len(one) == len(two) >= 2 and one[:-2] == two[:-2] else None


def _pool(binding: Binding) -> CallOperator | None:
    """Return the kind of a pooling operator, or None if the operator is not supported.

    Supported operators have windows over NCHW images, without dilation. The windows of an average
    pool must lie within the padded image.
    """
    shape, attrs = shape_of(binding.args[0]), binding.value.attrs
    if shape is None or len(shape) != 4:
        return None
    if binding.op == MEAN:
        return "average_pool" if sorted(int(a) % 4 for a in attrs.axis or ()) == [2, 3] else None
    if attrs.layout != "NCHW":
        return None
    if binding.op == ADAPTIVE_POOL:
        return "average_pool" if (binding.shape or ())[2:] == (1, 1) else None
    if any(int(d) != 1 for d in attrs.dilation):
        return None
    if binding.op == MAX_POOL:
        return "max_pool"
    return "average_pool" if window(binding).padding == _padding(attrs) else None


@dataclass(frozen=True)
class Window:
    """The window of a pooling operator.

    Attributes:
        kernel: height and width of the window.
        strides: vertical and horizontal stride.
        padding: padding at the top, left, bottom and right. If the output size is rounded up, the
            bottom and right padding includes the pixels that the last window reads beyond the
            image.
        count_include_pad: whether an average counts the pixels of the padding.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    count_include_pad: bool


def window(binding: Binding) -> Window:
    """Return the window of a pooling operator.

    Args:
        binding: binding of the pooling operator. The window of a global pool is the whole image.
    """
    (_, _, height, width), attrs = shape_of(binding.args[0]) or (0, 0, 0, 0), binding.value.attrs
    if binding.op in (MEAN, ADAPTIVE_POOL):
        return Window((height, width), (1, 1), (0, 0, 0, 0), True)
    kernel = (int(attrs.pool_size[0]), int(attrs.pool_size[1]))
    strides = (int(attrs.strides[0]), int(attrs.strides[1]))
    top, left, bottom, right = _padding(attrs)
    out_height, out_width = (binding.shape or ())[2:]
    if bool(attrs.ceil_mode):
        bottom = max(bottom, (out_height - 1) * strides[0] + kernel[0] - height - top)
        right = max(right, (out_width - 1) * strides[1] + kernel[1] - width - left)
    return Window(kernel, strides, (top, left, bottom, right), bool(attrs.count_include_pad))


def _padding(attrs: CallAttributes) -> tuple[int, int, int, int]:
    top, left, bottom, right = (int(pad) for pad in attrs.padding)
    return top, left, bottom, right


def chain_behind(flat: FlatGraph, anchor: Binding, operator: CallOperator) -> tuple[Link, ...]:
    """Return the operations after a convolution or other anchor that can be fused into it.

    The operations may read constants, and at most one other tensor that changes with each run. In a
    quantised network, the chain ends with its first quantisation. The only exception is a ReLU or
    clip that follows and is quantised with the same scale.

    Args:
        flat: the graph.
        anchor: binding of the anchor.
        operator: kind of operator that the anchor computes.
    """
    chain: list[Link] = []
    complete, head = 0, anchor
    channel_axis = 1 if anchor.op == CONV2D else len(anchor.shape or ()) - 1
    integer = is_int8(flat, anchor.args[0])
    if anchor.op == QUANTISE:
        return ()
    while (user := flat.sole_user(head.var)) is not None:
        link = _link(flat, head, user, channel_axis)
        if link is None or not _follows(link, chain, BEHIND[operator]):
            break
        if operator == "max_pool" and link.kind == "activation":
            break  # nothing sums in a max-pool
        if integer and link.kind == "add" and not is_int8(flat, user.args[1 - link.position]):
            break
        chain.append(link)
        if _is_end(link):
            complete = len(chain)
        head = user
    return tuple(chain[: _first_integer(chain[: _last_integer(chain[:complete])])])


def is_int8(flat: FlatGraph, value: RelaxExpr) -> bool:
    """Return whether a value is a dequantised integer tensor.

    Args:
        flat: the graph.
        value: the value. Operators that keep the scale, such as ReLU, max-pooling and reshapes, may
            follow the dequantisation.
    """
    binding = flat.by_var.get(value)
    while binding is not None and binding.op in _KEEPS_SCALE:
        binding = flat.by_var.get(binding.args[0])
    return binding is not None and binding.op == DEQUANTISE


_KEEPS_SCALE = frozenset((RELU, MAX_POOL, *RESHAPES, "relax.permute_dims"))


def _first_integer(chain: Sequence[Link]) -> int:
    """Return the length of a chain up to and including its first quantisation.

    A following ReLU or clip is included if its result is quantised with the same scale.

    Args:
        chain: operations after an anchor that can be fused into it.
    """
    end = next((i for i, link in enumerate(chain) if link.kind == "quantise"), len(chain) - 1)
    for i in range(end + 3, len(chain), 3):
        read, cut, written = chain[i - 2 : i + 1]
        kinds = (read.kind, cut.kind, written.kind)
        if kinds not in (("dequantise", kind, "quantise") for kind in ("relu", "clip")):
            break
        if _scales(chain[end].binding) != _scales(written.binding):
            break
        end = i
    return end + 1


def _last_integer(chain: Sequence[Link]) -> int:
    """Return the length of a chain without a trailing addition that is not quantised again.

    If there is such an addition, the chain ends with the last quantisation.

    Args:
        chain: operations after an anchor that can be fused into it.
    """
    last = max((i for i, link in enumerate(chain) if link.kind == "quantise"), default=-1)
    open_sum = last >= 0 and any(link.kind == "add" for link in chain[last:])
    return last + 1 if open_sum else len(chain)


def _follows(link: Link, chain: Sequence[Link], least: int) -> bool:
    """Return whether an accelerator can compute an epilogue step after the given earlier steps.

    Steps have ranks, which must increase along the chain. Several biases in a row count as one.

    Args:
        link: the step.
        chain: the earlier steps.
        least: rank that the first step has to exceed. It depends on the anchor's kind of operator.
    """
    if link.kind == "bias":
        return least == 0 and all(earlier.kind == "bias" for earlier in chain)
    rank = max((RANK.get(earlier.kind, 0) for earlier in chain), default=least)
    return RANK.get(link.kind, rank + 1) > max(rank, least)


def _is_end(link: Link) -> bool:
    """Return whether a chain of fused operations may end with this operation.

    It must not end with a dequantisation, because an accelerator cannot write dequantised values.
    """
    return link.kind != "dequantise"


def _link(flat: FlatGraph, head: Binding, user: Binding, channel_axis: int) -> Link | None:
    position = next((i for i, arg in enumerate(user.args) if arg.same_as(head.var)), -1)
    if user.op == ADD:
        other = user.args[1 - position]
        if flat.is_constant(other) and is_per_channel(head.shape, shape_of(other), channel_axis):
            return Link(user, position, "bias")
        same = shape_of(other) == head.shape == user.shape
        return Link(user, position, "add") if same else None
    if position != 0:
        return None
    if user.op == RELU:
        return Link(user, 0, "relu")
    if user.op == CLIP:
        return Link(user, 0, "clip") if _bounds(user) is not None else None
    if step_of(user) is not None:
        return Link(user, 0, "activation")
    if user.op in (QUANTISE, DEQUANTISE) and _is_constant_scale(flat, user):
        return Link(user, 0, "quantise" if user.op == QUANTISE else "dequantise")
    return None


def _is_constant_scale(flat: FlatGraph, binding: Binding) -> bool:
    return all(flat.is_constant(arg) for arg in binding.args[1:])


def _bounds(clip: Binding) -> tuple[float, float] | None:
    """Return the bounds of a clip to a range from 0 to a positive number.

    Returns:
        0 and the positive number, or None for any other clip.
    """
    low, high = (_number(arg) for arg in clip.args[1:])
    return (0.0, high) if low == 0 and high is not None and high > 0 else None


def upper_bound(binding: Binding) -> float | None:
    """Return the upper bound of a clip whose lower bound is 0.

    Args:
        binding: the operator.

    Returns:
        The bound, or None if the operator is not such a clip.
    """
    bounds = _bounds(binding) if binding.op == CLIP else None
    return None if bounds is None else bounds[1]


def _number(arg: RelaxExpr) -> float | None:
    value = getattr(arg, "value", None)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, (int, float)) else None


def quantisation_of(flat: FlatGraph, value: RelaxExpr) -> Quantisation | None:
    """Return the quantisation of the integers from which a value is computed.

    Args:
        flat: the graph.
        value: the value. Operators that keep the scale may follow the dequantisation.

    Returns:
        The quantisation, or None if the value is a float that was not dequantised.
    """
    binding = flat.by_var.get(value)
    while binding is not None and binding.op in _KEEPS_SCALE:
        binding = flat.by_var.get(binding.args[0])
    if binding is None:
        return None
    if binding.op == DEQUANTISE:
        return quantisation(binding)
    return _widened_quantisation(flat, binding)


def quantisation(binding: Binding) -> Quantisation | None:
    """Return the type, scale and zero point of a quantise or dequantise operator.

    Args:
        binding: the operator.

    Returns:
        The quantisation, or None for any other operator.
    """
    if binding.op not in (QUANTISE, DEQUANTISE):
        return None
    integer = binding.var if binding.op == QUANTISE else binding.args[0]
    scale, zero = _scales(binding)
    return Quantisation(str(integer.ty.dtype), scale, tuple(int(z) for z in zero))


def _scales(binding: Binding) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scale, zero = (_numbers(arg) for arg in binding.args[1:3])
    return scale, zero


def _widened_quantisation(flat: FlatGraph, binding: Binding) -> Quantisation | None:
    """Match int32(x) − zero, the form in which integer operators read an int8 or uint8 tensor.

    Args:
        flat: the graph.
        binding: the candidate.

    Returns:
        The type and zero point of x, as a quantisation without a scale. None for other expressions.
    """
    zero: tuple[float, ...] = (0,)
    if binding.op == "relax.subtract" and flat.is_constant(binding.args[1]):
        source = flat.by_var.get(binding.args[1])
        zero = _numbers(source.args[0] if source is not None else binding.args[1])
        binding = flat.by_var.get(binding.args[0], binding)
    if binding.op != "relax.astype":
        return None
    dtype = str(binding.args[0].ty.dtype)
    return Quantisation(dtype, (), tuple(int(z) for z in zero)) if "int8" in dtype else None


def _numbers(value: RelaxExpr) -> tuple[float, ...]:
    if not isinstance(value, GenericConst):
        return ()
    return tuple(float(number) for number in value.value.numpy().ravel())


def tensor_name(flat: FlatGraph, value: RelaxExpr) -> str:
    """Return the name of the operator or network input that produces an activation.

    Args:
        flat: the graph.
        value: the activation. If it is dequantised, the name is that of the operator that writes
            the integers.
    """
    binding = flat.by_var.get(value)
    while binding is not None and binding.op == DEQUANTISE:
        value = binding.args[0]
        binding = flat.by_var.get(value)
    if binding is None:
        return str(value.name) if isinstance(value, relax.Var) else ""
    return binding.node


def activations(flat: FlatGraph, match: Match) -> Iterator[RelaxExpr]:
    """Yield the tensors that a match reads and that change with each run.

    The data of the anchor, for example a convolution, come first.

    Args:
        flat: the graph.
        match: the match.
    """
    yield match.anchor.args[0]
    if match.operator in ("matmul", "add"):
        yield match.anchor.args[1]
    for link in match.chain:
        if link.kind == "add":
            yield link.binding.args[1 - link.position]


_BY_OPERATOR = {
    kind.activation.operator: (kind.kind, kind.activation)
    for kind in STEP_KINDS.values()
    if kind.activation is not None
}


def step_of(binding: Binding) -> EpilogueOp | None:
    """Return the epilogue operation that computes an activation operator.

    Args:
        binding: the operator.

    Returns:
        The operation, or None if the operator is not an activation that epilogues support.
    """
    result = _BY_OPERATOR.get(binding.op)
    if result is None:
        return None
    kind, activation = result
    value = activation.number(float(getattr(binding.value.attrs, activation.attribute)))
    return None if value is None else EpilogueOp(kind, value)
