"""Loads an artifact, runs it, and verifies it against the source model and integer arithmetic."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text
from tilewright.core.process_info import usable_cores
from tilewright.core.thread_pools import with_living_pool
from tilewright.networks.artifact.accuracy import (
    CHECK_FILE,
    NetworkAccuracy,
    accuracy,
    unpack_check,
)
from tilewright.networks.artifact.library import KIND as LIBRARY_KIND
from tilewright.networks.artifact.library import LIBRARY, CompiledArtifact, open_library
from tilewright.networks.artifact.manifest import read_files, read_manifest, reason_for_doubt
from tilewright.networks.artifact.pipeline import (
    CpuTimes,
    PipelinePlan,
    border_seconds,
    images_in_flight_of,
    plan_pipeline,
    run_images,
)
from tilewright.networks.artifact.regions import ArtifactRegions
from tilewright.networks.artifact.run import (
    Array,
    Island,
    LayerTime,
    Order,
    Profile,
    RunCpu,
    check_arrays,
    check_order,
    infer,
    layer_times,
)
from tilewright.networks.artifact.sized_library import KIND as SIZED_KIND
from tilewright.networks.artifact.sized_library import SizedLibrary
from tilewright.networks.compiled.thread_pool import chosen_threads
from tilewright.networks.errors import BUILD_AGAIN, ArtifactError
from tilewright.networks.offloading.cpu_costs import SLOWDOWN
from tilewright.targets.artifact_types import BuiltProgram, LayerCheck, StreamTimes
from tilewright.targets.capabilities import Builds, capability
from tilewright.targets.layer import Scale, Value
from tilewright.targets.registry import check_code, rebuild

CPU_LIBRARY = "cpu/islands.so"
DTYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
    "float64", "bool",
)  # fmt: skip
"""Element types that tensors of an artifact may have."""
# Limits on the numbers in a manifest, which may be damaged or come from another person.
MOST_AMOUNT = 1e6
MOST_AXES, MOST_ELEMENTS, MOST_COUNT = 32, 1 << 40, 1 << 60
TINIEST, LARGEST = 2.0**-126, 2.0**127
"""Smallest and largest quantisation scale that is accepted. In this range, scales are normal
float32 numbers."""


class Artifact:
    """A network that was built for an accelerator, loaded into memory.

    An inference alternates between segments (sequences of layers that the accelerator runs) and
    islands (operators that the CPU runs in between).

    Args:
        manifest: the manifest of the artifact.
        program: the accelerator's programs and memory.
        library: shared library with the operators of the islands; None if there are none.
        check: the serialised samples for `accuracy`; None if there are none.
        regions: regions (groups of operators) that onnxruntime runs.
        threads: number of CPU threads; None for all usable cores.

    Attributes:
        manifest: the manifest of the artifact.
        name: name of the network.
        target: name of the target.
        program: the accelerator's programs and memory.
        rows: the layers with their cycles.
        clock_hz: clock frequency of the accelerator in Hz.
        host_slowdown: factor by which the CPU beside the accelerator is slower than the CPU on
            which `networks.offloading.cpu_costs` was measured.
        inputs: the inputs of the network.
        outputs: the outputs of the network.
    """

    def __init__(
        self, manifest: Mapping[str, Json], program: BuiltProgram, library: bytes | None,
        check: bytes | None = None, regions: ArtifactRegions | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.manifest = manifest
        self._regions = ArtifactRegions([], {}) if regions is None else regions
        self._threads = chosen_threads(threads, usable_cores())
        self.name, self.target = as_text(manifest["network"]), as_text(manifest["target"])
        self.program = program
        self._library = library
        self._check = check
        self._order = _order(manifest)
        check_order(self._order, program.ports)
        self.rows = tuple(_row(as_object(row)) for row in as_list(manifest["layers"]))
        self.clock_hz = _clock(manifest)
        self.host_slowdown = _amount(manifest.get("host_slowdown", SLOWDOWN))
        self._islands = _island_seconds(manifest)
        self.inputs, self.outputs = (
            _values(manifest[f"network_{key}"], least=-1) if f"network_{key}" in manifest else own
            for key, own in (("inputs", self._order.inputs), ("outputs", self._order.outputs))
        )

    @cached_property
    def times(self) -> Sequence[StreamTimes]:
        """Cycles of each segment and of its layers, from the cycle simulator."""
        return self.program.times()

    @with_living_pool
    def run(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Profile]:
        """Run one inference and profile it. The outputs are bit-exact with the hardware.

        Args:
            inputs: one array per input by name, with the shape given in the artifact's `inputs`.

        Returns:
            One array per output by name, with the shape given in the artifact's `outputs`, and the
            profile of the inference.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        made, seconds = infer(self._order, self.program, self._cpu, self._read(inputs))
        return self._finish_outputs(inputs, made), self.profile(seconds)

    @with_living_pool
    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one inference and return only the outputs, without a profile.

        Args:
            inputs: one array per input by name, with the shape given in the artifact's `inputs`.

        Returns:
            One array per output by name, with the shape given in the artifact's `outputs`.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        return self._finish_outputs(inputs, self.infer_layers(self._read(inputs)))

    def infer_layers(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network up to its last layer, without the onnxruntime regions after it.

        Args:
            inputs: one array per input of this part, by name.

        Returns:
            One array per output of this part, by name. These include the tensors that the regions
            after it read.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        return infer(self._order, self.program, self._cpu, inputs)[0]

    def _read(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the inputs of the part up to the last layer.

        Inputs that only the onnxruntime regions after it read are left out.

        Args:
            inputs: inputs of the network by name.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        if self.inputs is self._order.inputs:
            return inputs
        arrays = check_arrays(self.inputs, inputs)
        return {value.name: arrays[value.name] for value in self._order.inputs}

    def _finish_outputs(
        self, inputs: Mapping[str, Array], made: dict[str, Array]
    ) -> dict[str, Array]:
        """Run the onnxruntime regions after the last layer, and return the network's outputs.

        Args:
            inputs: inputs of the network by name.
            made: outputs of the part up to the last layer, by name.

        Returns:
            The outputs of the network by name.
        """
        if self.outputs is self._order.outputs:
            return made
        self._regions.open(self._threads)
        known = {**check_arrays(self.inputs, inputs), **made}
        known |= self._regions.run_last(known)
        return {value.name: known[value.name] for value in self.outputs}

    @with_living_pool
    def plan_images(self, image: Mapping[str, Array]) -> PipelinePlan:
        """Plan how the CPU and the accelerator overlap their work on successive images.

        Args:
            image: arrays as for `run`. If the artifact contains no estimates of the time on the
                CPU, one inference with these arrays measures it.

        Returns:
            The plan.

        Raises:
            InputError: an input is missing or has another shape or type.
            ArtifactError: programs of the target have memory for one image only.
        """
        program = images_in_flight_of(self.program, self.target)
        slowdown = self.host_slowdown
        estimated = [island for island in self._islands if island is not None]
        known = len(estimated) == len(self._islands)
        if not known:
            _, spent = infer(self._order, self.program, self._cpu, self._read(image))
            estimated = [slowdown * spent[island.name] for island in self._order.islands]
        border = [
            (border_seconds(before, slowdown), border_seconds(after, slowdown))
            for before, after in program.border_work()
        ]
        cpu = CpuTimes(estimated, border, "estimated" if known else "measured")
        return plan_pipeline(
            self._order, program, [time.total for time in self.times], self.clock_hz, cpu
        )

    @with_living_pool
    def run_images(
        self, images: Sequence[Mapping[str, Array]], planned: PipelinePlan
    ) -> list[dict[str, Array]]:
        """Run several images with overlapping work, on one accelerator.

        While the CPU works on one image, the accelerator runs a segment (a sequence of layers) of
        another image, as planned.

        Args:
            images: arrays as for `run`, one mapping per image.
            planned: the plan from `plan_images`.

        Returns:
            The outputs of each image, as from `infer`.

        Raises:
            InputError: an input is missing or has another shape or type.
            ArtifactError: programs of the target have memory for one image only.
        """
        program = images_in_flight_of(self.program, self.target)
        in_flight = planned.taken.steady.in_flight
        read = list(map(self._read, images))
        made = run_images(self._order, program, self._cpu, read, planned.stages, in_flight)
        return list(map(self._finish_outputs, images, made))

    def profile(self, cpu_seconds: Mapping[str, float] | None = None) -> Profile:
        """Return the simulated times and the energy of the accelerator. This runs no inference.

        Args:
            cpu_seconds: measured seconds of each island (a group of operators that the CPU runs) on
                this machine's CPU, by name of the island.

        Returns:
            The profile.
        """
        spent = [stream.microjoules for stream in self.times if stream.microjoules is not None]
        return Profile(
            layer_times(self.rows, self.times), tuple(stream.total for stream in self.times),
            self.clock_hz, cpu_seconds or {}, sum(spent) if spent else None,
        )  # fmt: skip

    @property
    def zero_points(self) -> dict[str, int]:
        """Zero point of each int8 or uint8 output with a scale, in the output's own type."""
        outputs = [value for value in self._order.outputs if value.dtype in ("int8", "uint8")]
        return {
            value.name: value.scale.zero_point + (128 if value.dtype == "uint8" else 0)
            for value in outputs
            if value.scale is not None
        }

    def accuracy(self) -> NetworkAccuracy | None:
        """Compare the network with its source model, on the stored samples.

        Returns:
            The errors, or None if the artifact has no samples.

        Raises:
            ArtifactError: the samples are damaged.
        """
        if self._check is None:
            return None
        order = self._order
        names = [[value.name for value in values] for values in (order.inputs, order.outputs)]
        try:
            tolerance = as_number(as_object(self.manifest["accuracy"])["tolerance"])
            check = unpack_check(self._check, *names)
            return accuracy(check, self.infer_layers, tolerance, self.zero_points)
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"{CHECK_FILE} was changed after the build ({error}); {BUILD_AGAIN}"
            ) from None

    def verify(self, seed: int = 0) -> Iterator[LayerCheck]:
        """Compare the program of every layer with plain integer arithmetic.

        The weights are those in the artifact, and the inputs are random.

        Args:
            seed: seed of the random inputs.

        Yields:
            The result of the comparison, layer by layer.
        """
        return self.program.verify(seed)

    @cached_property
    def _cpu(self) -> RunCpu:
        if self._library is None:
            return _no_cpu
        from tilewright.networks.relax.cpu_subgraphs import Library

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(CPU_LIBRARY).name
            path.write_bytes(self._library)
            return Library.load(path, self._regions.open(self._threads))


AnyArtifact = Artifact | CompiledArtifact | SizedLibrary


def load(folder: Path, *, allow_code: bool = False, threads: int | None = None) -> AnyArtifact:
    """Read an artifact, and compare every file with its digest.

    TVM and ONNX are imported only when the CPU runs operators. An artifact with machine code is
    loaded only if the user built it in this workspace, which its signature proves (see
    `networks.artifact.manifest`), or if `allow_code` is set.

    Args:
        folder: folder of the artifact.
        allow_code: load machine code even if another person built it. The code runs with the user's
            rights.
        threads: number of CPU threads. By default, a library uses the number that it was built for,
            and an accelerator's artifact uses all usable cores.

    Returns:
        The loaded artifact.

    Raises:
        ArtifactError: the artifact is damaged, was built by another version, or contains machine
            code that another person built.
    """
    manifest = read_manifest(folder)
    try:
        code = code_of(manifest)
        if code and not allow_code and (doubt := reason_for_doubt(manifest, folder)):
            raise ArtifactError(
                f"{folder} holds machine code, which would run with your user's rights: "
                f"{'; '.join(code)}; {doubt}; if you trust the person who built it, allow it "
                "with --allow-code (allow_code=True)"
            )
        spec = as_object(manifest["specification"])
        kind, keys = as_text(spec["kind"]), as_object(spec["keys"])
        # An artifact that only onnxruntime runs has no machine code and works on every machine.
        if manifest.get("kind") in (SIZED_KIND, LIBRARY_KIND) and code:
            check_code(kind, keys)
        if manifest.get("kind") == SIZED_KIND:
            return SizedLibrary(manifest, folder, threads)
        if manifest.get("kind") == LIBRARY_KIND:
            return open_library(folder, manifest, threads)
        target = rebuild(kind, keys, "")
        files = read_files(folder, manifest)
        builds = capability(target, Builds)
        if builds is None:
            raise ArtifactError(
                f"{folder} was built for {target.name}, whose programs cannot be executed here; "
                "build it for a VTA or a Gemmini"
            )
        layers = [as_object(row) for row in as_list(manifest["layers"])]
        return Artifact(
            manifest, builds.open(files, layers), files.get(CPU_LIBRARY), files.get(CHECK_FILE),
            ArtifactRegions(manifest.get("regions", []), files), threads,
        )  # fmt: skip
    except ArtifactError:
        raise
    except TilewrightError as error:
        raise ArtifactError(f"{folder}: {error}") from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ArtifactError(
            f"{folder} does not have the content that this version builds ({error}); {BUILD_AGAIN}"
        ) from None


def code_of(manifest: Mapping[str, Json]) -> list[str]:
    """List the files of an artifact that contain machine code, with the operators in each file.

    Args:
        manifest: the manifest of the artifact.

    Returns:
        One text per file; empty if there is no machine code.

    Raises:
        KeyError: the manifest lacks an entry.
        ValueError: an entry of the manifest is invalid.
    """
    files = as_object(manifest["files"])
    islands = [as_object(item) for item in as_list(manifest.get("cpu", []))]
    operators = [
        as_object(operator) for island in islands for operator in as_list(island["operators"])
    ]
    of_islands = ", ".join(dict.fromkeys(as_text(operator["operator"]) for operator in operators))
    known = {
        CPU_LIBRARY: of_islands or "changes of layout",
        LIBRARY: "the compiled part" if manifest.get("regions") else "the whole network",
    }
    return [
        f"{name} ({known[last]})"
        for name in files
        if (last := name if name in known else name.rpartition("/")[2]) in known
    ]


def _no_cpu(name: str, arrays: Sequence[Array]) -> Sequence[Array]:
    raise ArtifactError(
        f"the artifact has no {CPU_LIBRARY}, which should contain {name}; {BUILD_AGAIN}"
    )


def _order(manifest: Mapping[str, Json]) -> Order:
    steps = [as_object(step) for step in as_list(manifest["steps"])]
    loads: dict[int, tuple[str, ...]] = {
        as_int(step["number"]): tuple(map(as_text, as_list(step["loads"])))
        for step in steps
        if step["kind"] == "segment"
    }
    islands = [as_object(island) for island in as_list(manifest["cpu"])]
    return Order(
        steps=tuple((as_text(step["kind"]), as_int(step["number"])) for step in steps),
        loads=[loads[number] for number in sorted(loads)],
        islands=tuple(
            Island(as_text(i["name"]), _texts(i["inputs"]), _texts(i["outputs"])) for i in islands
        ),
        inputs=_values(manifest["inputs"]),
        outputs=_values(manifest["outputs"]),
        values={
            name: _value(name, as_object(value))
            for name, value in as_object(manifest["values"]).items()
        },
        quantised={k: as_text(v) for k, v in as_object(manifest["quantised"]).items()},
        results={k: as_text(v) for k, v in as_object(manifest["results"]).items()},
    )


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(map(as_text, as_list(value)))


def _values(rows: Json, least: int = 0) -> tuple[Value, ...]:
    """Return the tensors that rows of the manifest describe.

    Args:
        rows: rows of the manifest, with name, shape and element type.
        least: smallest accepted size of an axis; −1 accepts axes whose size is known only at run
            time.
    """
    result = map(as_object, as_list(rows))
    return tuple(_value(as_text(row["name"]), row, least) for row in result)


def _value(name: str, row: Mapping[str, Json], least: int = 0) -> Value:
    shape, dtype = tuple(map(as_int, as_list(row["shape"]))), as_text(row["dtype"])
    if len(shape) > MOST_AXES or min(shape, default=0) < least or prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"'{name:.60}' has an invalid shape")
    if dtype not in DTYPES:
        raise ValueError(f"'{name:.60}' has the unsupported type {dtype:.20}")
    step, zero = row["scale"], row["zero_point"]
    if step is None:
        return Value(name, shape, dtype)
    scale = Scale(as_number(step), as_int(zero))
    if not (TINIEST <= scale.step <= LARGEST and -128 <= scale.zero_point <= 127):
        raise ValueError(f"'{name:.60}' has an invalid scale")
    return Value(name, shape, dtype, scale)


