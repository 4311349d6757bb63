"""What can be checked before anything is started, so that a mistake costs no time."""

from __future__ import annotations

from pathlib import Path

from targets.errors import UnknownName
from targets.registry import check_target
from tuning.folders import check_folder
from tuning.options import TuningOptions


def check(options: TuningOptions) -> None:
    """Raises a `TilewrightError` for an unknown target, space or network, a target that cannot be
    made, or an output folder that cannot be written. Imports nothing heavy."""
    check_target(options.target, options.space)
    check_source(options.model)
    check_folder(options.folder)


def check_tuner(options: TuningOptions) -> None:
    """Raises `UnknownName` or `OptionError`. Loads the learners."""
    from models import make_explorer

    make_explorer(options.tuner, options.tuner_options)


def check_source(model: str) -> None:
    """Raises `ModelFileError` for a path without a file, `UnknownName` for another name that is no
    built-in network's."""
    from networks import zoo_names
    from networks.errors import ModelFileError

    if model in zoo_names() or Path(model).is_file():
        return
    if Path(model).suffix or "/" in model:
        raise ModelFileError(
            f"there is no file {model}; give the path of an ONNX file, or a name that "
            "'tilewright zoo' lists"
        )
    raise UnknownName("network", model, zoo_names())
