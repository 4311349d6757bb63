"""Lists the formats of models: networks as a command reads them, and learned models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from tests.reliability.format_types import HANG_SECONDS, Draw, Format, Read, named, of_name
from tests.reliability.mutants import json_mutant, mutant, onnx_mutant

DATA = Path(__file__).parents[1] / "data"


def _in_sandbox(path: Path) -> Read:
    """Reads an input from there in a child, whose death is an answer, too."""
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


def _transferred(kind: str, options: dict[str, object]) -> Callable[[Path], tuple[Draw, Read]]:
    def make(folder: Path) -> tuple[Draw, Read]:
        import numpy as np

        from tests.models.transfer.tables import small_table
        from tilewright.core.files import digest
        from tilewright.models.transfer.files import INDEX
        from tilewright.models.transfer.registry import load_model, make_model

        model = make_model(kind, 0, options)
        model.fit(small_table())
        model.save(folder / "model")
        files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
        index, some = json.loads(files[INDEX]), small_table().features.rows(np.arange(3))

        def draw(rng: random.Random) -> bytes:
            name = rng.choice(sorted(files))
            if name == INDEX:
                return named(name, json_mutant(index, rng))
            head = files[name][:4000] if rng.random() < 0.5 else files[name]
            return named(name, mutant(head, rng) + files[name][len(head) :])

        def read_it(data: bytes) -> object:
            name, content = of_name(data)
            for other, before in files.items():
                (folder / "model" / other).write_bytes(before)
            (folder / "model" / name).write_bytes(content)
            if name != INDEX:
                said = {**index["files"], name: digest(content)}
                (folder / "model" / INDEX).write_text(json.dumps({**index, "files": said}))
            with np.errstate(all="ignore"):
                return load_model(folder / "model").predict(some)

        return draw, read_it

    return make


_FILES = "tilewright.models.transfer.files"
READ = (f"{_FILES}:read_files", f"{_FILES}:read_index")
FORMATS = {
    "ONNX models": Format(_onnx, in_child=("tilewright.networks.onnx_file:_parse",), share=0.5),
    "TensorFlow Lite models": Format(
        _tflite, in_child=("tilewright.networks.tflite.file:read",), share=0.5
    ),
    "transferred XGBoost": Format(_transferred("xgboost", {"trees": 8, "threads": 1}), READ),
    "transferred LightGBM": Format(
        _transferred("lightgbm", {"trees": 8, "leaves": 8, "threads": 1}), READ
    ),
    "transferred perceptrons": Format(
        _transferred("mlp", {"epochs": 1, "units": 8, "batch": 64, "threads": 1}), READ
    ),
}
