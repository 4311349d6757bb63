"""Checks before a run starts, so that a mistake in the options is reported at once."""

from __future__ import annotations

from pathlib import Path

from tilewright.core.errors import UnknownName
from tilewright.core.options import OptionsError
from tilewright.models import make_explorer
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.files import check_trusted, read_index
from tilewright.networks import zoo_names
from tilewright.networks.errors import ModelFileError
from tilewright.search.registry import check_options, registered_tuners
from tilewright.targets.capabilities import Builds, capability
from tilewright.targets.cluster.connection import check_address
from tilewright.targets.registry import check_target, kind_of, make_target
from tilewright.targets.workload import parse_workload
from tilewright.tuning.earlier_run import holds_run, read_earlier_run
from tilewright.tuning.options import CHAMPION, TuningOptions
from tilewright.tuning.output_dir import check_folder, check_idle
from tilewright.tuning.run_metadata import check_vacant


def check(options: TuningOptions) -> None:
    """Check the options of a run without loading learning libraries or TVM.

    Args:
        options: options of the run.

    Raises:
        TilewrightError: a target, space, network, tuner or option is unknown or invalid, or the
            output directory cannot be written or contains another run.
        RunInUse: another command works on the output directory.
    """
    check_target(options.target, options.space)
    if options.cluster:
        check_address(options.cluster)
    _check_place(options)
    if options.workload:
        parse_workload(options.workload, options.steps)
    else:
        check_source(options.model)
    check_options(options.tuner, options.tuner_options)
    check_start(options)
    check_fusion(options)
    check_folder(options.folder)
    if not options.shared:
        check_idle(options.folder)
    check_vacant(options)


def _check_place(options: TuningOptions) -> None:
    if kind_of(options.target)[0].make_on is None:
        return
    if not options.cluster:
        raise OptionsError(
            f"--target {options.target} is a board of a cluster; give the address of the "
            "cluster's scheduler: --cluster tls://HOST:PORT"
        )
    if options.isolate:
        raise OptionsError(
            f"--isolate {options.isolate:g} has no effect on {options.target}, because its "
            "worker limits the time of programs ('tilewright board serve --seconds'); leave "
            "it out"
        )


def check_start(options: TuningOptions) -> None:
    """Check the transfer model or the earlier run of a warm start.

    Args:
        options: options of the run.

    Raises:
        TransferError: the folder contains neither a run nor a model, or its model is not trusted.
        EarlierRunError: the run in the folder is not finished or belongs to another version of the
            target.
        OptionsError: the tuner cannot use such a model or such trials.
    """
    if options.warm_start in ("", CHAMPION):
        return
    folder = Path(options.warm_start)
    if holds_run(folder):
        _check_earlier_run(options, folder)
        return
    try:
        check_trusted(folder, read_index(folder))
    except TransferError as error:
        raise TransferError(f"--warm-start {options.warm_start}: {error}") from None
    known = registered_tuners()
    if not known[options.tuner].transfers:
        able = ", ".join(name for name, item in known.items() if item.transfers)
        raise OptionsError(
            f"--warm-start {options.warm_start}: the tuner '{options.tuner}' cannot start "
            f"from a trained model; choose one that can ({able})"
        )


def _check_earlier_run(options: TuningOptions, folder: Path) -> None:
    if folder.resolve() == options.folder.resolve():
        raise OptionsError(
            f"--warm-start {folder} is the output directory of this run, which resumes from its "
            "own trials without an option; leave out --warm-start, or choose another --out"
        )
    if not make_explorer(options.tuner, options.tuner_options).shares:
        raise OptionsError(
            f"--warm-start {folder}: the tuner '{options.tuner}' learns nothing from trials of "
            "other workloads; choose 'ml2tuner', 'default' or 'default-blind' and leave out "
            "--option share=False"
        )
    read_earlier_run(folder)


def check_fusion(options: TuningOptions) -> None:
    """Check that the target can run whole networks, if fusion is to be decided.

    Args:
        options: options of the run.

    Raises:
        OptionsError: the target cannot run whole networks.
    """
    if not options.fusion:
        return
    target = make_target(options.target, options.space)
    builds = capability(target, Builds)
    if builds is None or builds.stream_timer() is None:
        raise OptionsError(
            f"--fusion {options.fusion}: programs of {target.name} cannot be executed here, "
            "so there is nothing to fuse; choose a VTA, or leave out --fusion"
        )


def check_source(model: str) -> None:
    """Check that a model exists.

    Args:
        model: path of a model file, or name of a built-in network.

    Raises:
        ModelFileError: there is no such file, or the path is a folder.
        UnknownName: there is no built-in network with this name.
    """
    if model in zoo_names() or Path(model).is_file():
        return
    if Path(model).is_dir():
        raise ModelFileError(
            f"{model} is a folder; give the path of a model file, or the name of a network "
            "that 'tilewright zoo' lists"
        )
    if Path(model).suffix or "/" in model:
        raise ModelFileError(
            f"the file {model} does not exist; give the path of an ONNX file, or the name of "
            "a network that 'tilewright zoo' lists"
        )
    raise UnknownName("network", model, zoo_names())
