"""Estimates the energy of programs from what they access and compute.

    energy = Σ over memories (bytes · energy a byte) + multiplies and adds · their energies

The constants are in `energy.json` beside this file, with their sources. `TILEWRIGHT_ENERGY` names
another file of that form. A byte of a scratchpad costs more the larger it is, by the square root of
its size. Bytes of DRAM and iterations are what the simulator counts. A GEMM iteration reads an
input and a weight, reads and writes an accumulator, and writes an output. An ALU iteration does the
same without input and weight. Left out are leakage, clock, control, padding written to scratchpads,
and the reset of accumulators. So energy here does not grow with time, and compares schedules and
machines; it does not predict a board's watts.

Without a program, estimates of its bytes and instructions take the place of counts. Iterations are
then those of the layer's blocks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.errors import SpecError
from tilewright.core.files import as_object, read_json_file
from tilewright.targets.vta.estimates import ESTIMATES
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.spec import VtaSpec

VARIABLE = "TILEWRIGHT_ENERGY"
_STOCK = Path(__file__).with_name("energy.json")
_INSTRUCTION_BYTES = 16


class EnergyConstants(BaseModel):
    """Picojoules a byte of DRAM and of a scratchpad of `sram_bytes`, of an 8-bit multiply and of a
    32-bit add."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dram_picojoules_per_byte: float = Field(ge=0)
    sram_picojoules_per_byte: float = Field(ge=0)
    sram_bytes: float = Field(gt=0)
    multiply_picojoules: float = Field(ge=0)
    add_picojoules: float = Field(ge=0)
    sources: dict[str, str] = Field(default_factory=dict)


def constants() -> EnergyConstants:
    """Those of the file that counts. Raises `SpecError`."""
    return _read(Path(os.environ.get(VARIABLE) or _STOCK))


@lru_cache(maxsize=4)
def _read(path: Path) -> EnergyConstants:
    try:
        return EnergyConstants.model_validate(as_object(read_json_file(path)))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}; correct {VARIABLE}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(
            f"{path}: {where}: {first['msg'].lower()}; copy {_STOCK} and change its numbers"
        ) from None
    except ValueError as error:
        raise SpecError(
            f"{path} holds no energies: {error}; copy {_STOCK} and change its numbers"
        ) from None


def energy_of(
    spec: VtaSpec, counters: Mapping[str, NDArray[np.int64] | NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Picojoules of programs by what spends them, each of shape (n,), from counters (n,) named as
    those of a measurement; NaN where these are negative. Raises `SpecError` for a file of constants
    that cannot be used."""
    known, m = constants(), spec.machine
    count = {
        name: np.where(values < 0, np.nan, values.astype(np.float64))
        for name, values in counters.items()
    }
    gemms, alus = count["gemm_iterations"], count["alu_iterations"]
    moved = {
        "inp": count["inp_load_bytes"] + gemms * m.inp_bytes,
        "wgt": count["wgt_load_bytes"] + gemms * m.wgt_bytes,
        "acc": count["acc_load_bytes"] + 2 * (gemms + alus) * m.acc_bytes,
        "out": count["out_store_bytes"] + (gemms + alus) * m.out_bytes,
        "uop": count["uop_load_bytes"] + (gemms + alus) * m.uop_bytes,
    }
    sizes = {
        "inp": m.inp_built * m.inp_bytes, "wgt": m.wgt_built * m.wgt_bytes,
        "acc": m.acc_built * m.acc_bytes, "out": m.acc_built * m.out_bytes,
        "uop": m.uop_built * m.uop_bytes,
    }  # fmt: skip
    loaded = ("inp_load_bytes", "wgt_load_bytes", "acc_load_bytes", "uop_load_bytes")
    dram = sum((count[name] for name in loaded), count["out_store_bytes"])
    dram = dram + _INSTRUCTION_BYTES * count["instructions"]
    lanes = m.batch * m.block_out
    mac = known.multiply_picojoules + known.add_picojoules
    found = {
        name: each * known.sram_picojoules_per_byte * np.sqrt(sizes[name] / known.sram_bytes)
        for name, each in moved.items()
    }
    return found | {
        "dram": dram * known.dram_picojoules_per_byte,
        "compute": lanes * (gemms * m.block_in * mac + alus * known.add_picojoules),
    }


def estimated_picojoules(
    spec: VtaSpec, geo: Geometry, operations: int, table: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of schedules, shape (n,), from their estimates, shape (n, columns) as `ESTIMATES`, and so
    many ALU operations an output. Raises as `energy_of`."""
    column = {each.name: table[:, k] for k, each in enumerate(ESTIMATES)}
    outputs = geo.batches * geo.groups * geo.co * geo.oh * geo.ow
    ones = np.ones(len(table))
    counters = {
        "inp_load_bytes": column["inp_bytes"],
        "wgt_load_bytes": column["wgt_bytes"],
        "acc_load_bytes": ones * (geo.bias_bytes + geo.add_bytes),
        "uop_load_bytes": ones * 0,
        "out_store_bytes": ones * geo.out_bytes,
        "instructions": column["instructions"],
        "gemm_iterations": ones * outputs * geo.ci * geo.kh * geo.kw,
        "alu_iterations": ones * outputs * operations,
    }
    return np.asarray(sum(energy_of(spec, counters).values()))


def least_picojoules(spec: VtaSpec, macs: int, geo: Geometry) -> float:
    """What no schedule of a layer goes below: its multiplications, on cores that are always full,
    with weights, and the rows and columns of its input that it reads, loaded once and results
    stored once. Raises as `energy_of`."""
    m = spec.machine
    read = _positions(geo.oh, geo.sh, geo.kh, geo.dh, geo.pad_top, geo.h) / geo.h
    read *= _positions(geo.ow, geo.sw, geo.kw, geo.dw, geo.pad_left, geo.w) / geo.w
    counters = {
        "inp_load_bytes": geo.inp_bytes * read,
        "wgt_load_bytes": geo.groups * geo.co * geo.ci * geo.kh * geo.kw * m.wgt_bytes,
        "acc_load_bytes": 0.0,
        "uop_load_bytes": 0.0,
        "out_store_bytes": geo.out_bytes,
        "instructions": 0.0,
        "gemm_iterations": macs / (m.batch * m.block_in * m.block_out),
        "alu_iterations": 0.0,
    }
    each = energy_of(spec, {name: np.array([float(one)]) for name, one in counters.items()})
    return float(np.sum(list(each.values())))


def _positions(outputs: int, stride: int, kernel: int, dilation: int, pad: int, size: int) -> int:
    """How many rows (columns) of an image windows read."""
    begins = stride * np.arange(outputs)[:, None] + dilation * np.arange(kernel) - pad
    return len(np.unique(begins[(begins >= 0) & (begins < size)]))
