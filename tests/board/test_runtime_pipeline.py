"""Tests the pipelined C runtime: its two threads give the same outputs as one run per image."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import STRICT, Finished, built_runtime, compile_c, linked, run, served
from tests.board.graphs import EXAMPLES, Example
from tilewright.targets.vta.board.artifact_builder import build

IMAGES = 5
FAR = 10**6


@pytest.fixture(scope="module")
def example() -> Example:
    """Return a network whose input and outputs share memory with intermediate tensors."""
    return EXAMPLES["cnn"]()


@pytest.fixture(scope="module")
def art(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact of the example, which tests only read."""
    folder = tmp_path_factory.mktemp("art")
    made = build(example.graph, example.random_picks(2), example.spec)
    for file, data in made.files.items():
        (folder / file).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def images(example: Example) -> list[bytes]:
    return [example.drawn(seed)["x"].tobytes() for seed in range(IMAGES)]


@pytest.fixture(scope="module")
def alone(example: Example, art: Path, images: list[bytes], sanitized: Path) -> list[bytes]:
    """Return the outputs of one separate run per image."""
    outputs = [run(sanitized, art, image, example.spec).output for image in images]
    assert None not in outputs
    assert len(set(outputs)) == IMAGES
    return [item or b"" for item in outputs]


def piped(
    binary: Path, art: Path, example: Example, data: bytes, in_flight: int, fail_at: int = FAR,
    count: int = IMAGES, **shim: object,
) -> Finished:  # fmt: skip
    """Run the compiled `run_images.c`, with the images on standard input."""
    (source := art.parent / "images.bin").write_bytes(data)
    call = f'exec "$0" "$1" {count} {in_flight} {fail_at} < "$2"'
    command = [Path("/bin/sh"), Path("-c"), Path(call), binary, art, source]
    return served(command, example.spec, shim=shim)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("in_flight", [1, 2, 3, 9])
def test_two_threads_give_what_one_run_each_gives(
    in_flight: int, example: Example, art: Path, images: list[bytes], alone: list[bytes],
    tmp_path: Path, sanitized: Path,
) -> None:  # fmt: skip
    binary = linked("run_images.c", sanitized, tmp_path / "images", "-pthread")
    done = piped(binary, art, example, b"".join(images), in_flight)
    assert (done.code, done.said) == (0, "")
    assert done.output == b"".join(alone)
    assert len(done.streams) == IMAGES


@pytest.mark.slow(seconds=3)
def test_no_thread_touches_what_the_other_has(
    example: Example, art: Path, images: list[bytes], alone: list[bytes], tmp_path: Path
) -> None:
    """The program runs under ThreadSanitizer, which aborts at a data race."""
    flags = f"{STRICT} -g -fsanitize=thread"
    (probe := tmp_path / "probe.c").write_text("int main(void) { return 0; }\n")
    try:
        compile_c(probe, tmp_path / "probe", "-fsanitize=thread")
        subprocess.run([tmp_path / "probe"], check=True, capture_output=True)
    except (AssertionError, subprocess.CalledProcessError):
        pytest.skip("this compiler or kernel has no ThreadSanitizer")
    runtime = built_runtime(tmp_path / "runtime", flags)
    source = Path(__file__).parent / "run_images.c"
    binary = compile_c(
        source, tmp_path / "images", *flags.split(), f"-I{runtime}",
        str(runtime / "libtilewright.a"), str(runtime / "driver_shim.o"),
    )  # fmt: skip
    done = piped(binary, art, example, b"".join(images), 2)
    assert (done.code, done.said) == (0, "")
    assert done.output == b"".join(alone)


@pytest.mark.slow(seconds=2)
def test_a_thread_that_fails_ends_the_other(
    example: Example, art: Path, images: list[bytes], alone: list[bytes], tmp_path: Path,
    sanitized: Path,
) -> None:  # fmt: skip
    binary = linked("run_images.c", sanitized, tmp_path / "images", "-pthread")
    whole = b"".join(images)
    read = piped(binary, art, example, whole, 2, fail_at=3)
    assert (read.code, read.said) == (9, "9: reading an image failed\n")
    assert read.output is not None
    assert b"".join(alone).startswith(read.output)
    device = piped(binary, art, example, whole, 2, TIME_OUT=1)
    assert device.code == 7
    assert device.said.startswith("7: the device did not finish (the driver's code is 1)")


@pytest.mark.slow(seconds=2)
def test_the_program_runs_images_of_a_file(
    example: Example, art: Path, images: list[bytes], alone: list[bytes], tmp_path: Path,
    sanitized: Path,
) -> None:  # fmt: skip
    source, output = tmp_path / "input.bin", tmp_path / "output.bin"

    def called(count: str, data: bytes) -> Finished:
        source.write_bytes(data)
        program = sanitized / "tilewright_run"
        command = [program, Path("--images"), Path(count), art, source, output]
        return served(command, example.spec)

    done = called(str(IMAGES), b"".join(images))
    assert (done.code, done.said) == (0, "")
    assert output.read_bytes() == b"".join(alone)
    assert called("2", b"".join(images)).code == 2
    few = called("6", b"".join(images))
    assert few.code == 2
    assert "fewer bytes than those of 6 images" in few.said
    for wrong in ("0", "-1", "many", "5x"):
        assert called(wrong, b"").said.startswith("usage: tilewright_run")


@pytest.mark.slow(seconds=1)
def test_a_number_that_is_none_ends_the_run(tmp_path: Path, sanitized: Path) -> None:
    """The third image contains a float that cannot be quantised (NaN)."""
    from tests.board.boards import write_artifact
    from tests.board.programs import one_layer, with_ports
    from tilewright.targets.layer import Scale

    example = EXAMPLES["cnn"]()
    dense = one_layer("dense:n=1,c=40,o=24", example.spec)
    art = write_artifact(tmp_path / "art", with_ports(dense, Scale(0.0625), Scale(3.5, -7)))
    values = np.zeros((IMAGES, 40), "<f4")
    values[2, 7] = np.nan
    binary = linked("run_images.c", sanitized, tmp_path / "images", "-pthread")
    done = piped(binary, art, example, values.tobytes(), 2)
    assert done.code == 8
    assert "element 7 of input" in done.said
