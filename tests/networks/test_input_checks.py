"""Checks that indices and integer divisors in inputs are refused exactly where onnxruntime does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import session

import tilewright
from tilewright.networks.compiled.c_interface import write_c_interface
from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.networks.errors import ImportFailedError, InputError
from tilewright.networks.model_runner import failures
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.relax.importer import import_onnx
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.spec import CpuSpec

Array = NDArray[Any]
Kinds = Mapping[str, tuple[int, Sequence[int]]]
INT, FLOAT, SHORT = TensorProto.INT64, TensorProto.FLOAT, TensorProto.INT32


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Kinds, outputs: Kinds,
    constants: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "checked",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


class Compiled:
    """A model as a compiled library in this process, and in onnxruntime."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        normal = normalise(model, {}).model
        self._inputs = [info.name for info in normal.graph.input]
        self._outputs = [info.name for info in normal.graph.output]
        module = import_onnx(normal, self._inputs).module
        target = llvm_target(CpuSpec.parse("threads=1"))
        content, weights = compiled_library(module, target, lowering(), module)
        (folder / "network.so").write_bytes(content)
        self._library = LoadedLibrary(folder / "network.so", weights)
        self._theirs = session(model, optimised=True)

    def compare(self, **arrays: Array) -> str:
        """Run the arrays in both. Return our error message, or "" if the outputs are equal.

        The test fails if only one of them refuses the arrays.
        """
        try:
            expected = self._theirs.run(self._outputs, arrays)
        except failures():
            with pytest.raises(InputError) as caught:
                self._library([arrays[name] for name in self._inputs])
            return str(caught.value)
        library = self._library([arrays[name] for name in self._inputs])
        for ours, theirs in zip(library, expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)
        return ""


@pytest.mark.slow(seconds=5)
def test_indices_are_those_that_onnxruntime_takes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["gather"], name="lookup", axis=1),
        helper.make_node("GatherElements", ["x", "e"], ["elements"], name="elements", axis=-1),
        helper.make_node("GatherND", ["x", "n"], ["nd"], name="nd"),
        helper.make_node("ScatterElements", ["x", "e", "u"], ["scattered"], name="set", axis=1),
        helper.make_node("ScatterND", ["x", "n", "v"], ["placed"], name="place"),
        helper.make_node("Gather", ["x", "s"], ["one"], name="one", axis=0),
    ]
    inputs: Kinds = {
        "x": (FLOAT, [3, 5]), "i": (SHORT, [2]), "e": (INT, [3, 2]), "n": (INT, [2, 2]),
        "u": (FLOAT, [3, 2]), "v": (FLOAT, [2]), "s": (INT, []),
    }  # fmt: skip
    outputs: Kinds = {
        "gather": (FLOAT, [3, 2]), "elements": (FLOAT, [3, 2]), "nd": (FLOAT, [2]),
        "scattered": (FLOAT, [3, 5]), "placed": (FLOAT, [3, 5]), "one": (FLOAT, [5]),
    }  # fmt: skip
    both = Compiled(model_of(nodes, inputs, outputs), tmp_path)
    rng = np.random.default_rng(0)
    right: dict[str, Array] = {
        "x": rng.standard_normal((3, 5), np.float32), "i": np.array([4, -5], np.int32),
        "e": np.array([[4, 0], [-5, 1], [2, -1]]), "n": np.array([[2, -5], [-3, 4]]),
        "u": rng.standard_normal((3, 2), np.float32), "v": np.float32([1, 2]), "s": np.array(-3),
    }  # fmt: skip
    assert both.compare(**right) == ""
    for name, node, place, wrong in (
        ("i", "lookup", (0,), (5, -6, 1 << 30)),
        ("e", "elements", (2, 1), (5, -6, 1 << 40)),
        ("n", "nd", (1, 0), (3, -4)),
        ("n", "nd", (0, 1), (5, -6)),
        ("s", "one", (), (3, -4)),
    ):
        for index in wrong:
            array = right[name].copy()
            array[place] = index
            said = both.compare(**{**right, name: array})
            assert f"operator '{node}' got an index outside of" in said
            assert said.endswith("check the values of the inputs")


@pytest.mark.slow(seconds=3)
def test_integers_are_divided_as_by_onnxruntime_and_never_by_zero(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Div", ["a", "b"], ["quotient"], name="quotient"),
        helper.make_node("Mod", ["a", "b"], ["remainder"], name="remainder"),
        helper.make_node("Mod", ["a", "b"], ["rest"], name="rest", fmod=1),
    ]
    inputs: Kinds = {"a": (INT, [2, 3]), "b": (INT, [3])}
    outputs: Kinds = {name: (INT, [2, 3]) for name in ("quotient", "remainder", "rest")}
    both = Compiled(model_of(nodes, inputs, outputs), tmp_path)
    a = np.array([[7, -7, 9], [-9, 0, 1 << 40]])
    for divisor in ([2, -2, 4], [-1, -1, -1], [-5, 7, 1]):
        assert both.compare(a=a, b=np.array(divisor)) == ""
    assert "divides an integer by zero" in both.compare(a=a, b=np.array([1, 0, 1]))
    # onnxruntime would crash the process here, so numpy gives the reference
    least = np.full((2, 3), np.iinfo(np.int64).min)
    quotient, remainder, rest = both._library([least, np.array([-1, -1, 1])])
    np.testing.assert_array_equal(quotient, least)
    assert not remainder.any()
    assert not rest.any()


