"""Fuzzing inputs for built networks: artifacts, programs in TVM modules, and sample files."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from pathlib import Path

import numpy as np

from tests.reliability.format_types import Draw, Format, Read, named, of_name
from tests.reliability.mutants import archive_mutant, json_mutant, mutant

ARTIFACT = "tilewright.networks.artifact.manifest"
READS_ARTIFACTS = (
    f"{ARTIFACT}:is_artifact",
    f"{ARTIFACT}:_read_manifest",
    f"{ARTIFACT}:read_files",
)
IMAGE = np.linspace(-3, 3, 144, dtype=np.float32).reshape(1, 1, 12, 12)


def sealed_text(text: bytes) -> bytes:
    """Add a correct digest to a manifest's text, which may be damaged otherwise."""
    if not text.startswith(b"{"):
        return text
    blank = b'{"sha256":"' + b"0" * 64 + b'",' + text[1:]
    return blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1)


def signed_network(network: bytes) -> bytes:
    """Return `network.bin` with a new, correct digest at its end."""
    return network[:-32] + hashlib.sha256(network[:-32]).digest()


def _vouched(manifest: dict[str, object], files: dict[str, bytes]) -> bytes:
    """Return a manifest that lists these files with correct digests."""
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    return json.dumps({**manifest, "files": listed}).encode()


def _mutants(manifest: dict[str, object], files: dict[str, bytes]) -> Draw:
    """Damage the manifest, or one of the files together with its digest in the manifest."""

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            text = json_mutant(manifest, rng)
            return named("manifest.json", text if rng.random() < 0.1 else sealed_text(text))
        name = rng.choice(sorted(files))
        data = files[name]
        if name.endswith(".npz"):
            changed = {name: archive_mutant(data, rng)}
        elif name == "network.bin":
            changed = {name: signed_network(mutant(data, rng))}
        else:
            changed = {name: mutant(data, rng)}
        if name in ("instructions.bin", "uops.bin", "constants.bin"):
            changed["network.bin"] = _network_of({**files, **changed})
        whole = {**files, **changed}
        parts = [b"%d %s" % (len(item), n.encode()) for n, item in changed.items()]
        head = sealed_text(_vouched(manifest, whole))
        return named("files", b"\n".join([*parts, b"", b"".join([head, *changed.values()])]))

    return draw


def _network_of(files: dict[str, bytes]) -> bytes:
    """Return `network.bin` with the digests and sizes of these files."""
    from tilewright.targets.vta.board.program_image import HEADER

    network = bytearray(files["network.bin"])
    for name in ("instruction", "uop", "constant"):
        data = files[f"{name}s.bin"]
        assert HEADER.fields is not None
        at, size = HEADER.fields[f"{name}_sha256"][1], HEADER.fields[f"{name}_bytes"][1]
        network[at : at + 32] = hashlib.sha256(data).digest()
        network[size : size + 8] = len(data).to_bytes(8, "little")
    return signed_network(bytes(network))


def _write(art: Path, good: Path, data: bytes) -> None:
    """Write a copy of the good artifact with the damage that an input describes."""
    shutil.rmtree(art, ignore_errors=True)
    shutil.copytree(good, art)
    name, rest = of_name(data)
    if name == "manifest.json":
        (art / name).write_bytes(rest)
        return
    lines, _, rest = rest.partition(b"\n\n")
    sizes = [line.split(b" ", 1) for line in lines.split(b"\n")]
    total = sum(int(size) for size, _ in sizes)
    (art / "manifest.json").write_bytes(rest[: len(rest) - total])
    at = len(rest) - total
    for size, path in sizes:
        (art / path.decode()).write_bytes(rest[at : at + int(size)])
        at += int(size)


def _artifacts(folder: Path) -> tuple[Draw, Read]:
    from rich.console import Console

    from tests.board.graphs import small_cnn
    from tests.networks.small_artifacts import in_integers
    from tilewright.cli.views.artifact import checks_json, show_profile
    from tilewright.networks.artifact import Check, build, in_the_way, load
    from tilewright.networks.artifact.load import Artifact
    from tilewright.targets import make_target

    good, art, example = folder / "good", folder / "art", small_cnn()
    int8 = np.clip(np.rint(IMAGE * 32), -128, 127).astype(np.int8)
    logits = example.expected({"x": int8})["y"].reshape(10) * np.float32(2.0**-5)
    check = Check([{"image": IMAGE}] * 2, [{"logits": logits}] * 2, "arithmetic")
    build(in_integers(example), example.random_picks(3), make_target("vta-pynq"), "vta", good,
          check=check)  # fmt: skip
    manifest = json.loads((good / "manifest.json").read_text())
    manifest.pop("sha256")
    files = {name: (good / name).read_bytes() for name in manifest["files"]}

    def read_it(data: bytes) -> object:
        _write(art, good, data)
        in_the_way(art)
        artifact = load(art)
        assert isinstance(artifact, Artifact)
        outputs, spent = artifact.run({v.name: IMAGE for v in artifact.inputs})
        show_profile(artifact, spent, Console(file=io.StringIO()))
        return outputs, checks_json(artifact, list(artifact.verify()), artifact.accuracy())

    return _mutants(manifest, files), read_it


