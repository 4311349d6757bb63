"""Builds a model for one accelerator, runs it, and compares its outputs with onnxruntime.

The check also runs `verify` and builds the network with several fusion choices. A model that the
build rejects with a reason is not a failure.
"""

from __future__ import annotations

import re
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from benchmarks.artifacts.numbers import (
    Arrays,
    Difference,
    differences,
    perturb_quantisation,
    run_in_onnxruntime,
)
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json
from tilewright.networks.quantisation import is_quantised
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import Blocks, traits_of
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload, canonical
from tilewright.tuning.schedule_lookup import PickTable

SECONDS = 120
"""Time limit of a check in seconds. A check that takes longer is assumed to hang."""
STEPS, ROUNDING, NUDGED, NUDGE = 1.0, 0.02, 4.0, 0.02
"""Accepted errors of a quantised network: `STEPS` quantisation steps of its output, the fraction
`ROUNDING` of the output's norm, or `NUDGED` times the change in onnxruntime if `NUDGE` of a step is
added to every quantised value. Ties may be rounded differently, and later layers amplify the
difference."""
STATED, SLACK = 2.0, 0.02
"""Accepted error of a float network, relative to the norm: `STATED` times the error that its build
reports, plus `SLACK`."""

Kind = Literal["agreed", "refused", "disagreed", "traceback"]


@dataclass(frozen=True)
class Outcome:
    """Result of building and checking a model on a machine.

    Attributes:
        kind: "agreed", "refused", "disagreed" or "traceback".
        stage: stage in which the check ended.
        said: message of the rejection, or last line of the traceback.
        trace: the traceback.
        wrong: descriptions of findings other than wrong outputs.
        silent: whether outputs are wrong and no command reported it.
        outputs: largest difference of each output from the expected values.
        stated: error of each output that the build reports, relative to the norm.
        verified: whether `verify` passes; None if it was not run.
        layers: number of layers on the accelerator.
        islands: number of parts of the network that run on the CPU.
        noise: relative change of each output that different rounding may cause.
        fused: fusion modes that were compared; of modes that fuse the same operators, one is
            listed.
    """

    kind: Kind
    stage: str = ""
    said: str = ""
    trace: str = ""
    wrong: tuple[str, ...] = ()
    silent: bool = False
    outputs: tuple[Difference, ...] = ()
    stated: tuple[float | None, ...] = ()
    verified: bool | None = None
    layers: int = 0
    islands: int = 0
    noise: tuple[float, ...] = ()
    fused: tuple[str, ...] = ()

    @property
    def is_defect(self) -> bool:
        """True if a command ended with a traceback, or if wrong outputs were not reported."""
        return self.kind == "traceback" or self.silent

    @property
    def refused_wrong_numbers(self) -> bool:
        """True if the build rejected the model because its outputs are wrong."""
        return self.kind == "refused" and " is off by " in self.said

    @property
    def reason(self) -> str:
        """The message without names and numbers, for counting equal reasons of rejections."""
        plain = re.sub(r"'[^']*'", "'…'", self.said)
        return re.sub(r"\d[\d.,×x]*", "#", plain)[:160]

    def to_json(self) -> Json:
        """Return the outcome as a JSON object."""
        result: dict[str, Any] = asdict(self)
        return result


@dataclass
class _Stages:
    """Progress of a check: the current stage, and the outcome so far."""

    stage: str = "reading"
    found: Outcome = field(default_factory=lambda: Outcome("agreed"))

    def wrong(self, what: str) -> None:
        self.found = replace(self.found, wrong=(*self.found.wrong, what))


def check_model(
    path: Path,
    target: str,
    feeds: Sequence[Arrays],
    *,
    right: Sequence[Arrays] | None = None,
    calibration: Path | None = None,
) -> Outcome:
    """Build the model in a file for a target, run it, and classify the outcome.

    Args:
        path: path of the model.
        target: name of the target.
        feeds: inputs of each inference, arrays by name in the shapes of the inputs.
        right: expected outputs of each inference. By default, they are computed by onnxruntime.
        calibration: NPZ file with calibration samples, for a float model.

    Returns:
        The outcome.
    """
    stages = _Stages()
    try:
        with _time_limit(), tempfile.TemporaryDirectory() as folder:
            _check(stages, path, target, feeds, right, calibration, Path(folder))
        return _judge_outcome(stages.found)
    except TilewrightError as error:
        message = f"{type(error).__name__}: {error}"
        if stages.stage not in ("reading", "building") or not _names_a_cause(str(error)):
            return replace(stages.found, kind="traceback", stage=stages.stage, said=message,
                           trace=traceback.format_exc())  # fmt: skip
        return replace(stages.found, kind="refused", stage=stages.stage, said=message)
    except Exception as error:
        message = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
        return replace(stages.found, kind="traceback", stage=stages.stage, said=message,
                       trace=traceback.format_exc())  # fmt: skip


