"""The co-design problem: the machines to choose from, and the layers that networks run on them.

A machine is an accelerator with given block sizes, buffer sizes and other hardware parameters. The
search looks for machines with a small area and a low cost. The cost is the latency, the energy or
their product, for one inference of each network.
"""

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
"""Number of random schedules from which a search decides whether a pooling layer is fused with the
convolution before it. It is smaller than for tuning a single machine, because a search makes this
decision for many machines."""


@dataclass(frozen=True)
class CodesignLayer:
    """A workload that the networks run on a machine.

    Attributes:
        workload: the workload.
        counts: number of calls in one inference of each network, in the order of the networks.
        names: the operators that run this workload, as pairs of the network's and the operator's
            name.
    """

    workload: Workload
    counts: tuple[int, ...]
    names: tuple[tuple[str, str], ...]

    @property
    def calls(self) -> int:
        """Number of calls in one inference of each network, summed over the networks."""
        return sum(self.counts)


@dataclass(frozen=True)
class Design:
    """A machine, and the workloads that the networks run on it.

    Attributes:
        row: row of the machine in `HardwareSpace.points`.
        target: the machine.
        area: area relative to the stock machine.
        layers: the workloads.
        cpu_seconds: estimated seconds per inference that operators on the CPU take, one entry per
            network.
        measured_on: target that lowers and measures batches: `target` itself, or its counterpart
            that uses a cluster.
    """

    row: int
    target: Target
    area: float
    layers: tuple[CodesignLayer, ...]
    cpu_seconds: tuple[float, ...]
    measured_on: Target

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """Lower bound of each layer's latency in seconds per call, float array, shape (layers,)."""
        limits = [bound_of(self.target, layer.workload) for layer in self.layers]
        return np.array([0.0 if bound is None else bound.seconds for bound in limits])

    @cached_property
    def rooflines(self) -> NDArray[np.float64]:
        """Roofline of each layer in seconds per call, float array of shape (layers,).

        The roofline is the larger of the computing time at peak throughput and the transfer time
        over the bus. It is 0 if the machine does not provide it.
        """
        knows = capability(self.target, Bounds)
        if knows is None:
            return np.zeros(len(self.layers))
        return np.array([knows.roofline(layer.workload).seconds for layer in self.layers])

    def seconds(self, layers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the latency of each network on the machine, given the latencies of the layers.

        Args:
            layers: seconds per call of each layer, float array of shape (layers,).

        Returns:
            Seconds per inference, including operators on the CPU, float array of shape (networks,).
        """
        counts = np.array([layer.counts for layer in self.layers])
        # A layer without a valid schedule has infinite latency. 0 · inf would be NaN for networks
        # that do not have the layer.
        layer_seconds = np.where(counts > 0, layers[:, None], 0.0) * counts
        return np.asarray(layer_seconds.sum(axis=0) + np.array(self.cpu_seconds))

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.target.name


class CodesignProblem:
    """Co-design problem: find machines, and schedules on them, that run several networks well.

    A network's workloads differ between machines, so they are determined for each machine when it
    is first needed.

    Args:
        networks: the networks by name.
        hardware: the machines to choose from.
        epilogue: mode that determines which post-operations are fused into the layers.
        max_waste: a layer runs on the accelerator only if at most this fraction of its
            multiplications are with padding zeros.
        measured_on: function that takes a machine and returns the target that lowers and measures
            its batches, for example the machine's counterpart that uses a cluster.
    """

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
        """Check that the base machine runs layers of each network and that a machine can be built.

        It is not checked that any machine can run all layers.

        Raises:
            NothingToOffload: the base machine cannot run any layer of a network.
            ImpossibleHardware: no machine satisfies the bounds and the budget.
            TilewrightError: a network cannot be read; see `Network.report_on`.
        """
        here = Accelerator.for_target(self.hardware.base, self._epilogue, self._max_waste)
        for network in self.networks.values():
            if not network.workloads_on(here):
                raise NothingToOffload(nothing_offloaded(network.report_on(here)))
        _ = self.hardware.points

    def design(self, row: int) -> Design:
        """Return a machine with the workloads of the networks. Machines are cached.

        Args:
            row: row of the machine in `hardware.points`.
        """
        if row not in self._designs:
            self._designs[row] = self._make_design(row)
        return self._designs[row]

    def _make_design(self, row: int) -> Design:
        target = self.hardware.target(row)
        here = Accelerator.for_target(target, self._epilogue, self._max_waste, SAMPLED)
        result: dict[Workload, tuple[list[int], list[tuple[str, str]]]] = {}
        cpu = []
        for place, (name, network) in enumerate(self.networks.items()):
            workloads, report = network.surveyed_on(here)
            cpu.append(report.cpu_seconds)
            for workload, count, names in workloads:
                counts, known = result.setdefault(workload, ([0] * len(self.networks), []))
                counts[place] += count
                known += [(name, item) for item in names]
        layers = [
            CodesignLayer(workload, tuple(counts), tuple(names))
            for workload, (counts, names) in result.items()
        ]
        return Design(
            row, target, float(self.hardware.areas[row]), tuple(layers), tuple(cpu),
            self._measured_on(target),
        )  # fmt: skip


def least_seconds(design: Design) -> float:
    """Return a lower bound on the seconds of one inference of each network, summed over networks.

    Args:
        design: the machine.

    Returns:
        The lower bound; infinite if the machine cannot run a layer.
    """
    try:
        return float(design.seconds(design.bounds).sum())
    except WorkloadError:
        return float("inf")


def read_networks(sources: Sequence[str]) -> dict[str, Network]:
    """Load networks from the zoo or from files.

    Args:
        sources: names of networks of the zoo, or paths of model files.

    Returns:
        The networks by name.

    Raises:
        ModelFileError: a file cannot be read.
        UnknownName: a network is neither in the zoo nor a file.
        TilewrightError: two networks have the same name.
    """
    networks_by_name: dict[str, Network] = {}
    for source in sources:
        network = networks.load(source, None, sandbox=True)
        _ = network.examined  # raises if the file cannot be read
        if network.name in networks_by_name:
            raise TilewrightError(f"two networks are called {network.name}; give each network once")
        networks_by_name[network.name] = network
    return networks_by_name