def _libraries(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of libraries for a CPU. Their machine code itself is not damaged."""
    from importlib.metadata import version

    from tilewright.core.files import pack_arrays
    from tilewright.networks.artifact import CompiledArtifact, load
    from tilewright.networks.artifact.manifest import write_folder
    from tilewright.networks.compiled.weights_file import pack_weights
    from tilewright.targets import make_target
    from tilewright.targets.capabilities import specification_of

    good, art = folder / "good", folder / "art"
    tensor = {"name": "x", "shape": [1, 4], "dtype": "float32"}
    layer = {
        "name": "fc", "names": ["fc"], "operator": "Gemm", "macs": 16, "function": "k",
        "workload": "dense:n=1,c=4,o=4,dtype=float32", "epilogue": "", "space": "cpu",
        "config": [0], "knobs": {},
    }  # fmt: skip
    spec = {"kind": "cpu", "keys": specification_of(make_target("cpu")), "fingerprint": ""}
    manifest = {
        "kind": "library", "network": "n", "target": "cpu", "inputs": [tensor],
        "outputs": [tensor], "macs": {"total": 16, "kernels": 16}, "layers": [layer],
        "specification": spec, "tvm": version("apache-tvm"), "reference": "onnxruntime",
    }  # fmt: skip
    arrays = {"input x": np.zeros((1, 4)), "output x": np.zeros((1, 4))}
    weights = pack_weights([np.ones((3, 4), np.float32), np.arange(5)])
    files = {"network.so": b"code", "check.npz": pack_arrays(arrays), "weights.bin": weights}
    write_folder(good, files, manifest)  # type: ignore[arg-type]
    held = json.loads((good / "manifest.json").read_text())
    held.pop("sha256")

    def read_it(data: bytes) -> object:
        _write(art, good, data)
        artifact = load(art, allow_code=True)
        if isinstance(artifact, CompiledArtifact):
            return artifact.name, artifact.target, artifact.inputs, artifact.rows
        return artifact.name

    return _mutants(held, files), read_it


def _programs(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of programs inside a TVM module."""
    from tests.board.graphs import small_cnn
    from tests.networks.small_artifacts import in_integers
    from tilewright.core.files import pack_files, unpack_files
    from tilewright.networks.tvm_runtime import (
        DESCRIPTION,
        HostProgram,
        clock_hz,
        layer_cycles,
        serialise_program,
    )
    from tilewright.targets import make_target

    example = small_cnn()
    graph = in_integers(example)
    picks, target = example.random_picks(3), make_target("vta-pynq")
    whole = serialise_program(graph, graph.layers, ["y"], picks, target, "vta")
    files = unpack_files(whole)
    document = json.loads(files[DESCRIPTION])
    image = np.zeros((1, 1, 12, 12), np.int8)

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            return pack_files({**files, DESCRIPTION: json_mutant(document, rng)})
        if rng.random() < 0.5:
            return pack_files(
                {**files, "network.bin": signed_network(mutant(files["network.bin"], rng))}
            )
        return archive_mutant(whole, rng)

    def read_it(data: bytes) -> object:
        layer_cycles(data), clock_hz(data)
        return HostProgram(data).run([image])

    return draw, read_it


def _samples(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of array files that a user names: calibration samples and inputs."""
    from tilewright.cli.commands.artifact import _arrays
    from tilewright.core.files import pack_arrays
    from tilewright.networks.quantisation import Input, read_samples

    path, whole = folder / "x.npz", pack_arrays({"x": np.ones((3, 4), np.float32)})
    inputs = (Input("x", (1, 4), np.dtype(np.float32)),)

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        read_samples(path, inputs)
        return _arrays(path)

    return lambda rng: archive_mutant(whole, rng), read_it


FORMATS = {
    "artifacts": Format(_artifacts, READS_ARTIFACTS),
    "libraries": Format(_libraries, (*READS_ARTIFACTS[1:], f"{ARTIFACT}:map_file")),
    "programs in modules": Format(_programs),
    "samples": Format(
        _samples,
        (
            "tilewright.cli.commands.artifact:_arrays",
            "tilewright.networks.quantisation.samples:_read",
        ),
    ),
}
