"""The simplest possible VTA interpreter: one iteration and one value at a time, in Python integers.

It shares only the decoder of instruction words with the simulator. All scratchpad indices are taken
modulo the depth.
"""

from __future__ import annotations

import numpy as np

from tilewright.targets.vta.instruction_format import decode, layout_of
from tilewright.targets.vta.spec import VtaSpec


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Interpreter:
    def __init__(self, spec: VtaSpec, dram: bytes, base: int) -> None:
        self.spec, self.m, self.lay = spec, spec.machine, layout_of(spec)
        m = self.m
        self.dram, self.base = bytearray(dram), base
        self.uop = [0] * (1 << m.log_uop_depth)
        self.inp = np.zeros((1 << m.log_inp_depth, m.batch * m.block_in), np.int64)
        self.wgt = np.zeros((1 << m.log_wgt_depth, m.block_out * m.block_in), np.int64)
        self.acc = np.zeros((1 << m.log_acc_depth, m.batch * m.block_out), np.int64)

    def run(self, insns: bytes) -> bytes:
        """Run the instructions in program order.

        This is correct for streams in which every instruction waits for its predecessor, and for
        streams that only one module runs.
        """
        for at in range(0, len(insns), 16):
            v = decode(int.from_bytes(insns[at : at + 16], "little"), self.lay)
            getattr(self, ("load", "store", "gemm", "finish", "alu")[v["opcode"]])(v)
        return bytes(self.dram)

    def finish(self, v: dict[str, int]) -> None:
        pass

    def values(self, at: int, count: int, bits: int) -> list[int]:
        raw = int.from_bytes(self.dram[at : at + count * bits // 8], "little")
        return [signed(raw >> (k * bits), bits) for k in range(count)]

    def load(self, v: dict[str, int]) -> None:
        m = self.m
        if v["x_size"] == 0:
            return
        memory, bits, size = {
            0: (self.uop, 0, m.uop_bytes),
            1: (self.wgt, m.wgt_bits, m.wgt_bytes),
            2: (self.inp, m.inp_bits, m.inp_bytes),
            3: (self.acc, m.acc_bits, m.acc_bytes),
            5: (self.acc, 8, m.acc_bytes),
        }[v["memory_type"]]
        start = v["dram_base"] * size % (1 << 32)
        if v["memory_type"] == 5:
            start, size = start // 4, size // 4
        n = v["sram_base"]
        for y in range(-v["y_pad_0"], v["y_size"] + v["y_pad_1"]):
            for x in range(-v["x_pad_0"], v["x_size"] + v["x_pad_1"]):
                inside = 0 <= y < v["y_size"] and 0 <= x < v["x_size"]
                at = start - self.base + (y * v["x_stride"] + x) * size
                index = n % len(memory)
                if v["memory_type"] == 0:
                    raw = int.from_bytes(self.dram[at : at + size], "little")
                    self.uop[index] = raw if inside else 0
                else:
                    count = memory.shape[1]
                    memory[index] = self.values(at, count, bits) if inside else [0] * count
                n += 1

    def store(self, v: dict[str, int]) -> None:
        m = self.m
        size, bits = m.out_bytes, m.inp_bits
        for y in range(v["y_size"] if v["x_size"] else 0):
            for x in range(v["x_size"]):
                row = self.acc[(v["sram_base"] + y * v["x_size"] + x) % len(self.acc)]
                raw = sum(
                    (int(value) & (1 << bits) - 1) << (k * bits) for k, value in enumerate(row)
                )
                at = v["dram_base"] * size % (1 << 32) - self.base
                at += (y * v["x_stride"] + x) * size
                self.dram[at : at + size] = raw.to_bytes(size, "little")

    def iterations(self, v: dict[str, int]):
        lay = self.lay
        for i in range(v["iter_out"]):
            for j in range(v["iter_in"]):
                for k in range(v["uop_bgn"], v["uop_end"]):
                    word = self.uop[k % len(self.uop)]
                    d = word & (1 << lay.uop_dst_bits) - 1
                    word >>= lay.uop_dst_bits
                    s = word & (1 << lay.uop_src_bits) - 1
                    t = word >> lay.uop_src_bits & (1 << lay.uop_wgt_bits) - 1
                    d += i * v["dst_factor_out"] + j * v["dst_factor_in"]
                    s += i * v["src_factor_out"] + j * v["src_factor_in"]
                    t += i * v.get("wgt_factor_out", 0) + j * v.get("wgt_factor_in", 0)
                    yield d % len(self.acc), s, t

    def gemm(self, v: dict[str, int]) -> None:
        m = self.m
        for d, s, t in self.iterations(v):
            if v["reset_reg"]:
                self.acc[d] = 0
                continue
            inp = self.inp[s % len(self.inp)].reshape(m.batch, m.block_in)
            wgt = self.wgt[t % len(self.wgt)].reshape(m.block_out, m.block_in)
            sums = self.acc[d] + (inp @ wgt.T).reshape(-1)
            self.acc[d] = [signed(int(value), m.acc_bits) for value in sums]

    def alu(self, v: dict[str, int]) -> None:
        bits = self.m.acc_bits
        for d, s, _ in self.iterations(v):
            ys = [v["imm"]] * self.acc.shape[1] if v["use_imm"] else self.acc[s % len(self.acc)]
            results = []
            for x, y in zip(self.acc[d].tolist(), (int(y) for y in ys), strict=True):
                results.append(signed(self.operation(v, x, y), bits))
            self.acc[d] = results

    def operation(self, v: dict[str, int], x: int, y: int) -> int:
        match v["alu_opcode"]:
            case 0:
                return min(x, y)
            case 1:
                return max(x, y)
            case 2:
                return x + y
            case 3 if v["use_imm"]:
                return x >> min(y, 31) if y >= 0 else (x << -y if y > -32 else 0)
            case 3:
                return x >> (y % 32) if y >= 0 else x << (-y % 32)
            case _:
                return x * y
