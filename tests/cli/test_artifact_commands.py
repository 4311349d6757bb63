"""Tests `tilewright build`, `run` and `verify` as a user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.sharing import made_once
from tilewright.core.files import unpack_arrays
from tilewright.networks.zoo.digits import held_out

pytestmark = pytest.mark.slow(seconds=0.5)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with the artifact `art` of the digits network and an image in `x.npz`.

    The file `said` holds the output of the build command.
    """

    def make(folder: Path) -> None:
        place = Place(folder)
        done = place.run("build", "digits_cnn", "--trials", "0", "--out", "art", "--bare")
        assert done.returncode == 0, done.stderr
        (folder / "said").write_text(done.stdout)
        np.savez(folder / "x.npz", input=held_out()[0][:1])

    return Place(made_once(tmp_path_factory, "artifact", make))


@pytest.fixture
def copy(built: Place, tmp_path: Path) -> Place:
    """Return a copy of the artifact and the image that the test may change."""
    shutil.copytree(built.folder / "art", tmp_path / "art")
    shutil.copy(built.folder / "x.npz", tmp_path / "x.npz")
    return Place(tmp_path)


def test_build_says_what_it_made(built: Place) -> None:
    said = (built.folder / "said").read_text()
    manifest = built.json("art/manifest.json")
    assert said.startswith("digits_cnn on vta-pynq → art\n")
    assert f"{manifest['cycles']['stream']:,} cycles" in said
    assert f"{manifest['cycles']['sum_of_layers']:,} cycles is the sum of all layers" in said
    assert "100\N{NO-BREAK SPACE}% of" in said
    for buffer in manifest["memory"]["buffers"]:
        assert f"{buffer['bytes']:,} bytes" in said
    assert "'tilewright board runtime DIR' writes the C code" in said
    assert max(map(len, said.splitlines())) <= 80
    assert manifest["macs"]["total"] == manifest["macs"]["accelerator"] > 0
    assert manifest["quantisation"]["method"]


