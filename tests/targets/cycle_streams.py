"""Random specifications and random instruction streams to compare cycle simulators with."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.targets.packing import pack_alu, pack_gemm, pack_memory
from tilewright.core.errors import SpecError
from tilewright.targets.vta.instruction_format import (
    ACC,
    FINISH,
    INP,
    LOAD,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    UOP,
    WGT,
    Layout,
    layout_of,
)
from tilewright.targets.vta.spec import VtaSpec

POPS = ({POP_NEXT: 1}, {POP_PREV: 0, POP_NEXT: 3}, {POP_PREV: 2})
PUSHES = ({PUSH_NEXT: 0}, {PUSH_PREV: 1, PUSH_NEXT: 2}, {PUSH_PREV: 3})
# Weights of INP, WGT, UOP and ACC loads, compute, stores, no-ops
STYLES = {
    "mixed": (25, 20, 15, 15, 10, 10, 5),
    "loads": (30, 25, 20, 20, 0, 0, 5),
    "rows": (35, 10, 25, 25, 0, 5, 0),
    "short": (5, 5, 5, 5, 10, 20, 50),
    "padded": (30, 30, 20, 20, 0, 0, 0),
    "compute": (10, 5, 5, 5, 50, 20, 5),
}


def random_spec(r: random.Random, small_scratchpads: bool = False) -> VtaSpec:
    """Draw a specification: blocks, buses, bursts, latencies, tags, queues and counters."""
    small = small_scratchpads
    while True:
        try:
            return VtaSpec.from_mapping(
                {
                    "LOG_BATCH": r.choice([0, 0, 0, 1, 2]),
                    "LOG_BLOCK_IN": r.choice([2, 3, 4, 4, 5]),
                    "LOG_BLOCK_OUT": r.choice([2, 3, 4, 4, 5]),
                    "LOG_UOP_BUFF_SIZE": r.choice([13, 14, 15]),
                    "LOG_INP_BUFF_SIZE": r.choice([10, 12] if small else [13, 14, 15]),
                    "LOG_WGT_BUFF_SIZE": r.choice([12, 13] if small else [15, 16, 18]),
                    "LOG_ACC_BUFF_SIZE": r.choice([12, 13] if small else [15, 16, 17]),
                    "bus_bits": r.choice([64, 64, 128, 256, 512]),
                    "max_burst_beats": r.choice([1, 2, 4, 16, 16, 64, 256, 256]),
                    "memory_latency_cycles": r.choice([16, 16, 16, 1, 2, 5, 40]),
                    "read_tags": r.choice([16, 16, 1, 2, 3, 8, 32]),
                    "instruction_queue_entries": r.choice([512, 512, 2, 3, 4, 8]),
                    "token_limit": r.choice([255, 255, 255, 1, 2, 3]),
                }
            )
        except SpecError:
            continue


@dataclass
class Streams:
    """Generator of random instruction streams for one specification.

    Each stream has its own style and token habits. Some contain a mistake: a token that is never
    pushed, a transfer of no rows, a missing FINISH, or an unknown opcode.
    """

    r: random.Random
    spec: VtaSpec

    def __post_init__(self) -> None:
        self.layout: Layout = layout_of(self.spec)

    def stream(self, length: int) -> NDArray[np.uint64]:
        r = self.r
        self.style = r.choice([*STYLES, "mixed"])
        self.there = [0, 0, 0, 0]
        self.pop_rate, self.push_rate = r.choice([0.2, 0.6, 0.9]), r.choice([0.2, 0.5, 0.9])
        self.wild = r.random() < 0.05
        self.long = r.random() < 0.15
        insns = []
        for _ in range(length):
            insns.append(self._insn(r.choices(range(7), STYLES[self.style])[0]))
            if r.random() < 0.0003:
                insns.append((r.choice([5, 6, 7, 5 << 7]), 0))
        if r.random() < 0.05:
            insns.insert(r.randrange(len(insns)), (FINISH, 0))
        if r.random() < 0.97:
            insns.append((FINISH, 0))
        return np.array(insns, np.uint64)

    def _insn(self, kind: int) -> tuple[int, int]:
        r = self.r
        if kind < 4:
            return self._load((INP, WGT, UOP, ACC)[kind], 0 if kind < 2 else 1)
        if kind == 4:
            return self._compute()
        if kind == 5:
            y_size, x_size = r.choice([1, 1, 2, 4, 9]), r.choice([1, 2, 3, 10, 40, 0])
            stride = r.choice([x_size, x_size + 3, r.randrange(200)])
            return self._memory(STORE, 2, r.randrange(8), y_size, x_size, stride, (0, 0, 0, 0))
        module = r.randrange(3)
        opcode = STORE if module == 2 else LOAD
        return self._memory(opcode, module, UOP if module == 1 else INP, 0, 0, 0, (0, 0, 0, 0))

    def _load(self, memory: int, module: int) -> tuple[int, int]:
        r = self.r
        y_size, x_size = r.choice([1, 1, 2, 3, 5, 8, 20]), r.choice([1, 1, 2, 3, 4, 7, 16, 33])
        if self.style == "rows":
            y_size, x_size = r.choice([1, 8, 20, 40]), r.choice([1, 1, 2])
        if self.long:
            x_size = r.choice([x_size, 100, 300])
        if memory == WGT:
            x_size, y_size = min(x_size, 20), min(y_size, 6)
        if r.random() < 0.01:
            y_size = 0
        if r.random() < 0.05:
            x_size = 0
        padded = self.style == "padded" or r.random() < 0.2
        pads = tuple(r.choice([0, 0, 1, 2, 3, 15]) if padded else 0 for _ in range(4))
        stride = r.choice([x_size, x_size + 1, r.randrange(64), 0, r.randrange(1 << 16)])
        return self._memory(LOAD, module, memory, y_size, x_size, stride, pads)

    def _memory(
        self, opcode: int, module: int, memory: int, y: int, x: int, stride: int,
        pads: tuple[int, ...],
    ) -> tuple[int, int]:  # fmt: skip
        address = self.r.randrange(1 << self.r.choice([8, 16, 32]))
        flags = self._flags(module)
        return pack_memory(opcode, flags, memory, 0, address, y, x, stride, *pads)

    def _compute(self) -> tuple[int, int]:
        r, lay = self.r, self.layout
        bgn = r.randrange(20)
        end = bgn + r.choice([1, 1, 2, 3, 10])
        iter_out, iter_in = r.choice([1, 2, 5, 20]), r.choice([1, 3, 7])
        if r.random() < 0.003:
            iter_out, iter_in, end = 0, 1, bgn + 1
        flags = self._flags(1)
        if r.random() < 0.5:
            reset = r.randrange(2)
            return pack_gemm(lay, flags, reset, bgn, end, iter_out, iter_in, 1, 2, 3, 1, 2, 3)
        alu, imm = r.randrange(4), r.randrange(2)
        return pack_alu(lay, flags, bgn, end, iter_out, iter_in, 1, 2, 1, 2, alu, imm, -3)

    def _flags(self, module: int) -> int:
        """Draw token flags. Most pops have an earlier push, so that the stream does not hang."""
        flags = 0
        for flag, queue in POPS[module].items():
            there = self.there[queue] > 0 and self.r.random() < self.pop_rate
            if there or (self.wild and self.r.random() < 0.02):
                flags |= flag
                self.there[queue] -= 1
        for flag, queue in PUSHES[module].items():
            if self.r.random() < self.push_rate:
                flags |= flag
                held = self.spec.token_limit if self.spec.token_limit < 255 else 1 << 30
                self.there[queue] = min(self.there[queue] + 1, held)
        return flags
