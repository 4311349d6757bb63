"""Reduces a model that fails a check to the smallest part that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx
from onnx.utils import Extractor

from benchmarks.artifacts.cases import INFERENCES, SAMPLES, Case
from benchmarks.artifacts.forms import feeds_of
from benchmarks.artifacts.numbers import run_in_onnxruntime

MOST = 60
"""Maximum number of parts that are tried."""


def shrink_case(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Reduce a case to a smaller part of the model for which `fails` still returns True.

    The part is first shortened at the end and then at the beginning. Parts begin and end at float
    tensors only, and keep the shapes of their tensors. At most `MOST` parts are tried.
    """
    left = [MOST]
    for parts in (_beginnings, _ends):
        for part in parts(case):
            if left[0] == 0:
                return case
            left[0] -= 1
            if fails(part):
                case = part
                break
    return case


def _beginnings(case: Case) -> Iterator[Case]:
    """Yield parts from the inputs to one tensor, the smallest part first."""
    inputs = [info.name for info in case.model.graph.input]
    yield from _parts(case, [(inputs, [name]) for name in _floats(case.model)])


def _ends(case: Case) -> Iterator[Case]:
    """Yield parts from one tensor to the outputs, the smallest part first."""
    outputs = [info.name for info in case.model.graph.output]
    names = [name for name in reversed(_floats(case.model)) if name not in outputs]
    yield from _parts(case, [([name], outputs) for name in names])


def _parts(case: Case, borders: list[tuple[list[str], list[str]]]) -> Iterator[Case]:
    typed = onnx.shape_inference.infer_shapes(case.model)
    whole = len(case.model.graph.node)
    for inputs, outputs in borders:
        try:
            model = Extractor(typed).extract_model(inputs, outputs)
            onnx.checker.check_model(model)
            feeds = feeds_of(model, INFERENCES, 7)
            right = run_in_onnxruntime(model, feeds)
        except Exception:  # no part can be cut there
            continue
        if 0 < len(model.graph.node) < whole:
            yield replace(
                case, model=model, feeds=feeds, right=right, samples=feeds_of(model, SAMPLES, 8)
            )


def _floats(model: onnx.ModelProto) -> list[str]:
    """Return the float tensors in the order of their computation, without constants."""
    constant = {tensor.name for tensor in model.graph.initializer}
    made = []
    for node in model.graph.node:
        reads = [name for name in node.input if name]
        if all(name in constant for name in reads):
            constant |= set(node.output)
        elif node.op_type != "QuantizeLinear":
            made += list(node.output)
    return made
