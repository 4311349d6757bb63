"""Writes and reads the folder of a network compiled into one library.

manifest.json   what it is, each layer's kernel and schedule, the digests of the files
network.so      the whole network with its weights, for TVM's virtual machine
check.npz       seeded inputs, and what the source model gives for them
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    pack_arrays,
    unpack_arrays,
)
from tilewright.networks.artifact.compiled_profile import CallTime, LibraryProfile, profile_of
from tilewright.networks.artifact.errors import ArtifactError
from tilewright.networks.artifact.folder import AGAIN, specification, write_folder
from tilewright.networks.artifact.run import Array, checked
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import CompilesKernels, capability
from tilewright.targets.layer import Value
from tilewright.targets.workload import Workload, parse_workload

if TYPE_CHECKING:
    from tilewright.networks.compiled.layers import KernelLayer
    from tilewright.networks.compiled.library import CompiledNetwork
    from tilewright.networks.imported_model import Whole

KIND = "library"
LIBRARY, CHECK = "network.so", "check.npz"
TOLERANCE = 1e-4
"""Largest difference that counts as equal, as a share of the largest value."""
TIMED, PROFILED = 3, 15


@dataclass(frozen=True)
class KernelError:
    """How far a layer's kernel is from the reference, as a share of the largest value."""

    layer: int
    error: float

    @property
    def wrong(self) -> bool:
        """Whether that is more than rounding explains."""
        return not self.error <= TOLERANCE


def build(
    whole: Whole, layers: Sequence[KernelLayer], picks: Mapping[Workload, Pick], target: Target,
    target_kind: str, out: Path, *, name: str, total_macs: int, tolerance: float = TOLERANCE,
) -> Mapping[str, Json]:  # fmt: skip
    """Write a folder to `out` and return its manifest; `picks` has a schedule of each workload.

    Raises `ArtifactError` for a target that compiles no kernels, outputs that are further from the
    source model's than `tolerance`, a share of the largest value, and a folder with other files,
    `WorkloadError` for a schedule that does not apply, `ImportFailedError` where TVM cannot compile
    the rest or nothing can link it.
    """
    from tilewright.networks.compiled.library import compiled, library_bytes
    from tilewright.networks.compiled.rewrite import rewritten

    compiles = compiles_kernels(target)
    kernels = {workload: compiles.kernel(workload, pick.config) for workload, pick in picks.items()}
    made = rewritten(whole.flat, layers, kernels)
    library = library_bytes(
        compiled(
            made.module, compiles.code_target(), compiles.code_pipeline(), whole.flat.module
        )
    )  # fmt: skip
    inputs = whole.seeded_inputs()
    check = {f"input {key}": array for key, array in inputs.items()}
    expected = whole.reference(inputs)
    check |= {f"output {key}": array for key, array in expected.items()}
    rows = [
        _row(layer, function, picks[layer.workload], target)
        for layer, function in zip(made.layers, made.called, strict=True)
    ]
    manifest: dict[str, Json] = {
        "kind": KIND,
        "network": name,
        "target": target.name,
        "inputs": [_tensor(key, array) for key, array in inputs.items()],
        "outputs": [_tensor(key, array) for key, array in expected.items()],
        "macs": {
            "total": total_macs, "kernels": sum(layer.workload.macs for layer in made.layers),
        },
        "layers": rows,
        "specification": specification(target, target_kind),
        "tvm": version("apache-tvm"),
        "reference": whole.reference_name,
        "tolerance": tolerance,
    }  # fmt: skip
    files = {LIBRARY: library, CHECK: pack_arrays(check)}
    error = CompiledArtifact(manifest, target, files).output_error()
    if not error <= tolerance:
        raise ArtifactError(
            f"an output of {name} is off by {error:.2g} of its largest value, compared with "
            f"{whole.reference_name} on the source model, and the bound is {tolerance:g}; raise "
            "--tolerance, or report the model"
        )
    manifest["error"] = error
    write_folder(out, files, manifest)
    return manifest


def compiles_kernels(target: Target) -> CompilesKernels:
    """The target as one that compiles kernels. Raises `ArtifactError`."""
    found = capability(target, CompilesKernels)
    if found is None:
        raise ArtifactError(f"{target.name} compiles no kernels into libraries; choose cpu")
    return found


