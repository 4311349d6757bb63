"""Writes one step of an LSTM, a GRU or an RNN, by the equations of the ONNX operators.

With gates g, data x(t) and state h(t-1):

    s(t) = x(t)·Wᵀ + h(t-1)·Rᵀ + Wb + Rb
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.networks.recurrent.writer import RecurrentWriter


@dataclass(frozen=True)
class Direction:
    """`projected` names the sums of products with the data, a step each; `recurrent` the weights
    (hidden, gates · hidden) of the state, `inner` the GRU's bias within its reset, which
    `resets_after` the product or before it."""

    prefix: str
    projected: Sequence[str]
    recurrent: str
    inner: str
    hidden: int
    resets_after: bool
    activations: Sequence[str]


Step = Callable[[RecurrentWriter, Direction, int, str, str], tuple[str, str]]
"""Writes step t behind a state and a cell, each (batch, hidden), "" where it is zero; the next."""


def _sums(w: RecurrentWriter, d: Direction, t: int, state: str) -> str:
    """x(t)·Wᵀ + h(t-1)·Rᵀ and the biases."""
    if not state:
        return d.projected[t]
    product = w.emit("MatMul", [state, d.recurrent], f"{d.prefix}{t}/recurrent")
    return w.emit("Add", [product, d.projected[t]], f"{d.prefix}{t}/sums")


def lstm(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """i, o, f and c are gates: c(t) = f·c(t-1) + i·c, h(t) = o·tanh(c(t))."""
    at, h = f"{d.prefix}{t}/", d.hidden
    *gates, last = w.gates(_sums(w, d, t, state), 4, h, f"{at}gates")
    i, o, f = (
        w.emit(d.activations[0], [gate], f"{at}{name}")
        for name, gate in zip("iof", gates, strict=True)
    )
    new = w.emit("Mul", [i, w.emit(d.activations[1], [last], f"{at}new")], f"{at}taken")
    if cell:
        new = w.emit("Add", [w.emit("Mul", [f, cell], f"{at}kept"), new], f"{at}cell")
    shown = w.emit(d.activations[2], [new], f"{at}shown")
    return w.emit("Mul", [o, shown], f"{at}state"), new


def gru(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """z, r and h are gates: h(t) = (1 - z)·h + z·h(t-1)."""
    at, h = f"{d.prefix}{t}/", d.hidden
    x_gates, x_new = w.split(d.projected[t], [2 * h, h], 1, f"{at}data")
    if state and d.resets_after:
        product = w.emit("MatMul", [state, d.recurrent], f"{at}recurrent")
        h_gates, inner = w.split(product, [2 * h, h], 1, f"{at}products")
    elif state:
        first, last = w.columns(d.recurrent, {"gates": 2 * h, "new": h})
        h_gates = w.emit("MatMul", [state, first], f"{at}recurrent")
    gates = w.emit("Add", [h_gates, x_gates], f"{at}sums") if state else x_gates
    z, r = w.split(w.emit(d.activations[0], [gates], f"{at}opened"), [h, h], 1, f"{at}zr")
    if d.resets_after:
        parts = [name for name in (inner if state else "", d.inner) if name]
        added = w.emit("Add", parts, f"{at}inner") if len(parts) > 1 else "".join(parts)
        reset = w.emit("Mul", [r, added], f"{at}reset") if added else ""
    else:
        kept = w.emit("Mul", [r, state], f"{at}reset") if state else ""
        reset = w.emit("MatMul", [kept, last], f"{at}new_product") if kept else ""
    sums = w.emit("Add", [reset, x_new], f"{at}new_sums") if reset else x_new
    new = w.emit(d.activations[1], [sums], f"{at}new")
    # (1 - z)·new + z·state, as new + z·(state - new)
    if state:
        change = w.emit("Sub", [state, new], f"{at}change")
    else:
        change = w.emit("Neg", [new], f"{at}change")
    moved = w.emit("Mul", [z, change], f"{at}moved")
    return w.emit("Add", [new, moved], f"{at}state"), ""


def rnn(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """h(t) is what the only gate gives."""
    return w.emit(d.activations[0], [_sums(w, d, t, state)], f"{d.prefix}{t}/state"), ""


STEPS: Mapping[str, Step] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}
