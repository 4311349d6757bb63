"""What can be checked before anything is started, so that mistakes cost no time."""

from __future__ import annotations

from pathlib import Path

from flows.options import TuningOptions
from targets.errors import UnknownName


def check(options: TuningOptions) -> None:
    """Raises a `TilewrightError` for an unknown target, tuner, option or network, a specification
    that cannot be encoded, or an output folder that cannot be written."""
    from models import make_explorer
    from targets import make_target
    from tasks.outputs import check_folder

    make_target(options.target, options.space)
    make_explorer(options.tuner, options.tuner_options)
    _check_source(options.model)
    check_folder(options.folder)


def _check_source(model: str) -> None:
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
