"""Energy model: estimates the energy of programs from their memory accesses and operations.

    energy = Σ over memories (bytes · energy per byte) + operations · energy per operation

The constants and their sources are in `energy.json` next to this file. The environment variable
`TILEWRIGHT_ENERGY` can name another file of the same form. The energy per byte of a scratchpad
grows with the square root of its size.

The simulator counts DRAM bytes and iterations. A GEMM iteration reads an input and a weight, reads
and writes an accumulator, and writes an output. An ALU iteration does the same without the input
and the weight. For schedules that are not compiled, estimated bytes and instructions replace the
counts, and the iterations follow from the number of blocks of the layer.

The model ignores leakage, clock, control, padding that is written to scratchpads, and the reset of
accumulators. The energy therefore does not depend on the latency. The model compares schedules and
machines; it does not predict the power of a board.
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
    """Energy per memory access and per operation.

    Attributes:
        dram_picojoules_per_byte: energy to transfer one byte from or to DRAM.
        sram_picojoules_per_byte: energy to access one byte of a scratchpad of `sram_bytes` bytes.
        sram_bytes: size of the scratchpad to which `sram_picojoules_per_byte` refers.
        multiply_picojoules: energy of an 8-bit multiplication.
        add_picojoules: energy of a 32-bit addition.
        sources: source of each constant, by name of the constant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dram_picojoules_per_byte: float = Field(ge=0)
    sram_picojoules_per_byte: float = Field(ge=0)
    sram_bytes: float = Field(gt=0)
    multiply_picojoules: float = Field(ge=0)
    add_picojoules: float = Field(ge=0)
    sources: dict[str, str] = Field(default_factory=dict)


def constants() -> EnergyConstants:
    """Read the energy constants from the file that `TILEWRIGHT_ENERGY` names, or the shipped file.

    Raises:
        SpecError: the file cannot be read or is invalid.
    """
    return _read(Path(os.environ.get(VARIABLE) or _STOCK))


@lru_cache(maxsize=4)
def _read(path: Path) -> EnergyConstants:
    try:
        return EnergyConstants.model_validate(as_object(read_json_file(path)))
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}; correct the variable {VARIABLE}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(
            f"{path}: {where}: {first['msg'].lower()}; copy {_STOCK} and change its numbers"
        ) from None
    except ValueError as error:
        raise SpecError(
            f"{path} does not contain energies: {error}; copy {_STOCK} and change its numbers"
        ) from None


def energy_of(
    spec: VtaSpec, counters: Mapping[str, NDArray[np.int64] | NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Estimate the energy of measured programs, split by consumer.

    The consumers are the scratchpads (`inp`, `wgt`, `acc`, `out`, `uop`), `dram` and `compute`.

    Args:
        spec: the machine.
        counters: counters of n programs, named like the counters of a measurement, each of shape
            (n,); negative if unknown.

    Returns:
        Picojoules by consumer, float64, shape (n,) each; NaN if a counter is unknown.

    Raises:
        SpecError: the file of constants is invalid.
    """
    per_operation, m = constants(), spec.machine
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
    mac = per_operation.multiply_picojoules + per_operation.add_picojoules
    energies = {
        name: accessed_bytes
        * per_operation.sram_picojoules_per_byte
        * np.sqrt(sizes[name] / per_operation.sram_bytes)
        for name, accessed_bytes in moved.items()
    }
    return energies | {
        "dram": dram * per_operation.dram_picojoules_per_byte,
        "compute": lanes * (gemms * m.block_in * mac + alus * per_operation.add_picojoules),
    }


def estimated_picojoules(
    spec: VtaSpec, geo: Geometry, operations: int, table: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Estimate the energy of schedules that were not compiled.

    Args:
        spec: the machine.
        geo: geometry of the workload.
        operations: number of ALU operations per output.
        table: closed-form estimates of n schedules, with the columns `ESTIMATES`, shape (n,
            columns).

    Returns:
        Picojoules, float64, shape (n,).

    Raises:
        SpecError: the file of constants is invalid.
    """
    column = {feature.name: table[:, k] for k, feature in enumerate(ESTIMATES)}
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
    """Return a lower bound on the energy of a layer over all schedules, in picojoules.

    The bound assumes full utilisation of the GEMM core. It counts one load of the weights and of
    the input rows and columns that the layer reads, and one store of the results.

    Args:
        spec: the machine.
        macs: number of multiply-accumulates of the layer.
        geo: geometry of the workload.

    Raises:
        SpecError: the file of constants is invalid.
    """
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
    energies = energy_of(spec, {name: np.array([float(one)]) for name, one in counters.items()})
    return float(np.sum(list(energies.values())))


def _positions(outputs: int, stride: int, kernel: int, dilation: int, pad: int, size: int) -> int:
    """Count the distinct image rows (or columns) that the windows read.

    Args:
        outputs: number of output rows (or columns).
        stride: stride of the windows.
        kernel: size of a window.
        dilation: distance between two elements of a window.
        pad: padding before the image.
        size: size of the image.
    """
    begins = stride * np.arange(outputs)[:, None] + dilation * np.arange(kernel) - pad
    return len(np.unique(begins[(begins >= 0) & (begins < size)]))