def _check(
    stages: _Stages, path: Path, target: str, feeds: Sequence[Arrays],
    right: Sequence[Arrays] | None, calibration: Path | None, folder: Path,
) -> None:  # fmt: skip
    from tilewright.flows.build import build_artifact
    from tilewright.networks.artifact import Artifact, load
    from tilewright.networks.artifact.library import CompiledArtifact
    from tilewright.search import LocalRunner
    from tilewright.tuning.build_options import BuildOptions

    model = onnx.load(path)
    blocks = traits_of(make_target(target)).blocks
    expected = list(right) if right is not None else run_in_onnxruntime(model, feeds)
    options = BuildOptions(
        model=str(path), out=folder / "apart", target=target, trials=0, calibration=calibration
    )
    tuned = _tuned_workloads(stages, path, target, calibration)
    stages.stage = "building"
    manifest = build_artifact(LocalRunner(), options).manifest
    stages.stage = "loading"
    artifact = load(options.out, allow_code=True)
    if isinstance(artifact, CompiledArtifact):  # nothing of it has a kernel: it is one region
        assert not artifact.rows
        stages.stage = "running"
        made = [artifact.infer(feed) for feed in feeds]
        result = tuple(differences(model, expected, made))
        stages.found = replace(
            stages.found, outputs=result, stated=(0.0,) * len(result),
            verified=artifact.output_error() <= artifact.tolerance,
        )  # fmt: skip
        stages.stage = ""
        return
    assert isinstance(artifact, Artifact)
    stages.found = replace(
        stages.found, layers=len(artifact.rows), islands=len(as_rows(manifest["cpu"]))
    )
    _compare_workloads(stages, tuned, manifest, blocks)
    stages.stage = "running"
    feeds = [_in_its_types(artifact, feed) for feed in feeds]
    made = [artifact.infer(feed) for feed in feeds]
    result = tuple(differences(model, expected, made))
    stages.found = replace(stages.found, outputs=result, stated=_stated_errors(manifest, model))
    if is_quantised(model):
        stages.found = replace(stages.found, noise=_noise(model, feeds))
    if not is_quantised(model) and None in stages.found.stated:
        stages.wrong("the build reports no error for an output")
    stages.stage = "verifying"
    stages.found = replace(stages.found, verified=_passes_verification(artifact))
    stages.stage = "fusing"
    _fuse(stages, options, feeds, made, folder / "fused")
    stages.stage = ""


def as_rows(rows: Any) -> list[dict[str, Any]]:
    """Convert a list in a manifest to a list of dictionaries."""
    return list(rows)


# -- workloads -------------------------------------------------------------------------------------


def _tuned_workloads(
    stages: _Stages, path: Path, target: str, calibration: Path | None
) -> list[Workload] | str:
    """Return the workloads that `inspect` and `tune` find, one per call, or the error's text."""
    from tilewright import networks
    from tilewright.networks.offloading.accelerator import Accelerator

    try:
        accelerator = Accelerator.for_target(make_target(target))
        result, report = networks.load(path, calibration=calibration).surveyed_on(accelerator)
    except TilewrightError as error:
        return str(error)
    inspected = Counter((row.workload, row.epilogue, row.calls) for row in report.workloads)
    if inspected != Counter(
        (str(item.workload), item.workload.epilogue_text, item.calls) for item in result
    ):
        stages.wrong(
            f"inspect lists the layers {', '.join(str(row) for row in inspected)}, but tune "
            "lists others"
        )
    return [item.workload for item in result for _ in range(item.calls)]


def _compare_workloads(
    stages: _Stages, tuned: list[Workload] | str, manifest: Any, blocks: Blocks
) -> None:
    if isinstance(tuned, str):
        stages.wrong(f"tune rejects what build accepts: {tuned}")
        return
    from tilewright.targets.workload import parse_workload

    built = [parse_workload(row["workload"], row["epilogue"]) for row in manifest["layers"]]
    for missing, what in (
        (_find_unscheduled(built, tuned, blocks), "built but not tuned"),
        (_find_unscheduled(tuned, built, blocks), "tuned but not built"),
    ):
        if missing:
            stages.wrong(f"workloads {what}: {'; '.join(missing)}")


def _find_unscheduled(
    wanted: Sequence[Workload], known: Sequence[Workload], blocks: Blocks
) -> list[str]:
    """Return the wanted workloads for which `build --schedules` would not find a schedule."""
    table = PickTable(blocks)
    for item in known:
        table.add(item, Pick("", ()))
    return [
        f"{element} [{element.epilogue_text}]"
        for element in dict.fromkeys(wanted) if table.closest_match(canonical(element)) is None
    ]  # fmt: skip


# -- fusion ----------------------------------------------------------------------------------------