def test_run_gives_outputs_and_json(copy: Place) -> None:
    done = copy.run("run", "art", "--input", "x.npz", "--output", "y.npz", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {"cycles", "milliseconds", "cpu_milliseconds", "layers"} <= document.keys()
    manifest = copy.json("art/manifest.json")
    assert document["cycles"] == manifest["cycles"]["stream"]
    assert document["milliseconds"] == pytest.approx(document["cycles"] / 1e5)
    assert sum(layer["cycles"] for layer in document["layers"]) == document["cycles"]
    outputs = unpack_arrays((copy.folder / "y.npz").read_bytes())
    (name,) = outputs
    assert outputs[name].shape == (1, 10)
    assert outputs[name].argmax() == held_out()[1][0]


def test_successive_images_overlap_and_give_what_each_gives(copy: Place) -> None:
    np.savez(copy.folder / "x3.npz", input=held_out()[0][:3])
    done = copy.run("run", "art", "--input", "x3.npz", "--output", "y3.npz", "--pipeline", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["images"], document["has_islands"]) == (3, False)
    total = document["cpu_milliseconds"] + document["accelerator_milliseconds"]
    assert document["latency_milliseconds"] == pytest.approx(total)
    assert document["images_per_second"] == pytest.approx(1e3 / total)
    rates = [document[f"{kind}images_per_second"] for kind in ("", "overlapped_", "bound_")]
    assert rates == sorted(rates)
    assert rates[0] < rates[1]
    assert document["more_dram_bytes"] > 0
    (name, together), = unpack_arrays((copy.folder / "y3.npz").read_bytes()).items()  # fmt: skip
    for at in range(3):
        np.savez(copy.folder / "x.npz", input=held_out()[0][at : at + 1])
        assert copy.run("run", "art", "--input", "x.npz", "--output", "y.npz").returncode == 0
        alone = unpack_arrays((copy.folder / "y.npz").read_bytes())[name]
        np.testing.assert_array_equal(together[at : at + 1], alone)


def test_a_pipeline_is_told_in_a_few_lines(copy: Place) -> None:
    done = copy.run("run", "art", "--input", "x.npz", "--output", "y.npz", "--pipeline",
                    "--images", "5")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("digits_cnn on vta-pynq: 5 images → y.npz\n")
    for words in (
        "sequential",
        "pipelined",
        "busy",
        "in flight",
        "no operator runs on the CPU",
    ):
        assert words in done.stdout
    for options, said in (
        (("--images", "5"), "add --pipeline"),
        (("--pipeline", "--profile"), "leave out --pipeline"),
    ):
        refused = copy.run("run", "art", "--input", "x.npz", "--output", "y.npz", *options)
        assert refused.returncode == 2
        assert said in refused.stderr


def test_a_profile_is_a_table_and_a_picture(copy: Place) -> None:
    done = copy.run("run", "art", "--input", "x.npz", "--output", "y.npz", "--profile",
                    "--timeline", "t.png")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (copy.folder / "t.png").read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["layer", "operator", "MMAC", "cycles", "ms", "share", "roofline"]
    manifest = copy.json("art/manifest.json")
    rows = lines[2 : 2 + len(manifest["layers"])]
    for row, layer in zip(rows, manifest["layers"], strict=True):
        assert row.startswith(f"{layer['name']} · ")
        assert f"{layer['stream_cycles']:,}" in row
    assert f"{manifest['cycles']['stream']:,} cycles" in lines[-1]


def test_verify_finds_every_layer_right(copy: Place) -> None:
    done = copy.run("verify", "art", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["right"] is True
    assert len(document["layers"]) == len(copy.json("art/manifest.json")["layers"])
    assert not any(layer["wrong"] for layer in document["layers"])


RUN = ("run", "art", "--input", "x.npz", "--output", "y.npz")
MISTAKES = {
    "no artifact": (("run", "none", *RUN[2:]), "the folder does not exist"),
    "another folder": (("run", ".", *RUN[2:]), "it has no manifest.json"),
    "no input": (("run", "art", "--input", "none.npz", "--output", "y.npz"), "no file none.npz"),
    "no NPZ": (("run", "art", "--input", "art/uops.bin", "--output", "y.npz"), "not an NPZ file"),
    "other names": (("run", "art", "--input", "name.npz", "--output", "y.npz"), "no input 'x'"),
    "shapes": (("run", "art", "--input", "shape.npz", "--output", "y.npz"), "instead of 1×1×8×8"),
    "types": (("run", "art", "--input", "type.npz", "--output", "y.npz"), "type float64"),
    "output": (("run", "art", "--input", "x.npz", "--output", "y.csv"), "must end in .npz"),
    "picture": ((*RUN, "--timeline", "t.gif"), ".png or .html"),
    "verify": (("verify", "x.npz"), "not an artifact"),
    "out": (("build", "digits_cnn", "--out", "."), "cannot write to .: it contains other files"),
    "model": (("build", "digits", "--out", "new"), "did you mean digits_cnn"),
    "target": (("build", "digits_cnn", "--target", "vta-pink", "--out", "new"), "vta-pynq"),
    "schedules": (
        ("build", "digits_cnn", "--schedules", "none", "--out", "new"),
        "the folder none does not exist",
    ),
    "no schedules": (("build", "digits_cnn", "--schedules", "art", "--out", "new"), "art"),
    "calibration": (("build", "digits_cnn", "--calibration", "c", "--out", "new"), "samples c"),
    "both": (
        ("build", "digits_cnn", "--schedules", "art", "--trials", "3", "--out", "new"),
        "are both given",
    ),
    "layer": (("build", "digits_cnn", "--keep-float", "conv9", "--out", "new"), "conv9"),
    "bare": (
        ("build", "digits_cnn", "--keep-float", "conv2", "--bare", "--trials", "0", "--out", "new"),
        "the CPU would have to compute",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_message(name: str, copy: Place) -> None:
    arguments, said = MISTAKES[name]
    image = np.zeros((1, 1, 8, 8), np.float32)
    np.savez(copy.folder / "name.npz", x=image)
    np.savez(copy.folder / "shape.npz", input=image[:, :, 1:])
    np.savez(copy.folder / "type.npz", input=image.astype(np.float64))
    done = copy.run(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (copy.folder / "new").exists()
    assert not (copy.folder / "y.npz").exists()


def test_a_damaged_artifact_is_refused(copy: Place) -> None:
    path = copy.folder / "art" / "constants.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for command in (RUN, ("verify", "art")):
        done = copy.run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "constants.bin has other bytes than when it was built" in done.stderr


def tuned_folder(place: Place, name: str, **changes: object) -> Path:
    """Make a folder like that of `tilewright tune`, with the schedules of the artifact."""
    manifest = place.json("art/manifest.json")
    rows = [
        {
            "workload": layer["workload"], "epilogue": layer["epilogue"], "space": layer["space"],
            "config": layer["config"], "names": layer["names"],
        }
        for layer in manifest["layers"]
    ]  # fmt: skip
    spec = manifest["specification"]["keys"]
    target = {"name": "vta-pynq", "kind": "vta", "fingerprint": "", "spec": spec}
    whole = {"version": 1, "network": "digits_cnn", "target": target, "schedules": rows} | changes
    folder = place.folder / name
    folder.mkdir()
    (folder / "schedules.json").write_text(json.dumps(whole))
    return folder


def test_tuned_schedules_are_taken(copy: Place) -> None:
    tuned_folder(copy, "tuned")
    before = copy.json("art/manifest.json")
    done = copy.run("build", "digits_cnn", "--schedules", "tuned", "--out", "art")
    assert done.returncode == 0, done.stderr
    after = copy.json("art/manifest.json")
    assert after["layers"] == before["layers"]
    assert after["files"] == before["files"]


def test_schedules_of_another_network_or_machine_are_refused(copy: Place) -> None:
    manifest = copy.json("art/manifest.json")
    keys = manifest["specification"]["keys"] | {"LOG_INP_BUFF_SIZE": 14}
    tuned_folder(copy, "small", target={"name": "my-vta", "spec": keys})
    tuned_folder(copy, "some", network="resnet18", schedules=[])
    tuned_folder(copy, "old", version=0)
    for name, said in (
        ("small", "schedules for another machine (my-vta)"),
        ("some", "was tuned for resnet18 and lacks schedules for 5 of the 5 workloads"),
        ("old", "of version 0, this program reads 1; tune again"),
    ):
        done = copy.run("build", "digits_cnn", "--schedules", name, "--out", "new")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert not (copy.folder / "new").exists()
