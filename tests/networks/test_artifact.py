"""Tests artifacts of integer networks: built, loaded without the model, refused when damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.board.graphs import small_cnn
from tests.networks.small_artifacts import SCALE, build_small, in_integers, rewrite_manifest
from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import ArtifactError, build, canonical_workloads, load, manifest
from tilewright.networks.artifact.build import layer_graph
from tilewright.networks.errors import InputError
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.targets.layer import Value
from tilewright.targets.workload import canonical
from tilewright.tuning.build_options import BuildOptions

FILES = {"manifest.json", "network.bin", "instructions.bin", "uops.bin", "constants.bin"}


@pytest.fixture(scope="module")
def art(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact, which tests only read."""
    out = tmp_path_factory.mktemp("artifact") / "art"
    build_small(out, notes={"quantisation": {"method": "by hand"}})
    return out


@pytest.fixture
def copy(art: Path, tmp_path: Path) -> Path:
    """Return a copy of the artifact that a test may damage."""
    shutil.copytree(art, tmp_path / "art")
    return tmp_path / "art"


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (1, 1, 12, 12)).astype(np.float32)


def test_the_manifest_holds_what_others_rely_on(art: Path) -> None:
    manifest = json.loads((art / "manifest.json").read_text())
    assert {path.name for path in art.iterdir()} == FILES
    assert (manifest["network"], manifest["target"]) == ("small", "vta-pynq")
    for row in manifest["layers"]:
        assert {"names", "operator", "macs", "cycles"} <= row.keys()
    cycles = manifest["cycles"]
    assert cycles["sum_of_layers"] == sum(row["cycles"] for row in manifest["layers"])
    assert 0 < cycles["stream"] < cycles["sum_of_layers"]
    macs = manifest["macs"]
    assert macs["total"] - 1000 == macs["accelerator"] == sum(r["macs"] for r in manifest["layers"])
    assert manifest["inputs"] == [
        {
            "name": "image",
            "shape": [1, 1, 12, 12],
            "dtype": "float32",
            "scale": None,
            "zero_point": None,
        }
    ]
    assert manifest["outputs"][0]["name"] == "logits"
    buffers = sum(-(-b["bytes"] // 4096) * 4096 for b in manifest["memory"]["buffers"])
    instructions = sum(-(-n // 4096) * 4096 for n in manifest["memory"]["instructions"])
    assert manifest["dram_bytes"] == buffers + instructions
    assert manifest["quantisation"] == {"method": "by hand"}
    assert manifest["bare"] is True


def test_it_computes_what_the_layers_do(art: Path) -> None:
    artifact, example = load(art), small_cnn()
    for seed in range(3):
        array = image(seed)
        outputs, profile = artifact.run({"image": array})
        int8 = np.clip(np.rint(array * 32), -128, 127).astype(np.int8)
        expected = example.expected({"x": int8})["y"].reshape(10) * np.float32(2.0**-5)
        assert outputs["logits"].dtype == np.float32
        assert np.array_equal(outputs["logits"], expected)
    manifest = json.loads((art / "manifest.json").read_text())
    assert profile.cycles == manifest["cycles"]["stream"]
    assert [t.cycles for t in profile.layers] == [r["stream_cycles"] for r in manifest["layers"]]
    assert profile.milliseconds == pytest.approx(profile.cycles / 1e5)
    assert profile.cpu_milliseconds == 0
    assert [check.wrong for check in artifact.verify()] == [0] * 4


def test_two_builds_give_equal_bytes(art: Path, tmp_path: Path) -> None:
    build_small(tmp_path / "art", notes={"quantisation": {"method": "by hand"}})
    for path in art.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "art" / path.relative_to(art)).read_bytes()


def test_it_loads_without_tvm_and_onnx(art: Path) -> None:
    code = (
        "import sys, pathlib; from tilewright.networks.artifact import load;"
        f"load(pathlib.Path({str(art)!r}));"
        "print(*(name for name in ('tvm', 'onnx', 'onnxruntime', 'torch') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("place", [0, -1, 0.5])
def test_a_changed_byte_is_refused(name: str, place: float, copy: Path) -> None:
    data = bytearray((copy / name).read_bytes())
    at = int(place * len(data)) if isinstance(place, float) else place
    data[at] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=name.rpartition("/")[2]):
        load(copy)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_and_a_cut_file_are_refused(name: str, copy: Path) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match=name):
        load(copy)
    (copy / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name}"):
        load(copy)


def manifest_with(change: Callable[[dict], object]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    """Return a function that changes a manifest and updates its digest."""
    return lambda folder: rewrite_manifest(folder, change)


MANIFESTS = {
    "newer": (manifest_with(lambda m: m.update(version=4)), "of version 4, this program reads"),
    "older": (manifest_with(lambda m: m.update(version=1)), "of version 1, this program reads 2"),
    "foreign": (manifest_with(lambda m: m.update(format="apk")), "written by another program"),
    "kind": (manifest_with(lambda m: m["specification"].update(kind="tpu")), "unknown kind"),
    "machine": (
        manifest_with(lambda m: m["specification"]["keys"].update(LOG_INP_BUFF_SIZE=14)),
        "LOG_INP_BUFF_SIZE",
    ),
    "no layers": (manifest_with(lambda m: m.pop("layers")), "does not have the content that"),
    "outside": (
        manifest_with(lambda m: m["files"].update({"../x": m["files"].pop("uops.bin")})),
        "lists '../x', which is not a valid file name",
    ),
    "steps": (
        manifest_with(lambda m: m["steps"][0].update(number="no")), "does not have the content"
    ),
    "workload": (
        manifest_with(lambda m: m["layers"][0].update(workload="conv3d")), "must begin with"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_another_kind_is_refused(name: str, copy: Path) -> None:
    spoil, said = MANIFESTS[name]
    spoil(copy)
    with pytest.raises(ArtifactError, match=said.replace("(", r"\(").replace(".", r"\.")):
        load(copy)


@pytest.mark.parametrize("text", ["", "[]", "{", "nothing", "[" * 100_000, "\xff\xfe"])
def test_what_is_no_manifest_is_refused(text: str, copy: Path) -> None:
    (copy / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        load(copy)


def test_a_folder_of_others_is_neither_read_nor_written(tmp_path: Path) -> None:
    example, graph = small_cnn(), in_integers(small_cnn())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"no manifest\.json"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="the folder does not exist"):
        load(tmp_path / "none")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ArtifactError, match="cannot write to"):
            build(graph, example.random_picks(0), make_target("vta-pynq"), "vta", out)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_artifact_takes_the_place_of_an_older_one(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    before = (copy / "instructions.bin").read_bytes()
    build_small(copy, 4)
    example = small_cnn()
    assert (copy / "instructions.bin").read_bytes() != before
    assert (copy / "notes.txt").read_text() == "mine"
    array = image(9)
    int8 = np.clip(np.rint(array * 32), -128, 127).astype(np.int8)
    expected = example.expected({"x": int8})["y"].reshape(10) * np.float32(2.0**-5)
    assert np.array_equal(load(copy).infer({"image": array})["logits"], expected)


WRONG_INPUTS = {
    "missing": ({}, "'image' is missing"),
    "name": ({"imag": np.zeros(3)}, "no input 'imag'"),
    "shape": ({"image": np.zeros((1, 1, 12, 13), np.float32)}, "shape 1×1×12×13 instead of"),
    "type": ({"image": np.zeros((1, 1, 12, 12))}, "has type float64 instead of float32"),
}


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_inputs_that_do_not_fit_are_named(name: str, art: Path) -> None:
    arrays, said = WRONG_INPUTS[name]
    with pytest.raises(InputError, match=said):
        load(art).run(arrays)


def test_numbers_beyond_eight_bits_are_cut_off(art: Path) -> None:
    array = np.full((1, 1, 12, 12), np.inf, np.float32)
    array[0, 0, 0] = -np.inf
    expected = small_cnn().expected(
        {"x": np.where(array > 0, 127, -128).astype(np.int8)}
    )["y"].reshape(10) * np.float32(2.0**-5)  # fmt: skip
    assert np.array_equal(load(art).infer({"image": array})["logits"], expected)


def test_schedules_do_not_depend_on_immediates() -> None:
    graph = in_integers(small_cnn())
    workloads = canonical_workloads(graph)
    assert workloads == [canonical(layer.workload) for layer in graph.layers]
    assert all(workload == canonical(workload) for workload in workloads)


def test_what_crosses_the_border_twice_stays_int8() -> None:
    graph = in_integers(small_cnn())
    twice = replace(
        graph, outputs=(*graph.outputs, Value("again", (1, 10), "float32", SCALE)),
        results={**graph.results, "again": "y"},
    )  # fmt: skip
    assert layer_graph(graph).stored_as == {"y": graph.outputs[0]}
    assert layer_graph(graph).host_work == ()
    assert layer_graph(twice).stored_as == {}
    assert layer_graph(twice).host_work == ("logits from y", "again from y")


@pytest.mark.slow(seconds=2.5)
def test_a_folder_of_the_first_release_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release 0.1 spelled the name of the format "artefact"."""
    monkeypatch.setattr(manifest, "FORMAT", "tilewright artefact")
    options = BuildOptions(model="digits_cnn", out=tmp_path / "art", trials=0)
    build_artifact(LocalRunner(), options)
    assert json.loads((tmp_path / "art" / "manifest.json").read_text())["format"].endswith("efact")
    assert load(tmp_path / "art").name == "digits_cnn"
