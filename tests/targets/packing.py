"""Numba-compiled encoders of instructions and micro-ops, as kernels call them.

Negative numbers wrap around as in the hardware's bit fields.
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.vta import instruction_format as isa

get = nb.njit(isa.get)
pack_alu = nb.njit(isa.pack_alu)
pack_gemm = nb.njit(isa.pack_gemm)
pack_memory = nb.njit(isa.pack_memory)
pack_uop = nb.njit(isa.pack_uop)
