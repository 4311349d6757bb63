"""Fuzzing inputs for network files, read as a command reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.reliability.format_types import HANG_SECONDS, Draw, Format, Read, named, of_name
from tests.reliability.mutants import json_mutant, mutant, onnx_mutant

DATA = Path(__file__).parents[1] / "data"


def _in_sandbox(path: Path) -> Read:
    """Return a function that reads a model in a child process. The child may die."""
    from tilewright.core.child_process import RpcDied, RpcProcess
    from tilewright.networks.errors import ModelFileError
    from tilewright.networks.sandbox import READING

    child = RpcProcess("tilewright.networks.sandbox", [], READING)

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        try:
            reply, _ = child.call({"path": str(path), "shapes": {}}, seconds=HANG_SECONDS)
        except RpcDied as error:
            raise ModelFileError(str(error)) from None
        if "error" in reply:
            raise ModelFileError(str(reply["message"]))
        return reply["examined"]

    return read_it


def _onnx(folder: Path) -> tuple[Draw, Read]:
    from tilewright.networks import zoo

    model = zoo.build("digits_cnn", weights=True)
    return lambda rng: onnx_mutant(model, rng), _in_sandbox(folder / "model.onnx")


def _tflite(folder: Path) -> tuple[Draw, Read]:
    whole = (DATA / "tflite" / "kws_ref_model.tflite").read_bytes()
    return lambda rng: mutant(whole, rng), _in_sandbox(folder / "model.tflite")


def _transferred(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of a model folder's description, which is read before it is trusted."""
    from tests.models.transfer.tables import small_table
    from tilewright.models.transfer.files import INDEX, SIGNATURE, check_trusted, read_index
    from tilewright.models.transfer.registry import make_model

    model = make_model("xgboost", 0, {"trees": 2, "threads": 1})
    model.fit(small_table())
    model.save(folder / "model")
    whole = json.loads((folder / "model" / INDEX).read_bytes())
    signature = (folder / "model" / SIGNATURE).read_bytes()

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return named(SIGNATURE, mutant(signature, rng))
        return named(INDEX, json_mutant(whole, rng))

    def read_it(data: bytes) -> object:
        name, content = of_name(data)
        (folder / "model" / SIGNATURE).write_bytes(signature)
        (folder / "model" / name).write_bytes(content)
        return check_trusted(folder / "model", read_index(folder / "model"))

    return draw, read_it


FORMATS = {
    "ONNX models": Format(_onnx, in_child=("tilewright.networks.onnx.files:_parse",), share=0.5),
    "TensorFlow Lite models": Format(
        _tflite, in_child=("tilewright.networks.tflite.file:read_graph",), share=0.5
    ),
    "transferred models": Format(
        _transferred,
        ("tilewright.models.transfer.files:check_trusted",
         "tilewright.models.transfer.files:read_index"),
    ),
}  # fmt: skip
