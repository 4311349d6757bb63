"""States the problem: which machine serves some networks best, all of them on one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright import networks
from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.networks.epilogues import EpilogueMode
from tilewright.networks.errors import NothingToOffload
from tilewright.networks.network import Network
from tilewright.networks.offloading.accelerator import MAX_WASTE, Accelerator
from tilewright.networks.offloading.report import nothing_offloaded
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Bounds, bound_of, capability
from tilewright.targets.workload import Workload

SAMPLED = 1 << 13
"""Schedules that decide whether a pool is done with the convolution before it. There are many
machines to decide it for: fewer than tuning one asks about."""


@dataclass(frozen=True)
class CodesignLayer:
    """A workload of a design: how often an inference of each network runs it, shape (networks,),
    and the operators it stands for, as (network, name)."""

    workload: Workload
    counts: tuple[int, ...]
    names: tuple[tuple[str, str], ...]

    @property
    def calls(self) -> int:
        """How often an inference of each network runs the layer, all networks together."""
        return sum(self.counts)


@dataclass(frozen=True)
class Design:
    """A machine, and the workloads that the networks give it.

    `cpu_seconds` estimates what each network leaves to the CPU. `measured_on` lowers and measures
    batches: the machine's target itself, or a stand-in for it on a cluster."""

    row: int
    target: Target
    area: float
    layers: tuple[CodesignLayer, ...]
    cpu_seconds: tuple[float, ...]
    measured_on: Target

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """Lower bound of each layer in seconds per call, shape (layers,)."""
        found = [bound_of(self.target, layer.workload) for layer in self.layers]
        return np.array([0.0 if bound is None else bound.seconds for bound in found])

    @cached_property
    def rooflines(self) -> NDArray[np.float64]:
        """The larger of arithmetic at its peak and bytes over the bus, in seconds a call, shape
        (layers,); 0 where the machine does not say."""
        knows = capability(self.target, Bounds)
        if knows is None:
            return np.zeros(len(self.layers))
        return np.array([knows.roofline(layer.workload).seconds for layer in self.layers])

    def seconds(self, layers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds of each network, shape (networks,), from seconds of a call of each layer,
        shape (layers,)."""
        counts = np.array([layer.counts for layer in self.layers])
        # A layer that no schedule runs takes for ever, but in networks that do not have it.
        each = np.where(counts > 0, layers[:, None], 0.0) * counts
        return np.asarray(each.sum(axis=0) + np.array(self.cpu_seconds))

    @property
    def name(self) -> str:
        """The name of the machine."""
        return self.target.name


class CodesignProblem:
    """Networks by name, on machines of `hardware`. What is minimised beside the area is the sum of
    the networks' latencies: one inference of each. `measured_on` returns what lowers and measures
    the batches of a machine, such as its stand-in on a cluster."""

    def __init__(
        self,
        networks: Mapping[str, Network],
        hardware: HardwareSpace,
        epilogue: EpilogueMode = "full",
        max_waste: float = MAX_WASTE,
        measured_on: Callable[[Target], Target] = lambda machine: machine,
    ) -> None:
        self.networks, self.hardware = dict(networks), hardware
        self._epilogue, self._max_waste = epilogue, max_waste
        self._measured_on = measured_on
        self._designs: dict[int, Design] = {}

    def check(self) -> None:
        """Raises `NothingToOffload` if the base machine runs nothing of a network,
        `ImpossibleHardware` if there are no machines, and as `Network.report_on`."""
        here = Accelerator.of(self.hardware.base, self._epilogue, self._max_waste)
        for network in self.networks.values():
            if not network.workloads_on(here):
                raise NothingToOffload(nothing_offloaded(network.report_on(here)))
        _ = self.hardware.points

    def design(self, row: int) -> Design:
        """Return the networks as workloads of a machine, given by its row of `hardware.points`."""
        if row not in self._designs:
            self._designs[row] = self._made(row)
        return self._designs[row]

    def _made(self, row: int) -> Design:
        target = self.hardware.target(row)
        here = Accelerator.of(target, self._epilogue, self._max_waste, SAMPLED)
        found: dict[Workload, tuple[list[int], list[tuple[str, str]]]] = {}
        cpu = []
        for place, (name, network) in enumerate(self.networks.items()):
            workloads, report = network.surveyed_on(here)
            cpu.append(report.cpu_seconds)
            for workload, count, names in workloads:
                counts, known = found.setdefault(workload, ([0] * len(self.networks), []))
                counts[place] += count
                known += [(name, each) for each in names]
        layers = [
            CodesignLayer(workload, tuple(counts), tuple(names))
            for workload, (counts, names) in found.items()
        ]
        return Design(
            row, target, float(self.hardware.areas[row]), tuple(layers), tuple(cpu),
            self._measured_on(target),
        )  # fmt: skip


def least_seconds(design: Design) -> float:
    """Return a lower bound in seconds of all networks together; infinite if a layer cannot run."""
    try:
        return float(design.seconds(design.bounds).sum())
    except WorkloadError:
        return float("inf")


def read_networks(sources: Sequence[str]) -> dict[str, Network]:
    """Read built-in networks or files, by name.

    Raises:
        ModelFileError: a file cannot be read.
        UnknownName: a network is neither built in nor a file.
        TilewrightError: two networks have the same name.
    """
    found: dict[str, Network] = {}
    for source in sources:
        network = networks.load(source, None, sandbox=True)
        _ = network.examined  # a file that cannot be read is refused here
        if network.name in found:
            raise TilewrightError(f"two networks are called {network.name}; name each once")
        found[network.name] = network
    return found
