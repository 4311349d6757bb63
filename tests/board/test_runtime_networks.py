"""Checks that the C runtime gives the outputs of `tilewright run` for multi-layer networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import run
from tests.board.graphs import EXAMPLES
from tilewright.targets.vta.board.artifact_builder import VtaProgram, build


@pytest.mark.parametrize("name", ["cnn", "skip"])
def test_a_board_computes_what_python_does(name: str, tmp_path: Path, sanitized: Path) -> None:
    example = EXAMPLES[name]()
    made = build(example.graph, example.random_picks(2), example.spec)
    assert made.why_not_bare == ""
    for file, data in made.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(data)
    program = VtaProgram.open(made.files, made.layers, example.spec)
    inputs = example.drawn(7)
    outputs = program.run(0, inputs)
    expected = b"".join(
        np.ascontiguousarray(outputs[port.name]).tobytes()
        for port in program.program.steps[0].stores
    )
    done = run(sanitized, tmp_path, inputs["x"].tobytes(), example.spec, base=1 << 20)
    assert (done.code, done.said) == (0, "")
    assert done.output == expected


def test_what_the_host_has_to_do_is_refused_by_name(tmp_path: Path, sanitized: Path) -> None:
    example = EXAMPLES["host"]()
    made = build(example.graph, example.random_picks(2), example.spec)
    assert made.why_not_bare == "the host must compute negate"
    for file, data in made.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(data)
    done = run(sanitized, tmp_path, example.drawn(7)["x"].tobytes(), example.spec)
    assert done.code != 0
    assert "the host must compute negate" in done.said
