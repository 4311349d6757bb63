"""Decides which fused calls of a network the accelerator runs: those that it finishes sooner.

A fused call is a set of operators that run as one layer. Its time includes the packing of tensors
where data pass between CPU and accelerator. Initially, the accelerator gets all calls that it can
run. Then calls are returned to the CPU one by one, always the call whose return saves most time,
until no return saves time. Each return can change which tensors pass between CPU and accelerator.
Returns are never undone. If the accelerator can run the whole network and this takes at most 5 %
longer, the whole network is offloaded, because then no CPU code has to be compiled and no runtime
is needed on the board.

Finally, max-pools are fused into the preceding convolution where that is faster (`pooling`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright.core.errors import WorkloadError
from tilewright.networks.epilogues import int8_epilogue
from tilewright.networks.fused_calls import PRODUCTS, FusedCall
from tilewright.networks.imported_model import Examined
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.cpu_costs import FREE, SECONDS
from tilewright.networks.offloading.pooling import pool_where_faster
from tilewright.networks.offloading.workloads import OffloadDecision, candidate_workload, macs_of
from tilewright.networks.onnx.graph import Shape
from tilewright.targets.capabilities import Blocks
from tilewright.targets.workload import Workload

WHOLE = 1.05
"""Factor by which the time of the whole network on the accelerator may exceed the time with some
layers on the CPU. Up to this factor, the whole network is offloaded."""


def decide_offloading(examined: Examined, accelerator: Accelerator) -> list[OffloadDecision]:
    """Decide for each fused call of a network whether it is offloaded.

    Args:
        examined: the network with its fused calls.
        accelerator: the accelerator.

    Returns:
        One decision per fused call, in execution order.
    """
    graph = _Graph(examined, accelerator.blocks)
    candidates = [
        candidate_workload(
            call, accelerator, from_host=graph.from_host(place), image=graph.image(place)
        )
        for place, call in enumerate(graph.calls)
    ]
    costs = [_with_costs(candidate, accelerator) for candidate in candidates]
    able = [decision.workload is not None for decision in costs]
    if accelerator.bound is None:  # there is no estimate of the time on the accelerator
        return costs
    borders, on = _Borders(graph, accelerator, costs), list(able)
    while True:
        leaving = [place for place in range(len(on)) if on[place] and borders.gain(place, on) < 0]
        if not leaving:
            break
        on[min(leaving, key=lambda place: borders.gain(place, on))] = False
    if graph.is_covered(able) and borders.seconds(able) <= WHOLE * borders.seconds(on):
        on = able
    decisions = [borders.decide(place, on) for place in range(len(on))]
    refused = {
        place: candidate.workload
        for place, candidate in enumerate(candidates)
        if costs[place].accelerator_seconds == math.inf
    }
    _pool_together(graph, decisions, accelerator, refused)
    return decisions


def _pool_together(
    graph: _Graph, decisions: list[OffloadDecision], accelerator: Accelerator,
    refused: Mapping[int, Workload | None],
) -> None:  # fmt: skip
    """Fuse max-pools into the convolutions before them where this is faster.

    A max-pool that the accelerator cannot run by itself can be fused as well.

    Args:
        graph: data flow between the calls.
        decisions: the decision on each call. The function replaces the decisions on fused calls.
        accelerator: the accelerator.
        refused: workloads that the accelerator cannot run by themselves, by index of the call.
    """
    for place, call in enumerate(graph.calls):
        pool, source = decisions[place], (graph.sources[place] or (None,))[0]
        window = refused.get(place, pool.workload)
        if call.operator != "max_pool" or window is None or source is None:
            continue
        before, own = graph.calls[source], decisions[source]
        if own.workload is None or before.output_shape != call.data_shape:
            continue
        if not graph.is_read_by(source, place):
            continue
        together = pool_where_faster(own.workload, window, accelerator)
        if together is None or not _accepts(accelerator, together, before):
            continue
        seconds = own.accelerator_seconds
        if seconds is not None and accelerator.bound is not None:
            form_seconds = [accelerator.seconds_or_never(w) for w in (together, own.workload)]
            seconds += form_seconds[0] - form_seconds[1]
        decisions[source] = replace(own, workload=together, accelerator_seconds=seconds)
        decisions[place] = replace(
            pool, workload=None, calls=0, accelerator_seconds=None, within=before.node, reason="",
        )  # fmt: skip


def _accepts(accelerator: Accelerator, together: Workload, call: FusedCall) -> bool:
    """Return whether the accelerator can run a fused workload with the epilogue of a call.

    The epilogue matters because its clips determine how the max-pool treats the padding.

    Args:
        accelerator: the accelerator.
        together: workload of the convolution with its max-pool fused.
        call: the convolution.
    """
    try:
        accelerator.accept(together.with_steps(int8_epilogue(call, accelerator.epilogue)))
    except WorkloadError:
        return False
    return True


class _Graph:
    """Data flow between the fused calls of a network. Operators that only reshape are skipped.

    Args:
        examined: the network with its fused calls.
        blocks: block sizes of the accelerator.

    Attributes:
        examined: the network.
        blocks: the block sizes.
        calls: the fused calls, without later parts of an operator that was split.
        types: ONNX type of each operator, by its name.
        outputs: index of the call that writes an operator's output, by name of the operator.
    """

    def __init__(self, examined: Examined, blocks: Blocks) -> None:
        self.examined = examined
        self.blocks = blocks
        self.calls = [call for call in examined.found.calls if not _is_piece(call)]
        self.types = {operator.name: operator.op_type for operator in examined.operators}
        self.outputs = {call.output: place for place, call in enumerate(self.calls)}

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Index of the call to which each operator belongs, by operator name."""
        return {
            node: place
            for place, call in enumerate(self.calls)
            for node in (call.node, *(step.node for step in call.steps))
        }

    @cached_property
    def in_place(self) -> set[str]:
        """Names of the concatenations that need no work, as `concatenations` returns them."""
        return concatenations(self.examined, self.examined.writers, self.owners, self.blocks)

    def source(self, name: str) -> int | None:
        """Return the index of the call that produces an operator's output.

        If the operator is inside a call, but not its last operator, the producer of the call's data
        is returned.

        Args:
            name: name of the operator.

        Returns:
            The index, or None if the CPU computes the output or if it is an input of the network.
        """
        while name not in self.outputs:
            before = self.examined.writers.get(name, ())
            passes = self.types.get(name) in FREE or name in self.in_place
            if not before or not (passes or name in self.owners):
                return None
            name = before[0]
        return self.outputs[name]

    @cached_property
    def sources(self) -> Sequence[tuple[int | None, ...]]:
        """Indices of the calls that produce the inputs of each call.

        An index is None if no call produces the input.
        """
        return [tuple(map(self.source, call.inputs)) for call in self.calls]

    @cached_property
    def readers(self) -> Sequence[frozenset[int | None]]:
        """Indices of the calls that read the result of each call.

        None stands for a reader on the CPU, and for an output of the network.
        """
        if not self.examined.readers:  # readers are not known for this file format
            sets: list[set[int | None]] = [set() for _ in self.calls]
            for place, sources in enumerate(self.sources):
                for source in sources:
                    if source is not None:
                        sets[source].add(place)
            return [frozenset(some or {None}) for some in sets]
        return [frozenset(self._readers(call.output)) for call in self.calls]

    def _readers(self, name: str) -> set[int | None]:
        result: set[int | None] = set()
        for reader in self.examined.readers.get(name, ()):
            if reader in self.owners:
                result.add(self.owners[reader])
            elif self.types.get(reader) in (*FREE, *QUANTISING) or reader in self.in_place:
                result |= self._readers(reader)
            else:
                result.add(None)
        return result or {None}

    def is_read_by(self, place: int, reader: int) -> bool:
        """Return whether a call's result is known to be read by one other call only.

        Args:
            place: index of the call.
            reader: index of the other call.
        """
        name = self.calls[place].output
        between = [
            item for item in self.examined.readers.get(name, ())
            if self.types.get(item) in (*FREE, *QUANTISING)
        ]  # fmt: skip
        known = bool(self.examined.readers) and not self.examined.results & {name, *between}
        return known and self.readers[place] == {reader}

    def is_covered(self, able: Sequence[bool]) -> bool:
        """Return whether calls that can be offloaded include all operators that do any work.

        Args:
            able: for each call, whether it can be offloaded.
        """
        idle = {*self.examined.absorbed, *self.examined.found.constant_nodes}
        return all(
            able[self.owners[operator.name]]
            if operator.name in self.owners
            else operator.name in idle
            or operator.name in self.in_place
            or operator.op_type in (*FREE, *QUANTISING)
            for operator in self.examined.operators
        )

    def image(self, place: int) -> Shape | None:
        """Return the shape of the image that a dense layer reads in flattened form.

        Args:
            place: index of the dense layer's call.

        Returns:
            The shape (1, c, h, w), or None if the data are not an image that another call produces.
        """
        call = self.calls[place]
        name = call.inputs[0] if call.inputs else ""
        while self.types.get(name) in FREE and self.examined.writers.get(name):
            name = self.examined.writers[name][0]
        shape = self.examined.shapes.get(name, ())
        one_row = call.operator == "dense" and math.prod(call.data_shape) == call.data_shape[-1]
        flat = len(shape) == 4 and shape[0] == 1 and math.prod(shape) == call.data_shape[-1]
        return shape if one_row and flat and self.source(name) is not None else None

    def from_host(self, place: int) -> bool:
        """Return whether the data of a call are an input of the network.

        Args:
            place: index of the call.
        """
        call = self.calls[place]
        if not self.examined.readers:
            return call.data_shape in self.examined.inputs.values()
        name = call.inputs[0] if call.inputs else ""
        while self.types.get(name) in (*FREE, *QUANTISING) and self.examined.writers.get(name):
            name = self.examined.writers[name][0]
        return name in self.examined.inputs or self.types.get(name) in (*FREE, *QUANTISING)


