"""Tuning target for the CPU of this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Space
from tilewright.targets.capabilities import (
    Baseline,
    BaselineSchedule,
    Bounds,
    CompilesKernels,
    Costs,
    Estimates,
    HasCosts,
    HasSpecification,
    HasTraits,
    Latency,
    RooflineAlone,
    Verifies,
    offers,
)
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.bounds import bytes_of, least_operations
from tilewright.targets.cpu.compile import Compiled
from tilewright.targets.cpu.compile_pool import shared_pool
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.hidden_features import COLUMNS
from tilewright.targets.cpu.kernels.amx_tiles import TILE
from tilewright.targets.cpu.kernels.int8_dot_product import dot_product
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.network_kernels import NetworkKernels
from tilewright.targets.cpu.runner import Runner, quiet_machine
from tilewright.targets.cpu.spec import DOTS_BFLOAT16, CpuSpec
from tilewright.targets.cpu.timing import Timing
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

CACHED, MEMORY = 1 << 20, 1 << 27
"""Sizes in bytes of two arrays with which the read bandwidth is measured. The first array fits into
the second-level cache of a core. The second array fits into no cache."""
BEYOND = 1 << 24
"""Size in bytes of an array that exceeds the second-level caches but may fit into a shared
third-level cache. It is used like `CACHED` and `MEMORY`."""
COMPILE_SECONDS, MEASURE_SECONDS = 0.47, 0.2
"""Average costs of a config: seconds of one core for compiling it, and seconds for measuring it.
See docs/decisions/measuring-on-a-cpu.md."""


CAPABILITIES = (
    Baseline, Bounds, CompilesKernels, Estimates, HasCosts, HasSpecification, HasTraits, Verifies,
)  # fmt: skip
"""Optional capabilities that `CpuTarget` implements."""


class CpuTarget(NetworkKernels, RooflineAlone):
    """Target for a processor: TensorIR kernels, compiled by LLVM and timed on this machine.

    The class implements `targets.base.Target`. Kernels are compiled in long-lived child processes
    and run in another child process with a time limit. A config that crashes, hangs or corrupts
    memory therefore does not affect the calling process.

    Args:
        spec: the processor, or the part of it to use.
        timing: parameters of timing; default `Timing()`.
    """

    deterministic = False

    def __init__(self, spec: CpuSpec, timing: Timing | None = None) -> None:
        self.spec, self.timing = spec, timing or Timing()
        self.runner = Runner(spec, self.timing)
        self.space = lru_cache(maxsize=64)(self._space)
        self._peak = cache(self.runner.peak)
        self._bandwidth = cache(self.runner.bandwidth)
        self.capabilities = offers(self, *CAPABILITIES)

    @property
    def name(self) -> str:
        """Name of the processor's specification."""
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Hash of everything that measured times depend on, 16 hexadecimal digits.

        The hash covers the specification, the processor's instruction sets, the timing parameters,
        TVM's version, and the source code in this folder.
        """
        about = [self.spec.to_json(), machine.flags(), repr(self.timing), version("apache-tvm")]
        parts = json.dumps(about, sort_keys=True) + _sources()
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return properties of the processor as features for models of several machines.

        The features include the peak (10⁹ operations per second) and the bandwidths (10⁹ bytes per
        second), which are measured once per process and rounded to two significant digits. Cache
        sizes are base-2 logarithms of bytes.
        """
        return {
            "threads": float(self.spec.threads),
            "lanes": float(self.spec.lanes),
            "registers": float(self.spec.registers),
            "log2_l1_bytes": _log2(machine.cache_bytes(1)),
            "log2_l2_bytes": _log2(machine.cache_bytes(2)),
            "log2_l3_bytes": _log2(machine.cache_bytes(3)),
            "peak_gflops": _round_value(self._peak() / 1e9),
            "cache_gbytes_per_second": _round_value(self._bandwidth(CACHED) / 1e9),
            "memory_gbytes_per_second": _round_value(self._bandwidth(MEMORY) / 1e9),
        }

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile configs of a workload.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The compiled libraries and their hidden features. A config that cannot be compiled has a
            failure class and a reason instead.

        Raises:
            CompilerMissing: there is no C compiler.
            CompilerDown: TVM cannot be loaded in a compile process.
        """
        space = self.space(workload)
        batch = [space.describe(config) for config in configs]
        with quiet_machine(alone=False):
            made = shared_pool().compile(workload, self.spec, batch) if batch else []
        return _make_lowered(workload, configs, made)

    def measure(self, lowered: Lowered) -> Measurements:
        """Run and time compiled configs; `targets.cpu.timing` describes the method.

        Args:
            lowered: the compiled configs, from `lower`.

        Returns:
            Statuses and times in seconds, one per config.

        Raises:
            RunnerDown: the process that runs kernels does not start.
            SpecError: the machine has fewer cores than the specification has threads.
        """
        return self.runner.measure(lowered, self.space(lowered.workload))

    # -- capabilities ------------------------------------------------------------------------

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Compile and time the rule schedule, which is chosen without measuring.

        Args:
            workload: the workload.

        Returns:
            The rule schedule with its measurement.
        """
        space = self.space(workload)
        lowered = self.lower(workload, np.array([self.rule(workload)], np.int32))
        return BaselineSchedule("rule", space, lowered, self.measure(lowered))

    def roofline(self, workload: Workload) -> Latency:
        """Return a lower bound of the latency from peak arithmetic and memory bandwidth.

        The bound is the larger of two times:

        - The time of the smallest possible number of operations at the peak rate. The peak is
          measured in float32. For other element types it is multiplied by the number of products
          per instruction and float32 lane: the products per dot product for int8, 2 for bfloat16
          dot products, 16 for bfloat16 tiles, and 32 for int8 tiles.
        - The time to read or write every byte once. The bandwidth is measured on an array of at
          most the workload's size, because data stay in the caches between the calls of a kernel
          during tuning.

        Args:
            workload: the workload.
        """
        size = bytes_of(workload)
        integers = 2 * TILE if self.spec.int8_tiles else dot_product(self.spec).numbers
        narrow = 2 if self.spec.bfloat16 == DOTS_BFLOAT16 else TILE
        faster = {"int8": integers, "bfloat16": narrow}.get(workload.dtype, 1)
        arithmetic = least_operations(workload) / (self._peak() * faster)
        moving = size / self._bandwidth(1 << max(size, 1 << 16).bit_length() - 1)
        return Latency(max(arithmetic, moving))

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """Estimate the latencies of configs and the parts of these latencies, without compiling.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The columns of `targets.cpu.estimates.COLUMNS`, shape (n, columns). The estimates use
            the measured peak and bandwidths.
        """
        said = self.hardware_features()
        core = CpuMachine.from_rates(
            self.spec,
            said["peak_gflops"] * 1e9,
            said["cache_gbytes_per_second"] * 1e9,
            _round_value(self._bandwidth(BEYOND) / 1e9) * 1e9,
            (machine.cache_bytes(1), machine.cache_bytes(2)),
        )
        return estimate(workload, core, self.space(workload), configs)

    def costs(self, workload: Workload) -> Costs:
        """Return the seconds of wall-clock time that it takes to compile and to measure a config.

        Configs are compiled in parallel on all cores. A measurement uses the whole machine.

        Args:
            workload: the workload.
        """
        return Costs(COMPILE_SECONDS / shared_pool().workers, MEASURE_SECONDS)

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Run compiled configs in the child process and compare their outputs with numpy's results.

        Args:
            lowered: the compiled configs, from `lower`.
            seed: seed of the random inputs.

        Returns:
            Number of wrong output values per config, int64 array of shape (n,). A value is wrong if
            it differs from numpy's by more than `Timing.tolerance` allows. The number is -1 if the
            kernel did not compile or run.
        """
        return self.runner.verify(lowered, self.space(lowered.workload), seed)

    def with_run_limit(self, seconds: float) -> CpuTarget:
        """Return a copy of the target with a different time limit for running a config.

        Args:
            seconds: the time limit, in seconds.
        """
        return CpuTarget(self.spec, replace(self.timing, hang=seconds))

    def in_float32(self) -> CpuTarget | None:
        """Return a float32 version of the target if `precision=auto` chose bfloat16, else None."""
        if self.spec.precision != "auto" or not self.spec.bfloat16:
            return None
        return CpuTarget(replace(self.spec, bfloat16=""), self.timing)

    @property
    def specification(self) -> dict[str, Json]:
        """The processor as JSON, as `CpuSpec.to_json` returns it."""
        return self.spec.to_json()

    def _space(self, workload: Workload) -> Space:
        return Space("kernels", kernel_for(workload, self.spec).knobs(workload, self.spec))


def _make_lowered(workload: Workload, configs: Configs, made: Sequence[Compiled]) -> Lowered:
    hidden = np.full((len(made), len(COLUMNS)), np.nan)
    for row, item in enumerate(made):
        if not item.failure:
            hidden[row] = item.hidden
    libraries = [np.frombuffer(element.library, np.uint8) for element in made]
    return Lowered(
        workload,
        configs,
        np.array([element.failure for element in made], dtype=object),
        np.array([element.reason for element in made], dtype=object),
        Features(hidden, COLUMNS),
        {"library": Ragged.from_rows(libraries)} if made else {},
    )


@cache
def _sources() -> str:
    """Return a hash of the source code in this folder."""
    content = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        content.update(file.read_bytes())
    return content.hexdigest()


def _log2(size: int) -> float:
    return float(np.log2(max(size, 1)))


def _round_value(value: float) -> float:
    return float(f"{value:.2g}")
