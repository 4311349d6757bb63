"""Decides which tensors between layers are stored in bfloat16.

Where layers multiply in bfloat16, their data are rounded when they are copied. A tensor that
nobody else reads may as well be stored so. Half as many bytes go through the caches, which large
images wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.networks.compiled.layers import KernelLayer
from tilewright.networks.compiled.packed_operators import CONCAT, EACH, PAIRS
from tilewright.networks.relax.batch_norm import NORM
from tilewright.networks.relax.bindings import Binding, FlatGraph, variables
from tilewright.networks.relax.op_patterns import ADAPTIVE_POOL, MEAN
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

WIDENED = frozenset((*EACH, *PAIRS, NORM, MEAN, ADAPTIVE_POOL))
"""Operators that TVM fuses widening with."""


class Bfloat16Tensors:
    """Of a network whose kernels these are."""

    def __init__(
        self, flat: FlatGraph, layers: Sequence[KernelLayer],
        kernels: Mapping[Workload, KernelCode],
    ) -> None:  # fmt: skip
        self._flat, self._kernels = flat, kernels
        self._layers: dict[Any, KernelLayer] = {}
        for layer in layers:
            for binding in (layer.match.anchor, *(link.binding for link in layer.links)):
                self._layers[binding.var] = layer
        self._results = set(variables(flat.module["main"].body.body))
        self._known: dict[Any, bool] = {}
        self._any = any(code.narrowed is not None for code in kernels.values())

    def __contains__(self, var: Any) -> bool:
        """Whether a variable is stored so: an image that layers read or add."""
        if not self._any or not self._is_image(var):
            return False
        if var not in self._known:
            self._known[var] = False  # of itself
            users = self._flat.users.get(var, [])
            self._known[var] = (
                bool(users)
                and var not in self._results
                and all(self._reads(user, var) for user in users)
                and (self._is_moved(var) or any(map(self._is_kept, users)))
            )
        return self._known[var]

    def _is_image(self, var: Any) -> bool:
        binding = self._flat.by_var.get(var)
        return binding is not None and binding.shape is not None and len(binding.shape) == 4

    def _reads(self, user: Binding, var: Any) -> bool:
        """Whether an operator can read a value so."""
        layer = self._layers.get(user.var)
        if layer is not None:
            given = (layer.data, *layer.added)
            narrowed = self._kernels[layer.workload].narrowed
            return narrowed is not None and any(each.same_as(var) for each in given)
        return user.op in WIDENED or (user.op == CONCAT and user.var in self)

    def _is_moved(self, var: Any) -> bool:
        """Whether a value is written to memory anyway, by a kernel or by moving others."""
        return var in self._layers or bool(self._flat.by_var[var].op == CONCAT)

    def _is_kept(self, user: Binding) -> bool:
        """Whether an operator reads a value from memory: TVM fuses the others."""
        return user.var in self._layers or user.op == CONCAT
