"""Orders layers and CPU work: few and long runs of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.networks.relax.cpu_subgraphs import CpuNode
from tilewright.targets.layer import Layer

Item = Layer | CpuNode


@dataclass(frozen=True)
class StepRun:
    """Layers without CPU work between, or CPU work without layers between, in order."""

    items: tuple[Item, ...]

    @property
    def is_cpu(self) -> bool:
        """Whether it is work of the CPU."""
        return isinstance(self.items[0], CpuNode)


def schedule(
    layers: Sequence[Layer],
    nodes: Sequence[CpuNode],
    reads: Mapping[str, Collection[str]],
    ready: Iterable[str],
    wanted: Iterable[str],
) -> list[StepRun]:
    """Runs of layers and of CPU nodes by turns: as many of one kind as can run, then as many of the
    other. `reads` gives what each tensor is computed from, `ready` the tensors that are there from
    the start and `wanted` those that are the network's results; what none of them needs is dropped.
    """
    written: dict[str, Item] = {layer.output: layer for layer in layers}
    written.update({node.value_name: node for node in nodes})
    needed = _needed(wanted, reads)
    there = set(ready)
    waiting = {
        True: [n.value_name for n in nodes if n.value_name in needed],
        False: [layer.output for layer in layers if layer.output in needed],
    }
    runs: list[StepRun] = []
    cpu = False
    while waiting[True] or waiting[False]:
        run: list[Item] = []
        for name in list(waiting[cpu]):
            if all(read in there for read in reads[name]):
                run.append(written[name])
                there.add(name)
        done = {_name(item) for item in run}
        waiting[cpu] = [name for name in waiting[cpu] if name not in done]
        if run:
            runs.append(StepRun(tuple(run)))
        cpu = not cpu
    return runs


def _name(item: Item) -> str:
    return item.output if isinstance(item, Layer) else item.value_name


def _needed(wanted: Iterable[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    needed: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(reads.get(name, ()))
    return needed
