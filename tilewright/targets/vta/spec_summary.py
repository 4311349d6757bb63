"""Summary of a VTA for users: configuration keys with units, derived sizes, and the area."""

from __future__ import annotations

from tilewright.targets.registry import Property
from tilewright.targets.vta.area import area_of
from tilewright.targets.vta.spec import VtaSpec

KEYS, SIZES, AREA = "specification", "derived figures", "area (model)"


def summary_figures(spec: VtaSpec) -> dict[str, str]:
    """Return the sizes and speeds by which users compare machines, by column name of a table."""
    m = spec.machine
    buffers = (
        m.uop_built * m.uop_bytes, m.inp_built * m.inp_bytes,
        m.wgt_built * m.wgt_bytes, m.acc_built * m.acc_bytes,
    )  # fmt: skip
    return {
        "block": f"{m.batch}×{m.block_in}×{m.block_out}",
        "uop/inp/wgt/acc KiB": "/".join(f"{size / 1024:g}" for size in buffers),
        "bus": f"{spec.bus_bits} bit × {spec.max_burst_beats}",
        "clock": f"{spec.clock_mhz:g} MHz",
        "area": f"{area_of(spec).relative:.2f}",
    }


def properties(spec: VtaSpec) -> list[Property]:
    """List the properties of a machine: all configuration keys, derived sizes, and the area."""
    return [*_keys(spec), *_sizes(spec), *_area(spec)]


def _keys(spec: VtaSpec) -> list[Property]:
    rows = []
    for name, field in VtaSpec.model_fields.items():
        extra = field.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        meaning = field.description or ""
        value = getattr(spec, name)
        if unit.startswith("log2"):
            meaning += f": {1 << value:,}{unit.removeprefix('log2')}"
        rows.append(Property(KEYS, field.serialization_alias or name, value, unit, meaning))
    return rows


def _sizes(spec: VtaSpec) -> list[Property]:
    m, clock_hz = spec.machine, spec.clock_mhz * 1e6
    return [
        Property(SIZES, "block", f"{m.batch}×{m.block_in}×{m.block_out}", "values",
                 "rows × input channels × output channels of one GEMM step"),
        Property(SIZES, "uop_depth", m.uop_built, "micro-ops", "capacity of the micro-op buffer"),
        Property(SIZES, "inp_depth", m.inp_built, "elements",
                 f"capacity of the input buffer, elements of {m.inp_bytes} bytes"),
        Property(SIZES, "wgt_depth", m.wgt_built, "elements",
                 f"capacity of the weight buffer, elements of {m.wgt_bytes} bytes"),
        Property(SIZES, "acc_depth", m.acc_built, "elements",
                 f"capacity of the accumulators, elements of {m.acc_bytes} bytes"),
        Property(SIZES, "peak", spec.macs_per_cycle * clock_hz / 1e9, "GMAC/s",
                 f"{spec.macs_per_cycle:,} multiply-accumulates per cycle"),
        Property(SIZES, "bandwidth", m.bus_bytes * clock_hz / 1e9, "GB/s",
                 f"at most {m.bus_bytes} bytes per cycle"),
    ]  # fmt: skip


def _area(spec: VtaSpec) -> list[Property]:
    area = area_of(spec)
    return [
        Property(AREA, "relative", round(area.relative, 3), "",
                 "relative to the stock 16×16 machine; for comparing machines, not in mm²"),
        Property(AREA, "gates", round(area.gates), "gates",
                 "gate equivalents, with textbook weights"),
        Property(AREA, "sram_bits", area.sram_bits, "bits", "all scratchpads together"),
        Property(AREA, "queue_bits", area.queue_bits, "bits", "instruction queues"),
        Property(AREA, "multipliers", area.multipliers, "",
                 f"of {1 << spec.log_inp_width}×{1 << spec.log_wgt_width} bits each"),
        Property(AREA, "alu_lanes", area.alu_lanes, "", f"of {1 << spec.log_acc_width} bits each"),
        Property(AREA, "flip_flops", area.flip_flops, "bits", "GEMM and ALU pipelines"),
    ]  # fmt: skip
