"""From a call that the importer found to layers in integers: what multiplies, and what follows it
in one epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from networks.integer.arithmetic import INT8, Requantisation, exponent_of, finish
from networks.integer.products import NotALayer, Product, Products, depthwise
from networks.integer.walk import Tensors, View, nodes_of
from networks.relax import islands
from networks.relax.chains import Link, Match, quantisation, upper_bound, window
from networks.relax.constants import value_of
from targets.capabilities import Blocks
from targets.epilogue import EpilogueOp
from targets.layer import Layer, Value
from targets.unfold import Unfold
from targets.workload import Workload

UnfoldRule = Callable[[Workload], Unfold | None]


class Layers:
    """Writes calls as layers, in order, into `steps`."""

    def __init__(
        self, tensors: Tensors, blocks: Blocks, unfold: UnfoldRule, macs: dict[str, int],
        types: dict[str, str],
    ) -> None:  # fmt: skip
        self._t = tensors
        self._products = Products(tensors, blocks)
        self._passes = blocks.in_channels == blocks.out_channels
        self._unfold = unfold
        self._macs = macs
        self._types = types
        self.steps: list[Layer] = []

    def write(self, match: Match) -> None:
        """Append the layers of a call and bind its result. Raises `NotALayer`, and
        `QuantisationError` for scales that shifts cannot represent."""
        p = self._products
        rules: dict[str, Callable[[Match], Product]] = {
            "conv2d": p.conv2d, "dense": p.dense, "average_pool": p.average,
            "elementwise": p.identity, "add": p.sum,
        }  # fmt: skip
        if match.operator == "max_pool":
            self._maximum(match)
        elif match.operator == "matmul":
            self._heads(match)
        else:
            self._bind(match, self._accumulate(match, rules[match.operator](match)))

    def _heads(self, match: Match) -> None:
        """A dense layer a head; their outputs after one another are the result."""
        products = list(self._products.heads(match))
        made = [
            self._accumulate(match, product, f"{match.anchor.node}.{i}", len(products))
            for i, product in enumerate(products)
        ]
        shape, node = match.result.shape or (), match.result.node
        if len(made) == 1:
            self._bind(match, made[0])
            return
        holders = [self._t.holders[value.name] for value in made]
        view = self._t.integers(islands.stacked(holders, shape), shape, made[0].exponent, node)
        self._t.bind(match.result.var, view)

    def _accumulate(self, match: Match, product: Product, name: str = "", parts: int = 1) -> Value:
        """Append a layer that sums products and requantises, one of `parts` of the call; the value
        it writes."""
        channels = product.workload.out_channels
        steps = _Behind(match)
        residual, bias = None, None
        for link in match.links:
            if link.kind == "bias":
                more = self._bias(link, channels)
                bias = more if bias is None else bias + more
            elif link.kind == "add":
                self._check_passes()
                residual = self._residual(match, link, product)
        output = steps.output
        if output is None:
            if match.operator != "elementwise" or steps.upper is not None:
                raise NotALayer("nothing quantises its result")
            output = product.sums
        exponent = None if residual is None else residual.exponent
        if residual is not None and product.finer is not None:
            raise NotALayer("a tensor is added to its sums, which count differently by channel")
        r = Requantisation(product.sums, output, exponent, steps.relu, steps.upper, product.finer)
        if not r.is_possible:
            raise NotALayer("its scales are too far apart for shifts")
        epilogue, integers = finish(r, bias, channels)
        value = self._t.add(name or match.result.node, product.shape, output)
        added = None if residual is None else residual.value
        self._append(match, product, epilogue, value, integers, added, name, parts, r.shifts)
        return value

    def _check_passes(self) -> None:
        """Residuals and pooled tensors pass the matrix unit as they are."""
        if not self._passes:
            raise NotALayer("tensors pass as they are only where blocks are square")

    def _bind(self, match: Match, value: Value) -> None:
        shape = match.result.shape or ()
        self._t.bind(match.result.var, View(value.name, shape, value.exponent))

    def _append(
        self,
        match: Match,
        product: Product,
        epilogue: tuple[EpilogueOp, ...],
        value: Value,
        bias: NDArray[np.int32] | None = None,
        residual: str | None = None,
        name: str = "",
        parts: int = 1,
        shifts: NDArray[np.int64] | None = None,
    ) -> None:
        node = match.anchor.node
        workload, weight, unfold = (
            replace(product.workload, epilogue=epilogue),
            product.weight,
            None,
        )
        if match.operator == "conv2d" and product.data in self._t.host and weight is not None:
            unfold = self._unfold(workload)
            if unfold is not None:
                workload, weight = unfold.workload(workload), unfold.weight(weight)
        self.steps.append(
            Layer(
                name=name or node,
                names=nodes_of(match),
                operator=self._types.get(node, match.operator),
                workload=workload,
                data=product.data,
                output=value.name,
                residual=residual,
                weight=weight,
                weight_from=product.weight_from,
                bias=bias,
                shifts=None if shifts is None else shifts.astype(np.int32),
                unfold=unfold,
                macs=self._macs.get(node, 0) // parts,
            )
        )

    def _bias(self, link: Link, channels: int) -> NDArray[np.float64]:
        array = value_of(self._t.flat, link.binding.args[1 - link.position])
        if array is None:
            raise NotALayer("its bias is computed by operators that are not known here")
        return np.broadcast_to(array.astype(np.float64).ravel(), (channels,))

    def _residual(self, match: Match, link: Link, product: Product) -> View:
        if match.operator == "add":
            return self._products.operands(match)[1]
        other = self._products.data(link.binding.args[1 - link.position])
        return self._products.like(other, product.shape)

    def _maximum(self, match: Match) -> None:
        """A maximum keeps its scale; another scale behind it is a layer of its own."""
        self._check_passes()
        view, (n, c, h, w) = self._products.image(match.anchor.args[0])
        read, behind = window(match.anchor), _Behind(match)
        if behind.output is None and behind.upper is not None:
            raise NotALayer("nothing quantises its result")
        moved = behind.output not in (None, view.known)
        low, high = Requantisation(0, view.known, None, behind.relu, behind.upper).bounds
        epilogue: tuple[EpilogueOp, ...] = ()
        if high < INT8[1] and not moved:
            epilogue += (EpilogueOp("min", high),)
        if low == 0:
            epilogue += (EpilogueOp("max", 0),)
        workload = replace(
            depthwise(n, c, h, w, read.kernel, read.strides, read.padding), operator="max_pool"
        )
        shape = (n, c, workload.out_height, workload.out_width)
        name = match.result.node if not moved else match.anchor.node
        value = self._t.add(name, shape, view.known)
        self._append(match, Product(workload, view.value, view.known, shape), epilogue, value)
        if behind.output is not None and moved:
            product = self._products.one_by_one(View(value.name, shape, view.known))
            r = Requantisation(view.known, behind.output, None, behind.relu, behind.upper)
            if not r.is_possible:
                raise NotALayer("its scales are too far apart for shifts")
            epilogue, bias = finish(r, None, c)
            value = self._t.add(match.result.node, shape, behind.output)
            name = f"{match.anchor.node}.scale"
            self._append(match, product, epilogue, value, bias, name=name)
        self._bind(match, value)


class _Behind:
    """What follows the sums of a call: the exponent it is written with, None where nothing says,
    whether a relu cuts it and where it is cut above."""

    def __init__(self, match: Match) -> None:
        self.output: int | None = None
        self.relu = False
        self.upper: float | None = None
        for link in match.links:
            if link.kind in ("relu", "clip"):
                self.relu = True
                bound = upper_bound(link.binding)
                known = [each for each in (self.upper, bound) if each is not None]
                self.upper = min(known, default=None)
            elif link.kind == "quantise":
                found = quantisation(link.binding)
                assert found is not None
                self.output = exponent_of(link.binding.node, found)