def _is_piece(call: FusedCall) -> bool:
    """Return whether a call is a later part of an operator that was split into several calls."""
    return call.operator not in (*PRODUCTS, "matmul") and call.node in call.inputs


QUANTISING = ("QuantizeLinear", "DequantizeLinear")


class _Borders:
    """Estimates the times of calls, depending on which neighbouring calls run on the accelerator.

    A tensor that passes between CPU and accelerator has to be packed or unpacked. In all methods,
    `place` is the index of a call, and `on` holds one bool per call: whether it runs on the
    accelerator.

    Args:
        graph: data flow between the calls.
        accelerator: the accelerator.
        found: for each call, the decision that disregards its neighbours.
    """

    def __init__(
        self, graph: _Graph, accelerator: Accelerator, found: Sequence[OffloadDecision]
    ) -> None:
        self.graph = graph
        self.accelerator = accelerator
        self.found = found

    def gain(self, place: int, on: Sequence[bool]) -> float:
        """Return the seconds that are saved if a call runs on the accelerator instead of the CPU.

        Args:
            place: index of the call.
            on: for each call, whether it runs on the accelerator.
        """
        decision = self.found[place]
        return (
            decision.cpu_seconds
            + self._packing_seconds(place, on)
            - self._accelerator_seconds(place, on)
        )

    def seconds(self, on: Sequence[bool]) -> float:
        """Return the total time of all calls in seconds.

        Args:
            on: for each call, whether it runs on the accelerator.
        """
        return sum(
            self._accelerator_seconds(place, on) if on[place] else decision.cpu_seconds
            for place, decision in enumerate(self.found)
        )

    def decide(self, place: int, on: Sequence[bool]) -> OffloadDecision:
        """Return the final decision for a call, with its costs.

        Args:
            place: index of the call.
            on: for each call, whether it runs on the accelerator.
        """
        decision = self.found[place]
        if decision.workload is None:
            return decision
        there = self._accelerator_seconds(place, on)
        decision = replace(decision, accelerator_seconds=there)
        if on[place]:
            return decision
        reason = (
            f"estimated {1000.0 * decision.cpu_seconds:.2g} ms on the CPU and "
            f"{1000.0 * there:.2g} ms on the accelerator with packing"
        )
        return replace(decision, workload=None, calls=0, reason=reason, unfold=None)

    def _accelerator_seconds(self, place: int, on: Sequence[bool]) -> float:
        """Return the seconds of a call on the accelerator, including the packing that it causes.

        Args:
            place: index of the call.
            on: for each call, whether it runs on the accelerator.
        """
        decision, call = self.found[place], self.graph.calls[place]
        seconds = decision.accelerator_seconds or 0.0
        for position, source in enumerate(self._sources(place)):
            if source is None or not on[source]:
                seconds += self._packing(decision, position)
        if any(reader is None or not on[reader] for reader in self.graph.readers[place]):
            seconds += self.accelerator.image_seconds(math.prod(call.output_shape))
        return seconds

    def _packing_seconds(self, place: int, on: Sequence[bool]) -> float:
        """Return the seconds of packing and unpacking that are needed if the CPU runs a call.

        Args:
            place: index of the call.
            on: for each call, whether it runs on the accelerator.
        """
        seconds, call = 0.0, self.graph.calls[place]
        for position, source in enumerate(self._sources(place)):
            if source is None or not on[source]:
                continue
            others = self.graph.readers[source] - {place}
            if all(other is not None and on[other] for other in others):
                seconds += self.accelerator.image_seconds(_elements(call, position))
        if any(reader is not None and on[reader] for reader in self.graph.readers[place]):
            seconds += self.accelerator.image_seconds(math.prod(call.output_shape))
        return seconds

    def _sources(self, place: int) -> tuple[int | None, ...]:
        """Return the calls that produce a call's inputs.

        Args:
            place: index of the call.

        Returns:
            Index of the producer of each input; None for an input that no call produces. (None,) if
            the inputs are not known.
        """
        return self.graph.sources[place] or (None,)

    def _packing(self, decision: OffloadDecision, position: int) -> float:
        elements = _elements(decision.fused, position)
        if position or decision.unfold is None or decision.workload is None:
            return self.accelerator.image_seconds(elements)
        w = decision.workload
        unfolded = w.batch * w.in_channels * w.height * w.width
        return self.accelerator.unfold_seconds(elements, unfolded)


