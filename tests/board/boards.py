"""Helpers that build the C runtime with its Makefile and run it on a simulated device.

The runtime's driver talks to the functional VTA simulator, which runs in the test process.
"""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.targets.vta.board.program import BoardProgram
from tilewright.targets.vta.board.program_image import image_files
from tilewright.targets.vta.board.runtime import copy_runtime
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.program import Program, words_of
from tilewright.targets.vta.spec import VtaSpec

HERE = Path(__file__).parent
PYNQ = VtaSpec.load("vta-pynq")
PAIRED = VtaSpec.from_mapping({"LOG_BATCH": 1, "LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 14,
                               "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 16})  # fmt: skip
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
SANITIZED = f"{STRICT} -g -fsanitize=address,undefined -fno-sanitize-recover=all"
MEMORY_BYTES = 2 << 20


@dataclass(frozen=True)
class Finished:
    """Result of a program run on the simulated board.

    `code` is the exit status, `output` the content of the output file (None if there is no file),
    and `said` the messages on standard error. `streams` has one entry (address, instructions,
    patience) per instruction stream that the device ran.
    """

    code: int
    output: bytes | None
    said: str
    streams: list[tuple[int, int, int]] = field(default_factory=list)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `make -C folder`. The caller has to check the exit status."""
    return subprocess.run(
        ["make", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )


def compile_c(source: Path, to: Path, *flags: str) -> Path:
    """Compile a C file. Raise `AssertionError` with the compiler's messages if that fails."""
    done = subprocess.run(
        ["cc", "-std=c99", str(source), *flags, "-o", str(to)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return to


def linked(name: str, runtime: Path, to: Path, *flags: str) -> Path:
    """Compile a program of this folder with sanitizers, linked with a runtime and its driver."""
    return compile_c(
        HERE / name, to, *SANITIZED.split(), f"-I{runtime}", *flags,
        str(runtime / "libtilewright.a"), str(runtime / "driver_shim.o"),
    )  # fmt: skip


def built_runtime(folder: Path, flags: str, spec: VtaSpec = PYNQ) -> Path:
    """Copy and compile the C runtime for a machine. Return its folder.

    The folder then has the sources, the simulated driver and the program `tilewright_run`, all
    compiled with the given flags.
    """
    copy_runtime(folder, spec)
    driver = compile_c(
        HERE / "driver_shim.c", folder / "driver_shim.o", *flags.split(), f"-I{folder}", "-c"
    )
    done = make(folder, f"CFLAGS={flags}", f"DRIVER={driver}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    return folder


def write_artifact(folder: Path, program: BoardProgram, *host_work: str) -> Path:
    """Write the files that the runtime reads into a folder, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in image_files(program, host_work).items():
        (folder / name).write_bytes(data)
    return folder


def run(
    runtime: Path,
    artifact: Path,
    data: bytes,
    spec: VtaSpec,
    *,
    base: int = 4096,
    memory: int = MEMORY_BYTES,
    shim: Mapping[str, object] | None = None,
) -> Finished:
    """Run `tilewright_run` on an input, with `memory` bytes of device memory at address `base`.

    `shim` holds settings of the simulated driver (`driver_shim.c`).
    """
    (source := artifact / "input.bin").write_bytes(data)
    (output := artifact / "output.bin").unlink(missing_ok=True)
    program = runtime / "tilewright_run"
    command = [program, artifact, source, output]
    done = served(command, spec, base=base, size=memory, shim=shim)
    return replace(done, output=output.read_bytes() if output.exists() else None)


def served(
    command: Sequence[Path],
    spec: VtaSpec,
    *,
    base: int = 4096,
    size: int = MEMORY_BYTES,
    shim: Mapping[str, object] | None = None,
) -> Finished:
    """Run a program that is linked with the simulated driver, and serve the driver's requests.

    The `output` of the result is what the program prints.
    """
    memory = os.memfd_create("board")
    os.ftruncate(memory, size)
    (requests, request), (answer, answers) = os.pipe(), os.pipe()
    settings = {
        "MEMORY": memory, "BYTES": size, "BASE": base, "REQUEST": request,
        "ANSWER": answer, **(shim or {}),
    }  # fmt: skip
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **{f"SHIM_{key}": str(value) for key, value in settings.items()}},
        pass_fds=(memory, request, answer), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.close(request)
    os.close(answer)
    streams = []
    with mmap.mmap(memory, size) as view:
        while wanted := os.read(requests, 24):
            address, count, patience = np.frombuffer(wanted, np.uint64).tolist()
            streams.append((address, count, patience))
            _execute(view, base, address, count, spec)
            os.write(answers, b"\0")
    printed, said = process.communicate()
    for handle in (memory, requests, answers):
        os.close(handle)
    return Finished(process.returncode, printed, said.decode(), streams)


def _execute(view: mmap.mmap, base: int, address: int, count: int, spec: VtaSpec) -> None:
    at = address - base
    dram = np.frombuffer(view[:], np.uint8)
    after = simulate(Program(words_of(view[at : at + count * 16]), dram, base), spec).dram
    view[:] = after.tobytes()
