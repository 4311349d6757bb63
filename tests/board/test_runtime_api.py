"""Tests the functions of the C runtime library and the supported ways to build it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import HERE, STRICT, compile_c, linked, make, run, served, write_artifact
from tests.board.programs import Made, one_layer, with_ports
from tilewright.targets.layer import Scale
from tilewright.targets.vta.board.runtime import MACHINE, SOURCES, copy_runtime
from tilewright.targets.vta.spec import VtaSpec

PYNQ = VtaSpec.load("vta-pynq")


@pytest.fixture(scope="module")
def dense() -> Made:
    """Return a dense layer with 40 inputs and 24 outputs."""
    return one_layer("dense:n=1,c=40,o=24", PYNQ)


@pytest.mark.slow(seconds=0.5)
def test_every_function_works_and_refuses_wrong_use(
    dense: Made, tmp_path: Path, sanitized: Path
) -> None:
    out = Scale(float(np.float32(3.3)), -7)
    artifact = write_artifact(tmp_path / "art", with_ports(dense, Scale(0.0625), out))
    integers = ((np.arange(40) - 20) * 2).astype(np.int8)
    expected = run(sanitized, write_artifact(tmp_path / "int8", dense.program),
                   integers.tobytes(), PYNQ).output  # fmt: skip
    assert expected is not None
    done = served([linked("use_api.c", sanitized, tmp_path / "use"), artifact], PYNQ)
    assert (done.code, done.said) == (0, "")
    counts = (np.frombuffer(expected, np.int8).astype(np.int64) + 7).astype("<f4")
    assert done.output == (counts * np.float32(3.3)).tobytes() * 2
    assert [patience for _, _, patience in done.streams] == [1000, 1000]


def test_no_allocation_is_taken_for_granted(dense: Made, tmp_path: Path, sanitized: Path) -> None:
    artifact = write_artifact(tmp_path / "art", dense.program)
    binary = linked("fail_memory.c", sanitized, tmp_path / "fail",
                    "-Wno-error=pedantic", "-Wl,--wrap=malloc,--wrap=calloc")  # fmt: skip
    done = served([binary, artifact], PYNQ)
    assert (done.code, done.said) == (0, "")
    assert done.output is not None
    lines = done.output.decode().splitlines()
    assert len(lines) > 10
    assert lines[-1] == "0 "
    assert lines[0] == "5 there is no network: no memory for it, or it was never opened"
    assert all(line.startswith("5 there is no memory for ") for line in lines[1:-1]), lines


def test_outputs_that_cannot_be_written(dense: Made, tmp_path: Path, sanitized: Path) -> None:
    artifact = write_artifact(tmp_path / "art", dense.program)
    (artifact / "input.bin").write_bytes(dense.data.tobytes())
    program = sanitized / "tilewright_run"
    for name, code, said in [
        ("nowhere/output.bin", 2, "cannot write "),
        ("full", 1, "is the disk full?"),
    ]:
        place = Path("/dev/full") if name == "full" else tmp_path / name
        done = served([program, artifact, artifact / "input.bin", place], PYNQ)
        assert (done.code, done.said.count("\n")) == (code, 1)
        assert said in done.said
    assert Path("/dev/full").is_char_device()
    done = served([program, artifact], PYNQ)
    assert done.code == 2
    assert done.said.startswith("usage: tilewright_run ART input.bin output.bin\n")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the runtime's sources, with a driver that is not built yet."""
    assert copy_runtime(tmp_path / "runtime", PYNQ) == (*SOURCES, MACHINE)
    return tmp_path / "runtime"


def usable(sources: Path, dense: Made) -> bool:
    """Return whether the built program `tilewright_run` computes the expected output."""
    artifact = write_artifact(sources / "art", dense.program)
    done = run(sources, artifact, dense.data.tobytes(), PYNQ)
    assert (done.code, done.said) == (0, "")
    return done.output == dense.expected.tobytes()