def _with_costs(decision: OffloadDecision, accelerator: Accelerator) -> OffloadDecision:
    """Return a decision with the times of its call on both devices, without packing.

    Args:
        decision: the decision. If the target cannot run its workload, the workload is removed and
            the reason is recorded.
        accelerator: the accelerator.
    """
    decision = replace(decision, cpu_seconds=accelerator.slowdown * cpu_seconds(decision.fused))
    if decision.workload is None:
        return decision
    try:
        seconds = accelerator.seconds(decision.workload)
    except WorkloadError as error:
        return replace(
            decision, workload=None, calls=0, unfold=None, reason=str(error),
            accelerator_seconds=math.inf,
        )  # fmt: skip
    return replace(
        decision, accelerator_seconds=None if seconds is None else seconds * decision.calls
    )


def cpu_seconds(call: FusedCall) -> float:
    """Return the estimated time of a fused call on the Xeon of `cpu_costs`, in seconds.

    Fused steps cost nothing, because their data are still in registers or caches. Only a step that
    reads another tensor costs extra.
    """
    results = math.prod(call.output_shape)
    added = SECONDS["elementwise"] * results * any(step.kind == "add" for step in call.steps)
    if call.operator == "conv2d":
        narrow = call.groups > 1 and call.weight_shape[1] == 1
        return added + SECONDS["depthwise" if narrow else "conv2d"] * macs_of(call)
    if call.operator in ("dense", "matmul"):
        rows = results // call.output_shape[-1]
        return added + SECONDS["vector" if rows == 1 else "matrix"] * macs_of(call)
    if call.operator in ("max_pool", "average_pool"):
        return added + SECONDS["window"] * math.prod(call.kernel) * results
    return added or SECONDS["elementwise"] * results


