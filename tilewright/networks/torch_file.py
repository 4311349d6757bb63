"""Reads a torch.export archive (.pt2) without trusting it.

`torch.export.load` alone would unpickle parts of a stranger's file, load native libraries from it
and evaluate its expressions. So the archive is first rebuilt from the parts a network needs: its
graph as JSON and raw weights. What needs Python objects, symbolic sizes or foreign operators is
refused.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.networks.errors import (
    DynamicShapeError,
    ModelFileError,
    UnsupportedOperatorError,
    first_line,
)
from tilewright.networks.onnx_file import MAX_NODES

if TYPE_CHECKING:
    from torch.export import ExportedProgram

MAX_ARCHIVE_BYTES = 8 * 2**30
MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
KEPT = (
    "data/weights/",
    "data/constants/",
    "archive_format",
    "archive_version",
    "byteorder",
    ".data/",
)
INSTALL = "pip install 'tilewright[torch]'"


def read_exported(path: Path) -> ExportedProgram:
    """The exported program of a .pt2 file; raises `ModelFileError` for more than plain weights."""
    archive = _rebuilt(path)
    try:
        import torch
    except ImportError:
        raise ModelFileError(f"'{path}' needs PyTorch to be read; install it: {INSTALL}") from None
    try:
        return torch.export.load(archive)
    except Exception as error:
        raise ModelFileError(
            f"torch {torch.__version__} cannot load '{path}': {first_line(error)}; "
            "export the model again with this version"
        ) from error


def _rebuilt(path: Path) -> io.BytesIO:
    """The archive in memory, reduced to the graph and raw tensors."""
    rebuilt = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as source, zipfile.ZipFile(rebuilt, "w") as target:
            if sum(entry.file_size for entry in source.infolist()) > MAX_ARCHIVE_BYTES:
                raise ModelFileError(f"'{path}' unpacks to more than 8 GiB; use a smaller model")
            parts = {name.partition("/")[2]: name for name in source.namelist()}
            if MODEL not in parts or any(config not in parts for config in CONFIGS):
                raise ModelFileError(
                    f"'{path}' holds no exported program of a current PyTorch; write it with "
                    "torch.export.save(torch.export.export(model.eval(), inputs), path)"
                )
            root = parts[MODEL].removesuffix(MODEL)
            _refuse_pickled([json.loads(source.read(parts[name])) for name in CONFIGS], path)
            for part, name in parts.items():
                if part.startswith(KEPT):
                    target.writestr(name, source.read(name))
            target.writestr(root + SAMPLES, b"")
            model = _checked_program(as_object(json.loads(source.read(parts[MODEL]))), path)
            target.writestr(root + MODEL, json.dumps(model))
    except OSError as error:
        raise ModelFileError(f"cannot read '{path}': {error.strerror}") from error
    except TilewrightError:
        raise
    except Exception as error:  # ZIP, zlib and JSON fail in ways of their own
        raise ModelFileError(
            f"'{path}' is not a torch.export file, or is cut off; export or copy it again"
        ) from error
    rebuilt.seek(0)
    return rebuilt


def _refuse_pickled(configs: list[Json], path: Path) -> None:
    for config in configs:
        for name, described in as_object(as_object(config)["config"]).items():
            payload = as_object(described)
            raw = as_text(payload["path_name"]).startswith(("weight_", "tensor_"))
            if payload["use_pickle"] or not raw:
                raise ModelFileError(
                    f"'{name}' in '{path}' is a pickled object, which may run any code; "
                    "it is refused: export a model whose weights are plain dense tensors"
                )


def _checked_program(program: dict[str, Json], path: Path) -> dict[str, Json]:
    """The program without code, traces and symbolic sizes; raises where it needs one of them."""
    graph = as_object(as_object(program["graph_module"])["graph"])
    nodes = [as_object(node) for node in as_list(graph["nodes"])]
    if len(nodes) > MAX_NODES:
        raise ModelFileError(f"'{path}' has more than {MAX_NODES} operators; split the model")
    if any("expr_str" in item for item in _mappings(program)):
        raise DynamicShapeError(
            f"'{path}' has dynamic shapes; export it without dynamic_shapes, with inputs of "
            "the size you will run"
        )
    for node in nodes:
        target = as_text(node["target"])
        if not target.startswith("torch.ops.aten.") and target not in GETITEM:
            raise UnsupportedOperatorError(
                f"'{path}' calls {target}, which is not an operator of PyTorch's own; "
                "export a model of standard layers"
            )
        stack = as_object(node["metadata"]).get("nn_module_stack")
        node["metadata"] = {} if stack is None else {"nn_module_stack": stack}
    program["guards_code"] = []
    return program


def _mappings(value: Json) -> Iterator[dict[str, Json]]:
    """Every JSON object inside a value."""
    stack: list[Json] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


GETITEM = ("_operator.getitem", "operator.getitem")
