"""Checks that names from an untrusted file cannot inject code into a generated C file."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.errors import TilewrightError
from tilewright.targets import make_target
from tilewright.targets.capabilities import NamedSchedule
from tilewright.targets.gemmini.c_export import (
    CIdentifiers,
    SegmentCommands,
    c_network,
    comment,
    is_header_name,
)
from tilewright.targets.gemmini.isa import FENCE
from tilewright.targets.gemmini.lowering.command_encoding import commands
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE
from tilewright.targets.gemmini.network_memory import HostTensor, TensorPlace
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.attack

MARK = "int injected_mark;"
ATTACKS = (
    f"x *\\\n/ {MARK} /*",
    f"x */ {MARK} /*",
    f"x *\\\r\n/ {MARK} /*",
    f"x *??/\n/ {MARK} /*",
    f"x\n{MARK}\n",
    f'x"\n{MARK}\n#include "',
    f"x *\\ \n/ {MARK} /*",
    f"x\u2028*/{MARK}/*",
    "int",
    "main",
    "1x1",
    "",
    "gemmini_run",
    "é" * 300,
)
PREFIX = """\
#define GEMMINI_COMMAND(funct, rs1, rs2) ((void)(rs1), (void)(rs2))
#define GEMMINI_FENCE() ((void)0)
"""


def compiled_symbols(source: str, folder: Path, standard: str) -> set[str]:
    """Compile a C file without warnings and return the symbols that it defines."""
    (folder / "out.c").write_text(PREFIX + source)
    options = [f"-std={standard}", "-trigraphs", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]
    subprocess.run(["cc", *options, "-c", "out.c", "-o", "out.o"], cwd=folder, check=True)
    result = subprocess.run(
        ["nm", "--defined-only", "out.o"], cwd=folder, check=True, capture_output=True, text=True
    )
    return {line.split()[-1] for line in result.stdout.splitlines()}


def tensor(name: str) -> HostTensor:
    place = TensorPlace("rows", MEMORY_BASE, 16)
    return HostTensor(name, (4, 16), "int8", (4, 16), None, place)


def network_source(names: Sequence[str], machine: str) -> tuple[str, str]:
    program = commands([(FENCE, 0, 0)])
    tensors = [tensor(name) for name in names]
    spec = GemminiSpec.load("gemmini-default").model_copy(update={"name": machine})
    segment = SegmentCommands(program, tensors, tensors)
    return c_network(spec, 64, [(MEMORY_BASE, b"abcd")], [segment], "out_weights.h")


@pytest.mark.parametrize("standard", ["c99", "gnu11"])
@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_names_of_tensors_and_machines_become_no_code(
    attack: str, standard: str, tmp_path: Path
) -> None:
    source, header = network_source([attack, "y"], attack)
    (tmp_path / "out_weights.h").write_text(header)
    assert MARK not in source
    symbols = compiled_symbols(source, tmp_path, standard)
    assert {name for name in symbols if not name.startswith("gemmini_")} == set()


def test_names_of_layers_become_identifiers(tmp_path: Path) -> None:
    target = make_target("gemmini")
    assert isinstance(target, GemminiTarget)
    workload = parse_workload("dense:n=1,c=16,o=16")
    space = target.space(workload)
    knobs = space.describe([0] * len(space.knobs))
    names = [*ATTACKS, "a/b", "a_b", "a_b", "a_b_words"]
    schedules = [NamedSchedule(name, workload, space.name, knobs, 1e-3) for name in names]
    source = target.export_schedules(schedules, 0.0).text
    assert MARK not in source
    symbols = compiled_symbols(source, tmp_path, "c99")
    functions = {name for name in symbols if not name.endswith("_words")} - {"gemmini_run"}
    assert len(functions) == len(names)
    assert {"a_b", "a_b_2", "a_b_3", "layer_int", "layer_main", "layer_1x1"} <= functions


@given(st.lists(st.text(max_size=80), max_size=8, unique=True))
@settings(max_examples=200, deadline=None)
def test_different_names_have_different_identifiers(names: list[str]) -> None:
    identifiers = CIdentifiers("tensor")
    made = [identifiers.identify(name) for name in names]
    assert made == [identifiers.identify(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", item) for item in made)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_a_comment_holds_no_syntax(text: str) -> None:
    assert not set(comment(text)) & set("*/\\?\"'\n\r\u2028#")


@pytest.mark.parametrize("name", ['a".h', "a\\.h", "a\n.h", "a??/.h", "", "a/b.h"])
def test_a_header_that_c_cannot_include_is_refused(name: str) -> None:
    assert not is_header_name(name)
    with pytest.raises(TilewrightError, match="name the file with letters"):
        c_network(GemminiSpec.load("gemmini-default"), 64, [], [], name)