def _row(row: Mapping[str, Json]) -> LayerTime:
    return LayerTime(
        as_text(row["name"]), _texts(row["names"]), as_text(row["operator"]), _count(row["macs"]),
        _count(row["stream_cycles"]), _count(row["cycles"]), _count(row["roofline_cycles"]),
        _count(row["segment"]),
    )  # fmt: skip


def _count(value: Json) -> int:
    count = as_int(value)
    if not 0 <= count <= MOST_COUNT:
        raise ValueError("a count is negative or too large")
    return count


def _island_seconds(manifest: Mapping[str, Json]) -> list[float | None]:
    """Return the estimated seconds of each island, a group of operators that the CPU runs.

    Args:
        manifest: the manifest of the artifact.

    Returns:
        One estimate per island, in the order of the manifest; None for an island without an
        estimate.
    """
    estimates = [
        as_object(island).get("estimated_seconds") for island in as_list(manifest.get("cpu", []))
    ]
    return [None if island is None else _amount(island) for island in estimates]


def _amount(value: Json) -> float:
    amount = as_number(value)
    if not 0 <= amount <= MOST_AMOUNT:
        raise ValueError("a time or a time factor is negative or too large")
    return amount


def _clock(manifest: Mapping[str, Json]) -> float:
    keys = as_object(as_object(manifest["specification"])["keys"])
    return as_number(keys["clock_mhz"]) * 1e6