def _fuse(
    stages: _Stages, options: Any, feeds: Sequence[Arrays], made: Sequence[Arrays], out: Path
) -> None:
    """Build the network with several fusion choices, and require the same outputs from each.

    The choices are those of `tune --fusion` none, all and learned, and one that fuses every second
    decision. The schedules are those with the best estimates.
    """
    from tilewright.fusion.decision import drop_unscheduled_labels, search_labellings
    from tilewright.fusion.evaluator import make_estimate_evaluator
    from tilewright.fusion.problem import FusionProblem
    from tilewright.tuning.build_artifact import integer_network, read_model

    target = make_target(options.target)
    network = integer_network(options, target, read_model(options), apart=True)
    problem = FusionProblem(network.graph, target)
    evaluator = make_estimate_evaluator(problem, options.seed)
    named = search_labellings(problem, evaluator, options.seed)
    named["other"] = drop_unscheduled_labels(
        evaluator, tuple(k % 2 == 0 for k in range(len(problem)))
    )
    modes = ("other", "learned", "all", "none")  # of those that fuse the same, the last
    for labels, mode in {named[mode]: mode for mode in modes}.items():
        wrong = _fused_otherwise(options, evaluator(labels), problem, feeds, made, out / mode)
        stages.found = replace(stages.found, fused=(*stages.found.fused, mode))
        if wrong:
            stages.wrong(f"fused ({mode}), {wrong}")


def _fused_otherwise(
    options: Any, evaluation: Any, problem: Any, feeds: Sequence[Arrays], made: Sequence[Arrays],
    out: Path,
) -> str:  # fmt: skip
    """Build a network with given fusion labels, and compare its outputs with `made`.

    Returns:
        A description of the difference; "" if there is none.
    """
    from tilewright.networks import artifact
    from tilewright.targets.registry import kind_of

    whole, name = problem.labelled(evaluation.labels), kind_of(options.target)[0].name
    artifact.build(whole, evaluation.picks, problem.target, name, out)
    loaded = artifact.load(out, allow_code=True)
    assert isinstance(loaded, artifact.Artifact)
    for feed, before in zip(feeds, made, strict=True):
        after = loaded.infer(feed)
        for output, values in before.items():
            if not _same_values(values, after[output], exact=not whole.islands):
                off = np.abs(values.astype(np.float64) - after[output].astype(np.float64)).max()
                return f"'{output}' differs by up to {off:.3g}"
    return "verify fails" if any(check.wrong for check in loaded.verify()) else ""


def _same_values(before: Any, after: Any, *, exact: bool) -> bool:
    """Compare two arrays bit by bit if `exact`, otherwise up to rounding.

    Rounding differs if the CPU computes a part of the network, because its compiler may reorder
    sums of floats.
    """
    if exact or before.dtype.kind != "f":
        return bool(np.array_equal(before, after, equal_nan=True))
    return bool(np.allclose(before, after, rtol=1e-4, atol=1e-6, equal_nan=True))


def _in_its_types(artifact: Any, feed: Arrays) -> Arrays:
    """Convert float16 inputs to the wider types that the artifact takes."""
    types = {value.name: value.dtype for value in artifact.inputs}
    return {
        name: array.astype(types[name]) if array.dtype == np.float16 and name in types else array
        for name, array in feed.items()
    }


def _passes_verification(artifact: Any) -> bool:
    """Return whether each layer, and the whole network on its stored samples, is right."""
    whole = artifact.accuracy()
    layers = not any(check.wrong for check in artifact.verify())
    return layers and (whole is None or whole.is_right)


# -- judgement -------------------------------------------------------------------------------------


def _stated_errors(manifest: Any, model: onnx.ModelProto) -> tuple[float | None, ...]:
    """Return the relative error of each output that the build reports; None if there is none."""
    errors = {row["name"]: row["relative"] for row in manifest["accuracy"]["outputs"]}
    return tuple(errors.get(info.name) for info in model.graph.output)


def _judge_outcome(outcome: Outcome) -> Outcome:
    noise = outcome.noise or (0.0,) * len(outcome.outputs)
    far = [
        output for output, stated, own in zip(outcome.outputs, outcome.stated, noise, strict=True)
        if not _is_within(output, stated, own, exact=bool(outcome.noise))
    ]  # fmt: skip
    wrong = outcome.wrong
    if far and outcome.verified:
        wrong = (*wrong, "verify passes")
    if not far and not outcome.verified:
        wrong = (*wrong, "verify fails")
    silent = bool(far) or any(item.startswith("fused") for item in wrong)
    kind: Kind = "disagreed" if far or wrong else "agreed"
    return replace(outcome, kind=kind, silent=silent, wrong=wrong)


def _is_within(difference: Difference, stated: float | None, noise: float, *, exact: bool) -> bool:
    if not exact:
        return stated is not None and difference.relative <= STATED * stated + SLACK
    few = difference.steps is not None and difference.steps <= STEPS
    return few or difference.relative <= max(ROUNDING, NUDGED * noise)


def _noise(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> tuple[float, ...]:
    """Return the relative change of each output if all quantised values are shifted.

    The shift is `NUDGE` steps, upwards or downwards; the larger of the two changes counts.
    """
    plain = run_in_onnxruntime(model, feeds)
    both = [
        differences(model, plain, run_in_onnxruntime(perturb_quantisation(model, share), feeds))
        for share in (NUDGE, -NUDGE)
    ]
    return tuple(max(a.relative, b.relative) for a, b in zip(*both, strict=True))


def _names_a_cause(message: str) -> bool:
    return len(message) > 20 and "object at 0x" not in message and "Traceback" not in message


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `TimeoutError` within the context after `SECONDS`."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not finished within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