@pytest.mark.slow(seconds=1)
def test_a_driver_in_cpp_needs_no_more_words(sources: Path, dense: Made) -> None:
    text = (HERE / "driver_shim.c").read_text()
    text = text.replace("  int at = find_start(buf);", "  int at = sought(buf);")
    text = text.replace("static int find_start", CPP + "static int find_start", 1)
    (sources / "driver.cc").write_text("#include <string>\n#include <stdexcept>\n" + text)
    done = subprocess.run(
        ["c++", "-fpermissive", "-w", f"-I{sources}", "-c", str(sources / "driver.cc"),
         "-o", str(sources / "driver.o")], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = make(sources, f"DRIVER={sources / 'driver.o'}")
    assert done.returncode == 0, done.stderr
    assert (done.stderr, "-lstdc++" in done.stdout) == ("", True)
    assert usable(sources, dense)


CPP = """
static int find_start(const void *buf);
static int sought(const void *buf) {
  try {
    int at = find_start(buf);
    if (at < 0) throw std::runtime_error(std::string("nothing of ") + std::to_string(at));
    return at;
  } catch (const std::exception &) {
    return -1;
  }
}
"""


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize("name", ["driver.a", "libdriver.so", "plain.so"])
def test_a_driver_may_be_an_archive_or_a_shared_object(
    name: str, sources: Path, dense: Made
) -> None:
    flags = [*STRICT.split(), f"-I{sources}", "-fPIC"]
    place = sources.parent / "elsewhere" / name
    place.parent.mkdir()
    if name.endswith(".a"):
        part = compile_c(HERE / "driver_shim.c", sources / "driver.o", *flags, "-c")
        subprocess.run(["ar", "rc", str(place), str(part)], check=True)
    else:
        soname = ["-Wl,-soname,libdriver.so"] if name == "libdriver.so" else []
        compile_c(HERE / "driver_shim.c", place, *flags, "-shared", *soname)
    driver = place if name != "libdriver.so" else Path("..") / "elsewhere" / name
    done = make(sources, f"DRIVER={driver}")
    assert (done.returncode, done.stderr) == (0, "")
    assert usable(sources, dense)


@pytest.mark.slow(seconds=1)
def test_another_driver_is_linked_the_next_time(sources: Path, dense: Made) -> None:
    broken = sources / "broken.c"
    broken.write_text("int nothing;\n")
    other = compile_c(broken, sources / "broken.o", "-c")
    done = make(sources, f"DRIVER={other}")
    assert done.returncode != 0
    assert "VTAMemAlloc" in done.stderr
    assert not (sources / "tilewright_run").exists()
    good = compile_c(HERE / "driver_shim.c", sources / "driver.o", f"-I{sources}", "-c")
    assert make(sources, f"DRIVER={good}").returncode == 0
    assert usable(sources, dense)
    done = make(sources)
    assert done.returncode != 0
    assert 'name the driver: make DRIVER="/path' in done.stderr


def test_the_library_builds_alone(sources: Path) -> None:
    done = make(sources, "libtilewright.a", "libtilewright.so", "CC=gcc", f"CFLAGS={STRICT} -O0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gcc -std=c99 -O2 -fPIC -Wall" in done.stdout
    symbols = subprocess.run(
        ["nm", "-g", str(sources / "libtilewright.so")], capture_output=True, text=True, check=True
    ).stdout
    made = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    declared = re.findall(r"\btilewright_\w+(?=\()", (sources / "tilewright.h").read_text())
    assert {name for name in made if not name.startswith("_")} == set(declared)
    wanted = {line.split()[-1] for line in symbols.splitlines() if " U VTA" in line}
    assert wanted == {
        "VTADeviceAlloc", "VTADeviceFree", "VTADeviceRun", "VTAMemAlloc", "VTAMemFree",
        "VTAMemGetPhyAddr", "VTAMemCopyFromHost", "VTAMemCopyToHost",
    }  # fmt: skip
    done = make(sources, "clean")
    assert sorted(path.name for path in sources.iterdir()) == sorted((*SOURCES, MACHINE))


def test_without_a_machine_nothing_is_built(sources: Path) -> None:
    (sources / MACHINE).unlink()
    done = make(sources, "libtilewright.a")
    assert done.returncode != 0
    assert "'tilewright board runtime DIR --target ...'" in done.stderr


def test_cpp_may_include_the_headers(sources: Path) -> None:
    (sources / "use.cc").write_text('#include "tilewright.h"\n#include "driver.h"\n')
    done = subprocess.run(
        ["c++", "-std=c++17", *STRICT.split(), "-fsyntax-only", str(sources / "use.cc")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