class CompiledArtifact:
    """A network in memory, as it was built. `manifest` is what the folder says of it; `name` is the
    network's, `target` what it was built for."""

    def __init__(
        self,
        manifest: Mapping[str, Json],
        target: Target,
        files: Mapping[str, bytes],
        threads: int | None = None,
    ) -> None:
        self.manifest = manifest
        self._threads = threads
        self.name, self.target = as_text(manifest["network"]), as_text(manifest["target"])
        self._target = target
        self._compiles = compiles_kernels(target)
        self._caller = threading.local()
        self._library, self._check = files[LIBRARY], files[CHECK]
        self.inputs, self.outputs = _values(manifest["inputs"]), _values(manifest["outputs"])
        self.rows = tuple(as_object(row) for row in as_list(manifest["layers"]))

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: arrays of the shape of each of `inputs`, by name, in; of each of
        `outputs` out. Raises `InputError` for inputs that do not fit."""
        made = self._ready(self._in_order(inputs))
        return {value.name: array for value, array in zip(self.outputs, made, strict=True)}

    def run(
        self, inputs: Mapping[str, Array], *, layers: bool = False
    ) -> tuple[dict[str, Array], LibraryProfile]:
        """One inference, shapes as in `infer`, and some more for how long it takes: medians, of the
        whole and, if `layers`, of each call. Raises `InputError` for inputs that do not fit."""
        outputs, arrays = self.infer(inputs), self._in_order(inputs)
        whole = self._ready.timed(arrays, PROFILED if layers else TIMED)
        calls = [self._ready.profiled(arrays) for _ in range(PROFILED if layers else 0)]
        return outputs, profile_of(self._call_times(), whole, calls)

    def verify(self) -> Iterator[KernelError]:
        """Every layer's kernel, as it stands in the library, on seeded tensors."""
        for number, row in enumerate(self.rows):
            workload = parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
            config = tuple(map(as_int, as_list(row["config"])))
            function = self._ready.function(as_text(row["function"]))
            yield KernelError(number, self._compiles.kernel_error(workload, config, function))

    def output_error(self) -> float:
        """The largest difference of its outputs from the source model's, on the inputs that the
        folder holds, as a share of an output's largest value."""
        known = unpack_arrays(self._check)
        found = self.infer(self.check_inputs())
        return max(_error(array, known[f"output {name}"]) for name, array in found.items())

    def check_inputs(self) -> dict[str, Array]:
        """The inputs that the folder holds, in the network's shapes."""
        known = unpack_arrays(self._check)
        return {value.name: known[f"input {value.name}"] for value in self.inputs}

    @property
    def tolerance(self) -> float:
        """What `output_error` may be."""
        return as_number(self.manifest.get("tolerance", TOLERANCE))

    def _in_order(self, inputs: Mapping[str, Array]) -> list[Array]:
        return list(checked(self.inputs, inputs).values())

    def _call_times(self) -> list[CallTime]:
        return [
            CallTime(
                as_text(row["name"]), tuple(map(as_text, as_list(row["names"]))),
                as_text(row["operator"]), as_int(row["macs"]), as_text(row["function"]),
            )
            for row in self.rows
        ]  # fmt: skip

    @property
    def _ready(self) -> CompiledNetwork:
        """The library, with the threads of the calling thread set: TVM has a pool for each."""
        network = self._network
        if not getattr(self._caller, "ready", False):
            self._compiles.use_threads(self._threads)
            self._caller.ready = True
        return network

    @cached_property
    def _network(self) -> CompiledNetwork:
        if (needed := as_text(self.manifest["tvm"])) != (own := version("apache-tvm")):
            raise ArtifactError(
                f"{self.name} was compiled with TVM {needed}, this program has {own}; {AGAIN}"
            )
        from tilewright.networks.compiled.library import CompiledNetwork

        return CompiledNetwork(self._library)


def _error(found: Array, expected: Array) -> float:
    """The largest difference of a value, as a share of the largest that is finite; infinite where
    one alone is no number."""
    if found.shape != expected.shape:
        return float("inf")
    ours, real = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (ours == real) | (np.isnan(ours) & np.isnan(real))
        off = np.where(same, 0.0, np.abs(ours - real))
    largest = np.abs(real[np.isfinite(real)]).max(initial=0.0)
    worst = float(np.where(np.isnan(off), np.inf, off).max(initial=0.0))
    return worst / float(largest) if worst and largest else worst


def _row(layer: KernelLayer, function: str, pick: Pick, target: Target) -> dict[str, Json]:
    from tilewright.networks.report import epilogue_text

    return {
        "name": layer.call.node,
        "names": list(layer.names),
        "operator": layer.call.operator,
        "macs": layer.workload.macs,
        "function": function,
        "workload": str(layer.workload),
        "epilogue": epilogue_text(layer.workload),
        "space": pick.space,
        "config": list(pick.config),
        "knobs": dict(target.space(layer.workload).describe(pick.config)),
    }


def _tensor(name: str, array: Array) -> dict[str, Json]:
    return {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}


def _values(rows: Json) -> tuple[Value, ...]:
    found = map(as_object, as_list(rows))
    return tuple(
        Value(
            as_text(row["name"]), tuple(map(as_int, as_list(row["shape"]))), as_text(row["dtype"])
        )
        for row in found
    )
