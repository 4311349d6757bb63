"""Decide which tensors between layers are stored in bfloat16.

Layers that multiply in bfloat16 round their float32 input to bfloat16 when they copy it. If only
such layers read a tensor, the tensor can be stored in bfloat16 without changing the result. This
halves the memory traffic, which is the bottleneck for large images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.core.tvm_types import RelaxVar
from tilewright.networks.compiled.channel_rearrangements import pixels_beside
from tilewright.networks.compiled.layers import KernelLayer
from tilewright.networks.compiled.operands_in_place import FrameTaps
from tilewright.networks.compiled.packed_operators import CONCAT, EACH, PAIRS, POOLS
from tilewright.networks.relax.batch_norm import ITEM, NORM
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.networks.relax.op_patterns import ADAPTIVE_POOL, MEAN
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

WIDENED = frozenset((*EACH, *PAIRS, *POOLS, NORM, MEAN, ADAPTIVE_POOL))
"""Operators that can read bfloat16 tensors, because TVM fuses the conversion to float32 with
them."""
PASSING = frozenset((*EACH, *PAIRS, *POOLS, NORM, ITEM, CONCAT))
"""Operators whose result has the same number of channels per block as their input."""


class Bfloat16Tensors:
    """Set of the network's tensors that are stored in bfloat16.

    `variable in tensors` tells whether the tensor of a variable is stored in bfloat16.

    Args:
        flat: the network as a flat list of operators.
        layers: the layers with kernels.
        kernels: code of each workload's kernel.
        taps: for each image that is gathered from the frames of a volume and that a kernel can read
            directly from them, the description of these frames. Keys are variables of the images.

    Attributes:
        beside: operators that rearrange channels to pixels, by variable of their result.
        used: whether any kernel multiplies in bfloat16.
    """

    def __init__(
        self, flat: FlatGraph, layers: Sequence[KernelLayer],
        kernels: Mapping[Workload, KernelCode], taps: Mapping[RelaxVar, FrameTaps],
    ) -> None:  # fmt: skip
        self._flat, self._kernels, self._taps = flat, kernels, taps
        self._layers: dict[RelaxVar, KernelLayer] = {}
        for layer in layers:
            for binding in (layer.match.anchor, *(link.binding for link in layer.links)):
                self._layers[binding.var] = layer
        self._results = set(variables(flat.module["main"].body.body))
        self._known: dict[RelaxVar, bool] = {}
        self._blocks: dict[RelaxVar, int] = {}
        self.beside = pixels_beside(flat)
        self._behind = {
            rearrangement.first: flat.by_var[var] for var, rearrangement in self.beside.items()
        }
        for layer in layers:
            if (read := taps.get(layer.data)) is not None:
                self._behind[read.inside[-1]] = layer.match.anchor
        self.used = any(workload.dtype == "bfloat16" for workload in kernels)
        self._any = any(code.narrowed is not None for code in kernels.values())

    def __contains__(self, var: RelaxVar) -> bool:
        """Return whether the tensor of a variable is stored in bfloat16.

        The tensor must be an image and must not be a result of the network. All of its readers must
        be able to read bfloat16. It must be stored in memory at all; operators that TVM fuses do
        not store the values between them.
        """
        if not self._any or not self._is_image(var):
            return False
        if var not in self._known:
            # Placeholder that ends the recursion if a tensor depends on itself.
            self._known[var] = False
            users = self._users(var)
            self._known[var] = (
                bool(users)
                and var not in self._results
                and all(self._reads(user, var) for user in users)
                and (self._is_moved(var) or any(map(self._is_kept, users)))
            )
        return self._known[var]

    def block(self, var: RelaxVar) -> int:
        """Return the channel block size that the readers of a tensor prefer.

        Args:
            var: variable of the tensor.

        Returns:
            Number of channels per block. It is 0 if no reader prefers a block size, or if the
            tensor is concatenated with a tensor whose number of channels is not a multiple of the
            preferred size.
        """
        if var not in self._blocks:
            # Placeholder that ends the recursion if a tensor depends on itself.
            self._blocks[var] = 0
            self._blocks[var] = self._wanted_block(var)
        return self._blocks[var]

    def _wanted_block(self, var: RelaxVar) -> int:
        wanted, together = [0], [var]
        for user in self._users(var):
            layer = self._layers.get(user.var)
            if layer is not None and self._data(layer).same_as(var):
                wanted.append(self._kernels[layer.workload].stored_block)
            elif user.op in PASSING or user.var in self.beside:
                wanted.append(self.block(user.var))
                if user.op == CONCAT:
                    together += variables(user.value)
        if (writer := self._flat.by_var.get(var)) is not None and writer.op == CONCAT:
            together += variables(writer.value)
        shapes = [shape for variable in together if (shape := shape_of(variable)) is not None]
        fits = all(len(shape) == 4 and shape[1] % max(1, *wanted) == 0 for shape in shapes)
        return max(wanted) if max(wanted) and fits else 0

    def _data(self, layer: KernelLayer) -> RelaxVar:
        """Return the variable of the image or frames that a layer's kernel reads."""
        taps = self._taps.get(layer.data)
        return layer.data if taps is None else taps.source

    def _is_image(self, var: RelaxVar) -> bool:
        binding = self._flat.by_var.get(var)
        return binding is not None and binding.shape is not None and len(binding.shape) == 4

    def _reads(self, user: Binding, var: RelaxVar) -> bool:
        """Return whether an operator can read a variable in bfloat16.

        Args:
            user: an operator that reads the variable.
            var: the variable.
        """
        layer = self._layers.get(user.var)
        if layer is not None:
            read = (self._data(layer), *layer.added)
            narrowed = self._kernels[layer.workload].narrowed
            return narrowed is not None and any(operand.same_as(var) for operand in read)
        return user.op in WIDENED or (self._only_moves(user) and user.var in self)

    def _is_moved(self, var: RelaxVar) -> bool:
        """Return whether a kernel or a data movement writes a variable to memory."""
        return var in self._layers or self._only_moves(self._flat.by_var[var])

    def _is_kept(self, user: Binding) -> bool:
        """Return whether an operator reads its input from memory, because TVM does not fuse it.

        Args:
            user: the operator. Kernels and operators that only move data are not fused.
        """
        return user.var in self._layers or self._only_moves(user)

    def _only_moves(self, binding: Binding) -> bool:
        return bool(binding.op == CONCAT) or binding.var in self.beside

    def _users(self, var: RelaxVar) -> list[Binding]:
        """Return the operators that read a variable.

        A rearrangement of channels to pixels, which consists of several operators, counts as its
        last operator. The operators that gather frames for a layer count as the layer.
        """
        return [self._behind.get(user.var, user) for user in self._flat.users.get(var, [])]
