"""Decides which tensors between layers are stored in bfloat16.

Where layers multiply in bfloat16, their data are rounded when they are copied. A tensor that
nobody else reads may as well be stored so. Half as many bytes go through the caches, which large
images wait for.
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
"""Operators that read bfloat16, with which TVM fuses widening, and pools."""
PASSING = frozenset((*EACH, *PAIRS, *POOLS, NORM, ITEM, CONCAT))
"""Operators whose result has the channels of what they read in the same blocks."""


class Bfloat16Tensors:
    """Of a network whose kernels these are."""

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
        self._behind = {each.first: flat.by_var[var] for var, each in self.beside.items()}
        for layer in layers:
            if (read := taps.get(layer.data)) is not None:
                self._behind[read.inside[-1]] = layer.match.anchor
        self.used = any(workload.dtype == "bfloat16" for workload in kernels)
        self._any = any(code.narrowed is not None for code in kernels.values())

    def __contains__(self, var: RelaxVar) -> bool:
        """Whether a variable is stored so: an image that layers read or add."""
        if not self._any or not self._is_image(var):
            return False
        if var not in self._known:
            self._known[var] = False  # of itself
            users = self._users(var)
            self._known[var] = (
                bool(users)
                and var not in self._results
                and all(self._reads(user, var) for user in users)
                and (self._is_moved(var) or any(map(self._is_kept, users)))
            )
        return self._known[var]

    def block(self, var: RelaxVar) -> int:
        """The channels of a block that those who read a variable want; 0 where nobody does, or
        where it is concatenated with what has no such blocks."""
        if var not in self._blocks:
            self._blocks[var] = 0  # of itself
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
        if (own := self._flat.by_var.get(var)) is not None and own.op == CONCAT:
            together += variables(own.value)
        shapes = [shape for each in together if (shape := shape_of(each)) is not None]
        fits = all(len(shape) == 4 and shape[1] % max(1, *wanted) == 0 for shape in shapes)
        return max(wanted) if max(wanted) and fits else 0

    def _data(self, layer: KernelLayer) -> RelaxVar:
        """What its kernel reads."""
        taps = self._taps.get(layer.data)
        return layer.data if taps is None else taps.source

    def _is_image(self, var: RelaxVar) -> bool:
        binding = self._flat.by_var.get(var)
        return binding is not None and binding.shape is not None and len(binding.shape) == 4

    def _reads(self, user: Binding, var: RelaxVar) -> bool:
        """Whether an operator can read a value so."""
        layer = self._layers.get(user.var)
        if layer is not None:
            given = (self._data(layer), *layer.added)
            narrowed = self._kernels[layer.workload].narrowed
            return narrowed is not None and any(each.same_as(var) for each in given)
        return user.op in WIDENED or (self._only_moves(user) and user.var in self)

    def _is_moved(self, var: RelaxVar) -> bool:
        """Whether a value is written to memory anyway, by a kernel or by moving others."""
        return var in self._layers or self._only_moves(self._flat.by_var[var])

    def _is_kept(self, user: Binding) -> bool:
        """Whether an operator reads a value from memory: TVM fuses the others."""
        return user.var in self._layers or self._only_moves(user)

    def _only_moves(self, binding: Binding) -> bool:
        return bool(binding.op == CONCAT) or binding.var in self.beside

    def _users(self, var: RelaxVar) -> list[Binding]:
        """The operators that read a variable; those that make pixels of its channels as one, and a
        layer in place of those that put its frames side by side."""
        return [self._behind.get(user.var, user) for user in self._flat.users.get(var, [])]
