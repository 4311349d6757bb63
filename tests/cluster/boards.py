"""Simulated boards: a driver that is linked with the C runtime calls the simulator of this process.

A test can make the device hang, answer late, never answer, or compute wrong data.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
from collections import deque
from pathlib import Path

import numpy as np

from tilewright.targets.vta.board.runtime import copy_runtime
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.program import Program, words_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import simulate_program

HERE = Path(__file__).parent
MEMORY_BYTES, BASE = 1 << 20, 4096


def compiled_driver(folder: Path) -> Path:
    """Compile the simulated driver in a new folder and return its object file."""
    copy_runtime(folder, VtaSpec.load("vta-pynq"))
    driver = folder / "driver_simulator.o"
    subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{folder}", "-c",
         str(HERE / "driver_simulator.c"), "-o", str(driver)],
        check=True,
    )  # fmt: skip
    return driver


class SimulatedBoard:
    """A simulated board whose device memory is a file in its own folder.

    Use it as a context manager. Each entry of `faults` applies to one of the next programs: "" (no
    fault), "time-out" (the driver reports it), "hang" (the device never answers) or "wrong" (one
    byte of memory is changed). `reset_command` counts the resets in a file.
    """

    def __init__(self, folder: Path, spec: VtaSpec) -> None:
        folder.mkdir(parents=True)
        self.folder, self.spec = folder, spec
        self.faults: deque[str] = deque()
        self.streams = 0
        with (folder / "memory").open("wb") as file:
            file.truncate(MEMORY_BYTES)
        self.held: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen()

    def __enter__(self) -> SimulatedBoard:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for record in self.held:
            record.close()

    @property
    def environment(self) -> dict[str, str]:
        return {"SIMULATOR": str(self.folder)}

    @property
    def reset_command(self) -> str:
        return f"sh -c 'echo reset >> {self.folder}/resets'"

    @property
    def resets(self) -> int:
        return (self.folder / "resets").read_text().count("reset")

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            request = link.recv(16)
            if len(request) < 16:
                link.close()
                continue
            address, count = np.frombuffer(request, np.uint64).tolist()
            self.streams += 1
            fault = self.faults.popleft() if self.faults else ""
            if fault == "hang":
                self.held.append(link)
                continue
            cycles = 0 if fault == "time-out" else self._execute(address, count, fault)
            link.sendall(np.array([fault == "time-out", cycles], np.uint64).tobytes())
            link.close()

    def _execute(self, address: int, count: int, fault: str) -> int:
        file = os.open(self.folder / "memory", os.O_RDWR)
        with mmap.mmap(file, MEMORY_BYTES) as view:
            os.close(file)
            at = address - BASE
            words = words_of(view[at : at + count * 16])
            before = np.frombuffer(view[:], np.uint8)
            after = simulate(Program(words, before, BASE), self.spec).dram.copy()
            if fault == "wrong":  # change a byte that the stream wrote
                after[np.flatnonzero(after != before)[:3]] ^= 1
            view[:] = after.tobytes()
        return simulate_program(words, self.spec, address).total
