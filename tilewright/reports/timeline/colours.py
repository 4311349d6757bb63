"""Defines the colours of a timeline: kinds of instructions, and what units wait for."""

from __future__ import annotations

KIND_COLOURS = {
    "LOAD INP": "#4e79a7",
    "LOAD WGT": "#76b7b2",
    "LOAD UOP": "#b07aa1",
    "LOAD ACC": "#9c755f",
    "GEMM": "#2f7d4f",
    "ALU": "#edc948",
    "STORE": "#e15759",
    "no-op": "#4a4a4a",
    "FINISH": "#000000",
}
STALL_COLOURS = {
    "instruction": "#d9d9d9",
    "l2g": "#cfe0f1",
    "g2l": "#c9e7d3",
    "g2s": "#f4e7a8",
    "s2g": "#f6cccc",
}
STALL_LABELS = {
    "instruction": "waits for an instruction",
    "l2g": "waits for l2g (data loaded)",
    "g2l": "waits for g2l (buffer free)",
    "g2s": "waits for g2s (result ready)",
    "s2g": "waits for s2g (result stored)",
}
