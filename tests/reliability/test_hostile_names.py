"""Checks that names chosen by an attacker are printed and recorded as plain text."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.conftest import Place
from tilewright.core.user_text import printable
from tilewright.reports.markdown import block, code, escape_text
from tilewright.services.prefect_server import Login

pytestmark = pytest.mark.attack

NAME = "/a/[bold red]x[/]\x1b[31m\x1b]0;t\x07\r|`*$\\q_$ <script>alert(1)</script>"
SHOWN = printable(NAME)
FILE = "m [red]\x1b[2J &<b>.onnx"


def _model() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.ones((16, 16, 1, 1), np.float32), "w")
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 16, 4, 4]) for name in "xy"
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], name=NAME, kernel_shape=[1, 1])
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _clean(text: str) -> bool:
    """Return whether a text has only characters that a terminal shows."""
    return text == printable(text, keep="\n")


@pytest.mark.nightly(seconds=11)
def test_names_of_a_model_are_shown_escaped_everywhere(
    tmp_path: Path, prefect_server: Login
) -> None:
    place = Place(tmp_path, prefect_server)
    onnx.save(_model(), place.folder / FILE)
    asked = place.run("inspect", FILE)
    assert asked.returncode == 0, asked.stderr
    assert "[bold" in asked.stdout
    assert "\\x1b" in asked.stdout
    tuned = place.run("tune", FILE, "--trials", "2", "--batch", "2", "--out", "out")
    assert tuned.returncode == 0, tuned.stderr
    shown = place.run("trials", "out")
    assert SHOWN[:12] in shown.stdout
    for done in (asked, tuned, shown):
        assert _clean(done.stdout + done.stderr)
    picture = (place.folder / "out" / "convergence.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert json.loads((place.folder / "out" / "run.json").read_text())
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        values = [
            value
            for table in ("tags", "params")
            for (value,) in database.execute(f"select value from {table}")
        ]
        names = [name for (name,) in database.execute("select name from runs")]
    assert all(map(_clean, names))
    assert any(SHOWN in value for value in values)
    (note,) = (value for value in values if value.startswith("A workload of"))
    assert _clean(note)
    assert f"**{escape_text(SHOWN)}" in note
    assert "<script>" not in note.replace(code(SHOWN), "")


@pytest.mark.slow(seconds=4)
def test_an_unknown_operator_is_named_escaped(place: Place) -> None:
    model = _model()
    model.graph.node[0].op_type = "Evil\x1b[31m"
    onnx.save(model, place.folder / "m.onnx")
    done = place.run("tune", "m.onnx", "--bare", "--trials", "2", "--out", "out")
    assert done.returncode == 2
    assert _clean(done.stdout + done.stderr)
    assert "\\x1b" in done.stderr


@pytest.mark.slow(seconds=4)
def test_words_of_a_table_are_shown_escaped(place: Place) -> None:
    head = "index,tile_b,tile_h,tile_w,tile_ci,tile_co,oc_nthread,h_nthread,status,failure,reason"
    word = NAME.replace("\r", "")
    (place.folder / "C4.csv").write_text(f"{head},cycles_pynq\n0,1,1,1,1,1,1,1,{word},,,1\n")
    here = Path(__file__).parents[1] / "data" / "tvm-vta" / "reference.json"
    (place.folder / "reference.json").write_bytes(here.read_bytes())
    done = place.run("compare", "--replay", "C4.csv", "--out", "out")
    assert done.returncode == 2
    (message,) = done.stderr.splitlines()
    assert printable(word) in message


def test_markdown_keeps_text_text() -> None:
    assert escape_text("a|b [c](d) <i>") == "a\\|b \\[c\\](d) &lt;i&gt;"
    assert code("a`b") == "`` a`b ``"
    assert block("x ``` y", "sh") == "````sh\nx ``` y\n````"
    assert printable("a b\x1b\n\udcff×") == "a b\\x1b\\n\\udcff×"
