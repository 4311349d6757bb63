"""Writes and reads the artifact of a network that is compiled into one library for TVM.

The artifact's folder contains these files:

- `manifest.json`: description of the network, kernel and schedule of each layer, and the digests
  of the files.
- `network.so`: the compiled network, for TVM's virtual machine.
- `weights.bin`: large weights, which are memory-mapped; only if there are any.
- `region0.onnx`, …: one file per region (a group of operators that onnxruntime runs).
- `check.npz`: sample inputs of several kinds, and the outputs of the source model for them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
)
from tilewright.core.process_info import usable_cores
from tilewright.core.thread_pools import PerProcess, with_living_pool
from tilewright.networks.artifact.library_check import (
    decisive_samples,
    pack_samples,
    samples_of,
    to_float16,
    unchecked_outputs,
    unpack_samples,
    worst_output,
)
from tilewright.networks.artifact.library_profile import CallTime, LibraryProfile, profile_of
from tilewright.networks.artifact.manifest import map_file, read_files, specification
from tilewright.networks.artifact.regions import PREFIX, ArtifactRegions, write_regions
from tilewright.networks.artifact.run import CONTAINERS, Array, ExactInputs, check_arrays
from tilewright.networks.compiled.thread_pool import chosen_threads, use_threads
from tilewright.networks.compiled.weights_file import WEIGHTS, pack_weights, unpack_weights
from tilewright.networks.errors import BUILD_AGAIN, ArtifactError, InputError
from tilewright.networks.sample_values import TEXT, NetworkSample
from tilewright.networks.tolerances import OF_FLOAT32, OF_STORED
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import CompilesKernels, capability
from tilewright.targets.layer import Value
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import Workload, parse_workload

if TYPE_CHECKING:
    from tilewright.networks.compiled.attention import JoinedAttention
    from tilewright.networks.compiled.layers import KernelLayer
    from tilewright.networks.compiled.loaded_library import LoadedLibrary, Moved
    from tilewright.networks.compiled.operands_in_place import MovedAxes
    from tilewright.networks.imported_model import Whole
    from tilewright.networks.partition.region_models import LastRegions


KIND = "library"
LIBRARY, CHECK = "network.so", "check.npz"
LIBRARY_BYTES = 1 << 31
"""Maximum total size in bytes of the files of an artifact with a compiled library. Such an artifact
stores its weights in float32."""
TIMED, PROFILED = 3, 15
"""Maximum number of inferences that are timed as a whole, and maximum number of inferences in which
each layer is timed."""
TIMED_SECONDS = 0.5
"""Maximum total time in seconds of the timed inferences. At least one inference is timed, even if
it takes longer."""


@dataclass(frozen=True)
class KernelError:
    """Error of a layer's kernel compared with the reference.

    Attributes:
        layer: index of the layer.
        error: largest difference, relative to the largest value.
        bound: largest relative error that rounding can cause.
    """

    layer: int
    error: float
    bound: float = OF_FLOAT32

    @property
    def is_wrong(self) -> bool:
        """True if the error is larger than rounding can cause."""
        return not self.error <= self.bound


@dataclass(frozen=True, eq=False)
class CompiledFiles:
    """The files of an artifact in memory.

    Attributes:
        files: content of each file, by name.
        manifest: the manifest, without the digests of the files.
        samples: the samples that `check.npz` contains.
    """

    files: Mapping[str, bytes]
    manifest: Mapping[str, Json]
    samples: Sequence[NetworkSample] = ()


def compile_files(
    whole: Whole, layers: Sequence[KernelLayer], picks: Mapping[Workload, Pick], target: Target,
    target_kind: str, *, name: str, total_macs: int, tolerance: float = OF_FLOAT32,
    last: LastRegions | None = None, ignore_nan: bool = False,
) -> CompiledFiles:  # fmt: skip
    """Compile a network into a library, and compare it with its source model.

    Args:
        whole: the compiled part of the network.
        layers: the layers with the workloads of their kernels.
        picks: one schedule per workload.
        target: the target.
        target_kind: type of the target, for example "cpu", from which `load` rebuilds the target.
        name: name of the network.
        total_macs: multiply-accumulates of the whole network.
        tolerance: largest accepted error of an output, relative to its largest value.
        last: regions (groups of operators) that onnxruntime runs after the compiled part.
        ignore_nan: allow code that does not propagate NaN values.

    Returns:
        The files of the artifact.

    Raises:
        ArtifactError: the target does not compile kernels, a kernel is wrong on random tensors, or
            the weights are too large.
        InaccurateError: an output differs from that of the source model by more than `tolerance`.
        WorkloadError: a schedule does not apply to its workload.
        UncompilableError: TVM cannot compile the rest of the network.
        ImportFailedError: no linker was found.
    """
    from tilewright.networks.compiled.attention import JoinedAttention
    from tilewright.networks.compiled.kernel_calls import rewrite_calls
    from tilewright.networks.compiled.library import compiled_library

    compiles = compiles_kernels(target)
    kernels = {workload: compiles.kernel(workload, pick.config) for workload, pick in picks.items()}
    made = rewrite_calls(whole.flat, layers, kernels, compiles.registers)
    attention = JoinedAttention(made, compiles)
    library, weights = compiled_library(
        made.module,
        compiles.code_target(),
        compiles.code_pipeline(),
        whole.flat,
        attention,
        ignore_nan=ignore_nan,
    )
    samples = samples_of(last or whole)
    rows = [
        _row(layer, function, picks[layer.workload], target)
        | ({"moved": [_moved_json(*item) for item in moved]} if moved else {})
        | ({"bfloat16": [list(item) for item in stored]} if stored else {})
        | ({"frames": True} if frames else {})
        | _attention(number, attention)
        for number, (layer, function, moved, stored, frames) in enumerate(
            zip(made.layers, made.called, made.moved, made.bfloat16, made.frames, strict=True)
        )
    ]
    files = {LIBRARY: library}
    if weights:
        files[WEIGHTS] = pack_weights(weights)
    if len(files.get(WEIGHTS, b"")) > LIBRARY_BYTES:
        raise ArtifactError(
            f"the packed weights of {name} take more than {LIBRARY_BYTES >> 30} GiB, the "
            "limit for an artifact; build a smaller model"
        )
    kernels_macs = sum(layer.workload.macs for layer in made.layers)
    manifest = {
        **_describe_source(last or whole, samples[0], target, target_kind, name, tolerance),
        "macs": {"total": total_macs, "kernels": kernels_macs},
        "layers": rows,
        "reads": list(whole.inputs),
        "gives": list(whole.outputs),
        "compiled_operators": len({binding.node for binding in whole.flat.bindings}),
        "tvm": version("apache-tvm"),
        "reference": whole.reference_name,
        "regions": write_regions(whole.regions, () if last is None else last.regions, files),
    }
    artifact = CompiledArtifact(manifest, files)
    for result in artifact.verify(target):
        if result.is_wrong:
            raise ArtifactError(
                f"the kernel of layer {as_text(rows[result.layer]['name'])} of {name} is off "
                f"by {result.error:.2g} of its largest value on random tensors, but at most "
                f"{result.bound:g} is accepted; build with more --trials, and please report "
                "the model"
            )
    return _check_outputs(artifact, files, manifest, samples, last or whole, tolerance)


def region_files(
    last: LastRegions, target: Target, target_kind: str, *, name: str, total_macs: int
) -> CompiledFiles:
    """Return the artifact of a network that onnxruntime runs completely.

    The artifact has no samples if onnxruntime accepts none of the generated inputs.

    Args:
        last: the regions (groups of operators) that onnxruntime runs.
        target: the target.
        target_kind: type of the target, for example "cpu", from which `load` rebuilds the target.
        name: name of the network.
        total_macs: multiply-accumulates of the network.

    Returns:
        The files of the artifact.

    Raises:
        ImportFailedError: onnxruntime does not accept the network.
    """
    try:
        samples = samples_of(last)
        first = samples[0]
    except InputError:
        samples = []
        first = NetworkSample("", last.seeded_inputs(), last.empty_outputs())
    files: dict[str, bytes] = {}
    manifest = {
        **_describe_source(last, first, target, target_kind, name, OF_FLOAT32),
        "macs": {"total": total_macs, "kernels": 0},
        "layers": [],
        "reads": [],
        "gives": [],
        "compiled_operators": 0,
        "reference": "onnxruntime",
        "regions": write_regions((), last.regions, files),
    }
    artifact = CompiledArtifact(manifest, files)
    return _check_outputs(artifact, files, manifest, samples, last, OF_FLOAT32)


def _check_outputs(
    artifact: CompiledArtifact, files: dict[str, bytes], manifest: dict[str, Json],
    samples: Sequence[NetworkSample], source: LastRegions | Whole, tolerance: float,
) -> CompiledFiles:  # fmt: skip
    """Compare a library's outputs with those of the source model, and add the samples to the files.

    Args:
        artifact: the loaded library.
        files: content of each file, by name. The samples are added to it.
        manifest: the manifest. The results of the comparison are added to it.
        samples: samples with the outputs of the source model.
        source: the source model.
        tolerance: largest accepted error.

    Returns:
        The files and the manifest.

    Raises:
        InaccurateError: the library exceeds the tolerance.
    """
    kept, error = decisive_samples(samples, artifact.infer, source, tolerance, artifact.name)
    files[CHECK] = pack_samples(kept)
    manifest["error"] = error
    manifest["samples"] = [sample.kind for sample in kept]
    containers = [value.name for value in artifact.outputs if value.dtype in CONTAINERS]
    same = unchecked_outputs(kept) if kept else [value.name for value in artifact.outputs]
    manifest["not_checked"] = list[Json]([*same, *containers])
    return CompiledFiles(files, manifest, kept)


def _describe_source(
    source: LastRegions | Whole, sample: NetworkSample, target: Target, target_kind: str,
    name: str, tolerance: float,
) -> dict[str, Json]:  # fmt: skip
    """Return the manifest entries that do not depend on how a network is compiled.

    Args:
        source: the source model.
        sample: a sample, whose arrays give the types and shapes of inputs and outputs.
        target: the target.
        target_kind: type of the target, for example "cpu".
        name: name of the network.
        tolerance: largest accepted error.
    """
    from tilewright.networks.partition.region_models import LastRegions

    expected = sample.outputs
    inputs = [_tensor(key, array) for key, array in sample.inputs.items()]
    if isinstance(source, LastRegions):
        rows = {as_text(row["name"]): row for row in inputs}
        for info in source.inputs:
            if container := source.container_of(info):
                rows[info.name] = {"name": info.name, "shape": [], "dtype": container}
        inputs = [rows[info.name] for info in source.inputs]
        outputs = []
        for info in source.whole.graph.output:
            if container := source.container_of(info):
                outputs.append({"name": info.name, "shape": [], "dtype": container})
                continue
            row = _tensor(info.name, expected[info.name])
            known = source.output_shape(info.name)
            row["shape"] = [-1] * len(as_list(row["shape"])) if known is None else list(known)
            outputs.append(row)
    else:
        outputs = [_tensor(key, array) for key, array in expected.items()]
    return {
        "kind": KIND,
        "network": name,
        "target": target.name,
        "inputs": list[Json](inputs),
        "outputs": list[Json](outputs),
        "specification": specification(target, target_kind),
        "tolerance": tolerance,
    }


def compiles_kernels(target: Target) -> CompilesKernels:
    """Check that a target can compile kernels for a network's library.

    Args:
        target: the target.

    Returns:
        `target`, with the type of targets that have this capability.

    Raises:
        ArtifactError: the target does not have this capability.
    """
    result = capability(target, CompilesKernels)
    if result is None:
        raise ArtifactError(
            f"{target.name} cannot compile kernels into libraries; choose the target cpu"
        )
    return result


class CompiledArtifact:
    """A network that is compiled into a library, loaded into memory.

    Args:
        manifest: the manifest of the artifact.
        files: content of the files by name. Large files may be memory-mapped uint8 arrays of shape
            (bytes,).
        threads: number of threads; None for the number that the library was built for.

    Attributes:
        manifest: the manifest of the artifact.
        name: name of the network.
        target: name of the target.
        inputs: the inputs of the network.
        outputs: the outputs of the network.
        rows: the rows of the layers in the manifest.
    """

    def __init__(
        self,
        manifest: Mapping[str, Json],
        files: Mapping[str, bytes | NDArray[np.uint8]],
        threads: int | None = None,
    ) -> None:
        self.manifest = manifest
        self._threads = threads
        keys = as_object(as_object(manifest["specification"])["keys"])
        self._built_for = as_int(keys.get("threads", usable_cores()))
        self.name, self.target = as_text(manifest["network"]), as_text(manifest["target"])
        self._caller, self._opening = threading.local(), PerProcess(threading.Lock)
        self._library, self._check = bytes(files.get(LIBRARY, b"")), files.get(CHECK)
        self._compiled = LIBRARY in files
        weights = files.get(WEIGHTS)
        self._weights = [] if weights is None else unpack_weights(np.frombuffer(weights, np.uint8))
        self.inputs, self.outputs = _values(manifest["inputs"]), _values(manifest["outputs"])
        self._exact = ExactInputs(self.inputs)
        self.rows = tuple(as_object(row) for row in as_list(manifest["layers"]))
        self._halves = [value.name for value in self.outputs if value.dtype == "float16"]
        self._regions = ArtifactRegions(manifest.get("regions", []), files)
        self._reads, self._gives = (
            [as_text(name) for name in as_list(manifest.get(key, [v.name for v in values]))]
            for key, values in (("reads", self.inputs), ("gives", self.outputs))
        )

    @with_living_pool
    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one inference.

        Args:
            inputs: one array per input by name, with the shape given in the artifact's `inputs`.

        Returns:
            One array per output by name, with the shape given in the artifact's `outputs`.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        arrays = inputs if self._exact.fit(inputs) else check_arrays(self.inputs, inputs)
        made = self._run_compiled(arrays)
        if self._regions:
            known = {**arrays, **made}
            known |= self._regions.run_last(known)
            made = {value.name: known[value.name] for value in self.outputs}
        return to_float16(made, self._halves) if self._halves else made

    @with_living_pool
    def run(
        self, inputs: Mapping[str, Array], *, layers: bool = False
    ) -> tuple[dict[str, Array], LibraryProfile]:
        """Run one inference, then run further inferences to measure their duration.

        Args:
            inputs: as for `infer`.
            layers: also measure each kernel call.

        Returns:
            The outputs as from `infer`, and the median durations.

        Raises:
            InputError: an input is missing or has another shape or type.
        """
        known = check_arrays(self.inputs, inputs)
        begun = time.perf_counter()
        outputs = self.infer(inputs)
        possible = int(TIMED_SECONDS / (time.perf_counter() - begun))
        times = max(1, min(PROFILED if layers else TIMED, possible))
        whole, calls = np.zeros(times), list[Sequence[tuple[str, float]]]()
        if self._compiled:
            arrays = self._read(known)
            whole = self._ready.time_inferences(arrays, times)
            calls = [self._ready.profiled(arrays) for _ in range(times if layers else 0)]
        profile = profile_of(self._call_times(), whole, calls)
        if self._regions:
            seconds = self._regions.time_last({**known, **self._run_compiled(known)}, times)
            profile = replace(
                profile, seconds=profile.seconds + seconds,
                others=(*profile.others, ("onnxruntime", seconds)) if layers else (),
            )  # fmt: skip
        return outputs, profile

    def verify(self, target: Target | None = None) -> Iterator[KernelError]:
        """Compare the kernel of every layer in the library with the reference, on random tensors.

        A kernel that several layers call is run once. Kernels that are part of an attention
        function, or that read overlapping frames, are not separate functions in the library and are
        left out; `output_error` covers them.

        Args:
            target: the target that provides the reference; by default the target in the manifest.

        Returns:
            Iterator over the error of each checked layer.
        """
        return iter(self._kernel_errors(target))

    @with_living_pool
    def _kernel_errors(self, target: Target | None) -> list[KernelError]:
        if not self.rows:
            return []
        errors: list[KernelError] = []
        if target is None:
            spec = as_object(self.manifest["specification"])
            target = rebuild(as_text(spec["kind"]), as_object(spec["keys"]), "")
        compiles, known = compiles_kernels(target), dict[str, float]()
        for number, row in enumerate(self.rows):
            name = as_text(row["function"])
            # Such a kernel is not a separate function of the library.
            if not {"attention", "part_of", "frames"}.isdisjoint(row):
                continue
            if name not in known:
                workload = parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
                config = tuple(map(as_int, as_list(row["config"])))
                moved = map(as_object, as_list(row.get("moved", [])))
                stored = [_parse_stored(item) for item in as_list(row.get("bfloat16", []))]
                function = self._ready.function(
                    name, [_parse_moved(item) for item in moved], stored
                )
                known[name] = compiles.kernel_error(workload, config, function)
            bound = OF_STORED if row.get("bfloat16") else OF_FLOAT32
            errors.append(KernelError(number, known[name], bound))
        return errors

    def output_error(self) -> float:
        """Return the largest error of an output on the stored samples.

        The outputs are compared with those of the source model. Errors are relative to the largest
        value of an output (`library_check`).

        Raises:
            ArtifactError: the artifact has no samples.
        """
        if not self.has_samples:
            raise ArtifactError(
                f"{self.name} holds no samples for comparing outputs, because onnxruntime "
                "rejected all random inputs that were tried; compare it on inputs of your "
                "own"
            )
        return max(
            worst_output(self.infer(sample.inputs), sample.outputs, self.tolerance).error
            for sample in self.check_samples
        )

    @property
    def has_samples(self) -> bool:
        """True if the artifact contains samples."""
        return self.manifest.get("samples", [""]) != []

    @cached_property
    def check_samples(self) -> tuple[NetworkSample, ...]:
        """The stored samples; empty if there are none."""
        if self._check is None or not self.has_samples:
            return ()
        names = (
            [value.name for value in values if value.dtype not in CONTAINERS]
            for values in (self.inputs, self.outputs)
        )
        return tuple(unpack_samples(bytes(self._check), *names))

    def check_inputs(self) -> dict[str, Array]:
        """Return the inputs of the first stored sample (standard normal numbers), by name."""
        return dict(self.check_samples[0].inputs)

    @property
    def tolerance(self) -> float:
        """Largest accepted value of `output_error`."""
        return as_number(self.manifest.get("tolerance", OF_FLOAT32))

    def _read(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Return the arrays that the compiled part reads, in the order of its parameters.

        Args:
            arrays: inputs of the network by name.
        """
        return [arrays[name] for name in self._reads]

    def _run_compiled(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the part of the network that is compiled into the library.

        Args:
            arrays: inputs of the network by name.

        Returns:
            The outputs of the compiled part by name; empty if onnxruntime runs the whole network.
        """
        if not self._compiled:
            if not self._regions.are_open:
                self._regions.open(chosen_threads(self._threads, self._built_for))
            return {}
        return dict(zip(self._gives, self._ready(self._read(arrays)), strict=True))

    def _call_times(self) -> list[CallTime]:
        """Return one row per kernel call. The two products of an attention are a single call."""
        parts = {as_int(row["part_of"]): row for row in self.rows if "part_of" in row}
        return [
            _call_time(row) + _call_time(parts[number]) if number in parts else _call_time(row)
            for number, row in enumerate(self.rows)
            if "part_of" not in row
        ]

    @property
    def _ready(self) -> LoadedLibrary:
        """The loaded library, with the number of threads set for the calling thread.

        TVM has a separate thread pool per calling thread, so the number is set once in each thread.
        """
        network: LoadedLibrary | None = getattr(self._caller, "network", None)
        if network is None:
            with self._opening.get():
                network = self._network
            self._threads = use_threads(self._threads, self._built_for)
            self._caller.network = network
        return network

    @cached_property
    def _network(self) -> LoadedLibrary:
        if (needed := as_text(self.manifest["tvm"])) != (own := version("apache-tvm")):
            raise ArtifactError(
                f"{self.name} was compiled with TVM {needed}, but this installation has "
                f"{own}; {BUILD_AGAIN}"
            )
        from tilewright.networks.compiled.loaded_library import LoadedLibrary

        # Write the bytes whose digest was compared; the file in the artifact may have changed.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(self._library)
            self._library = b""
            calls = self._regions.open(chosen_threads(self._threads, self._built_for))
            return LoadedLibrary(path, self._weights, calls)


def open_library(
    folder: Path,
    manifest: Mapping[str, Json],
    threads: int | None,
    inner: str = "",
) -> CompiledArtifact:
    """Open the library in an artifact's folder.

    Args:
        folder: folder of the artifact.
        manifest: manifest of the library, which lists its files.
        threads: number of threads; None for the number that the library was built for.
        inner: prefix of the library's files within the artifact, such as "size1/".

    Returns:
        The loaded library.

    Raises:
        ArtifactError: a file is missing, too large or was changed.
        KeyError: the manifest lacks an entry.
        ValueError: an entry of the manifest is invalid.
    """
    listed = as_object(manifest["files"])
    regions = tuple(name for name in listed if name.startswith(inner + PREFIX))
    if inner + LIBRARY not in listed and (manifest["layers"] or not regions):
        raise ArtifactError(
            f"{folder / inner} contains neither {LIBRARY} nor regions; {BUILD_AGAIN}"
        )
    if inner + CHECK not in listed:
        raise KeyError(inner + CHECK)
    large = [name for name in (inner + WEIGHTS, inner + CHECK, *regions) if name in listed]
    others = {key: said for key, said in listed.items() if key not in large}
    files: dict[str, bytes | NDArray[np.uint8]] = {
        **{name: map_file(folder, manifest, name, LIBRARY_BYTES) for name in large},
        **read_files(folder, {"files": others}, LIBRARY_BYTES),
    }
    inside = {key.removeprefix(inner): data for key, data in files.items()}
    return CompiledArtifact(manifest, inside, threads)


def _row(layer: KernelLayer, function: str, pick: Pick, target: Target) -> dict[str, Json]:
    return {
        "name": layer.call.node,
        "names": list(layer.names),
        "operator": layer.call.operator,
        "macs": layer.workload.macs,
        "function": function,
        "workload": str(layer.workload),
        "epilogue": layer.workload.epilogue_text,
        "space": pick.space,
        "config": list(pick.config),
        "knobs": dict(target.space(layer.workload).describe(pick.config)),
    }


def _parse_stored(value: Json) -> tuple[int, int]:
    """Parse the manifest entry of a kernel parameter that the network stores in bfloat16.

    Args:
        value: JSON list of two integers.

    Returns:
        The index of the parameter, and the number of channels per block.
    """
    number, block = map(as_int, as_list(value))
    return number, block


def _attention(number: int, joined: JoinedAttention) -> dict[str, Json]:
    """Return the manifest entries that mark a layer as part of a fused attention function.

    Args:
        number: index of the layer.
        joined: the attentions that were fused.

    Returns:
        For the second product of an attention, the name of the fused function. For the first
        product, the index of the second product's layer. Empty for any other layer.
    """
    if number in joined.functions:
        return {"attention": joined.functions[number]}
    return {"part_of": joined.scores[number]} if number in joined.scores else {}


def _call_time(row: Mapping[str, Json]) -> CallTime:
    return CallTime(
        as_text(row["name"]), tuple(map(as_text, as_list(row["names"]))), as_text(row["operator"]),
        as_int(row["macs"]), as_text(row.get("attention", row["function"])),
    )  # fmt: skip


def _moved_json(parameter: int, axes: MovedAxes) -> dict[str, Json]:
    return {"parameter": parameter, "shape": list(axes.shape), "axes": list(axes.axes)}


def _parse_moved(row: Mapping[str, Json]) -> Moved:
    """Parse the manifest entry of a kernel parameter whose axes are permuted in the network.

    Args:
        row: the entry, as `_moved_json` writes it.

    Returns:
        The index of the parameter, its shape in the network and the permutation of its axes, as
        `LoadedLibrary.function` takes them.
    """
    shape, axes = (list(map(as_int, as_list(row[key]))) for key in ("shape", "axes"))
    return as_int(row["parameter"]), shape, axes


def _tensor(name: str, array: Array) -> dict[str, Json]:
    dtype = TEXT if array.dtype.kind in "OU" else str(array.dtype)
    return {"name": name, "shape": list(array.shape), "dtype": dtype}


def _values(rows: Json) -> tuple[Value, ...]:
    result = map(as_object, as_list(rows))
    return tuple(
        Value(
            as_text(row["name"]), tuple(map(as_int, as_list(row["shape"]))), as_text(row["dtype"])
        )
        for row in result
    )