def _elements(call: FusedCall, position: int) -> int:
    """Return the number of elements of one of a call's input tensors.

    Args:
        call: the call.
        position: index of the input: 0 for the data, then the second operand of a `matmul` or the
            tensors that `add` steps read.
    """
    if position == 0:
        return math.prod(call.data_shape)
    if position == 1 and call.operator == "matmul":
        return math.prod(call.weight_shape)
    return math.prod(call.output_shape)


def concatenations(
    examined: Examined, writers: Mapping[str, Sequence[str]], owned: Collection[str], blocks: Blocks
) -> set[str]:
    """Return the concatenations whose inputs can be written directly into the result.

    Such a concatenation needs no work. It joins whole blocks of channels, and each of its inputs is
    the result of a fused call or of another such concatenation.

    Args:
        examined: the network.
        writers: names of the operators that produce the inputs of each operator, by its name.
        owned: names of the operators in fused calls.
        blocks: block sizes of the accelerator.

    Returns:
        Names of the concatenations.
    """
    names: set[str] = set()
    if blocks.in_channels != blocks.out_channels or blocks.out_channels == 1:
        return names
    for operator in examined.operators:  # in execution order, so inputs are decided first
        name = operator.name
        parts = [examined.shapes.get(part, ()) for part in writers.get(name, ())]
        if (
            operator.op_type in ("Concat", "cat")
            and len(set(writers.get(name, ()))) == len(parts) > 1
            and all(part in owned or part in names for part in writers[name])
            and _side_by_side(parts, examined.shapes.get(name, ()), blocks)
        ):
            names.add(name)
    return names


def _side_by_side(parts: Sequence[Shape], whole: Shape, blocks: Blocks) -> bool:
    """Return whether a concatenation joins images along whole blocks of channels.

    Args:
        parts: shapes of the inputs.
        whole: shape of the result.
        blocks: block sizes of the accelerator.
    """
    return (
        len(whole) == 4
        and whole[0] <= blocks.batch
        and all(len(p) == 4 and (p[0], *p[2:]) == (whole[0], *whole[2:]) for p in parts)
        and all(part[1] % blocks.out_channels == 0 for part in parts)
        and sum(part[1] for part in parts) == whole[1]
    )