def test_a_constant_that_is_out_of_range_is_refused_when_the_model_is_read() -> None:
    table, x = np.ones((4, 2), np.float32), {"x": (INT, [3])}
    for node, constants in (
        (
            helper.make_node("Gather", ["t", "i"], ["y"], name="lookup"),
            {"t": table, "i": np.array([4])},
        ),
        (helper.make_node("Mod", ["x", "z"], ["y"], name="rest"), {"z": np.array([0])}),
    ):
        outputs: Kinds = {"y": (INT if "x" in node.input else FLOAT, [3])}
        model = model_of([node], x, outputs, constants)
        with pytest.raises(ImportFailedError, match=f"operator '{node.name}'"):
            import_onnx(model, ["x"])


@pytest.mark.slow(seconds=5)
def test_one_hot_has_the_type_of_its_values(tmp_path: Path) -> None:
    nodes = [helper.make_node("OneHot", ["i", "depth", "values"], ["y"], name="hot")]
    constants = {"depth": np.array(5), "values": np.float32([0.5, 2])}
    model = model_of(nodes, {"i": (INT, [4])}, {"y": (FLOAT, [4, 5])}, constants)
    both = Compiled(model, tmp_path)
    for indices in ([0, 1, 4, 2], [-1, 5, -6, 3]):
        assert both.compare(i=np.array(indices)) == ""


@pytest.mark.slow(seconds=15)
def test_a_token_that_the_table_lacks_is_refused_by_a_session_and_in_c(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["e"], name="embedding"),
        helper.make_node("MatMul", ["e", "w"], ["y"], name="dense"),
    ]
    constants = {
        "table": rng.standard_normal((60, 16), np.float32),
        "w": rng.standard_normal((16, 8), np.float32),
    }
    model = model_of(nodes, {"i": (INT, [1, 5])}, {"y": (FLOAT, [1, 5, 8])}, constants)
    onnx.save(model, tmp_path / "tokens.onnx")
    tilewright.build(tmp_path / "tokens.onnx", tmp_path / "art", target="cpu", trials=0)
    session = tilewright.load(tmp_path / "art", allow_code=True)
    whole = constants["table"] @ constants["w"]
    for token in (0, 59, -60, -1):
        (result,) = session.run(None, {"i": np.full((1, 5), token)})
        np.testing.assert_allclose(result[0], np.tile(whole[token], (5, 1)), 1e-4, 1e-4)
    message = "operator 'embedding' got an index outside of its 60 valid positions"
    for token in (60, -61, 1 << 40):
        with pytest.raises(InputError, match=message):
            session.run(None, {"i": np.full((1, 5), token)})
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    write_c_interface(tmp_path / "capi")
    (tmp_path / "capi" / "run.c").write_text(PROGRAM)
    sources = ["-std=gnu11", "-Iinclude", "run.c", "tilewright_cpu.c", "-o", "run"]
    linked = ["-L.", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]
    subprocess.run(["cc", *sources, *linked], cwd=tmp_path / "capi", check=True)
    network = tmp_path / "art" / "network.so"
    for token, wrong in ((59, False), (-60, False), (60, True)):
        done = subprocess.run(
            ["./run", network, str(token)], cwd=tmp_path / "capi", capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == (1 if wrong else 0)
        if wrong:
            assert message in done.stderr
        else:
            (ours,) = session.run(None, {"i": np.full((1, 5), token)})
            printed = np.array(done.stdout.split(), np.float32)
            np.testing.assert_allclose(printed, ours[0, 0], 1e-6)


PROGRAM = """
#include "tilewright_cpu.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
  static int64_t tokens[5] __attribute__((aligned(64)));
  tilewright_library *net;
  if (count != 3 || tilewright_library_open(words[1], 1, &net)) return 2;
  for (int i = 0; i < 5; i++) tokens[i] = atoll(words[2]);
  tilewright_tensor in = {tokens, {1, 5}, 2, TILEWRIGHT_INT64}, out;
  if (tilewright_library_run(net, &in, 1, &out, 1)) {
    fprintf(stderr, "%s\\n", tilewright_library_error());
    return 1;
  }
  for (int i = 0; i < 8; i++) printf("%.9g ", ((float *)out.data)[i]);
  tilewright_library_close(net);
  return 0;
}
"""
