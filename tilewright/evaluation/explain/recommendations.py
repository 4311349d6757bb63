"""Derives recommendations from the statistics of a finished run, such as a number of trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.explain.figures import FASTEST, pool_predictions, vetoed_shares
from tilewright.evaluation.explain.finished_run import TunedFolder
from tilewright.evaluation.explain.refitted_models import Explained
from tilewright.targets.registry import kind_of

_GAIN = 0.005  # late improvement from which more trials are advised
_FAR = 1.25  # a layer slower than this multiple of its bound is far from it
_HEAVY = 0.05  # share of the inference from which a layer is worth mentioning
_FAILING = 0.3  # share of invalid trials from which failures are mentioned
_SURE, _MISSED = 0.1, 0.05  # accepted bias of V, and share of fast configs it may reject
_NAMED = 3  # maximum number of layers named in a sentence


@dataclass(frozen=True)
class Advice:
    """A recommendation.

    Attributes:
        finding: sentence about what the run shows.
        action: sentence about what the user should do.
    """

    finding: str
    action: str


def advice_of(folder: TunedFolder, explained: Sequence[Explained]) -> list[Advice]:
    """Return recommendations for a run.

    Args:
        folder: the run.
        explained: explanation of each workload.

    Returns:
        The recommendations, most important first; empty if there are none.
    """
    rules: list[Callable[[TunedFolder, Sequence[Explained]], Advice | None]] = [
        _without_valid, _advise_on_failures, _advise_on_bounds, _advise_on_trials, _veto, _too_long,
    ]  # fmt: skip
    results = [rule(folder, explained) for rule in rules]
    return [item for item in results if item is not None]


def _without_valid(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    without = [
        explanation for explanation in explained if not explanation.trajectory.last_improvement
    ]
    if not without:
        return None
    return Advice(
        f"{_list_titles(without)} {'has' if len(without) == 1 else 'have'} no valid trial.",
        f"Increase the number of trials: --trials {2 * _most_trials(explained)}; "
        f"'tilewright trials {folder.path}' shows why each trial failed.",
    )


def _advise_on_failures(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    """Advise what to do if many trials are invalid.

    The advice is a space with more valid schedules, a tuner that predicts validity, or more trials
    as training data for Model V, which predicts validity. The result is None if few trials are
    invalid.

    Args:
        folder: the run.
        explained: explanation of each workload.
    """
    failures, reasons, trials = Counter[str](), Counter[str](), 0
    for explanation in explained:
        failures += explanation.trajectory.failures
        reasons += explanation.trajectory.reasons
        trials += explanation.trajectory.trials
    lost = failures.total()
    if lost < _FAILING * trials:
        return None
    status, count = failures.most_common(1)[0]
    kind = {
        "compile_error": "do not compile", "run_error": "fail when they run",
        "timeout": "run out of time", "wrong_result": "compute wrong numbers",
    }.get(status, status)  # fmt: skip
    reason, _ = reasons.most_common(1)[0]
    usual = _usual_space(folder)
    other = f"choose a space in which most schedules run: --space {usual}" if usual else (
        "use a tuner with a validity model: --tuner default"
        if folder.tuner_config.tuner != "default"
        else f"collect more training data for Model V: --trials {2 * _most_trials(explained)}"
    )  # fmt: skip
    return Advice(
        f"{lost} of {trials} trials are invalid; {count} {kind}, most often: {reason}.",
        f"{other[0].upper()}{other[1:]}.",
    )


def _advise_on_bounds(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    """Advise what to do if expensive layers are far from their lower bounds.

    The result is None if there is no such layer.

    Args:
        folder: the run.
        explained: explanation of each workload.
    """
    total = float(np.nansum([explanation.trajectory.cost for explanation in explained]))
    far = [
        explanation
        for explanation in explained
        if explanation.trajectory.above > _FAR and explanation.trajectory.cost > _HEAVY * total
    ]
    if not far:
        return None
    far.sort(key=lambda item: item.trajectory.cost * (1 - 1 / item.trajectory.above), reverse=True)
    first = far[0].trajectory
    finding = (
        f"{_list_titles(far)} {'is' if len(far) == 1 else 'are'} more than {_FAR - 1:.0%} above "
        f"the bound; {far[0].title} takes {first.above:.2f}× its bound and "
        f"{first.cost / total:.0%} of an inference."
    )
    usual = _usual_space(folder)
    if usual:
        return Advice(finding, f"Tune in the larger space: --space {usual}.")
    if max(item.trajectory.late_gain for item in far) > _GAIN:
        return Advice(
            finding,
            "They were still improving; increase the number of trials: --trials "
            f"{2 * _most_trials(explained)}.",
        )
    return Advice(
        finding,
        (
            "More trials will help little; the limit is the schedule space or the machine. "
            "'tilewright vta cycles --plot' shows what a program waits for."
        )
        if folder.kind == "vta"
        else "More trials will help little; the limit is the schedule space or the machine.",
    )


def _advise_on_trials(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    late = [explanation for explanation in explained if explanation.trajectory.late_gain > _GAIN]
    if not late:
        return None
    late.sort(key=lambda item: item.trajectory.late_gain * item.trajectory.cost, reverse=True)
    gain = late[0].trajectory.late_gain
    by = "found its first valid schedule" if np.isinf(gain) else f"by {gain:.1%}"
    return Advice(
        f"{_list_titles(late)} {'was' if len(late) == 1 else 'were'} still improving in the last "
        f"quarter of the trials "
        f"({late[0].title}: {by}).",
        f"Repeat the command with --trials {2 * _most_trials(explained)}; existing measurements "
        "are kept.",
    )


def _veto(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    """Advise what to do if Model V, which predicts validity, rejects fast schedules or is biased.

    A biased model predicts too many or too few valid configs on average. The result is None if
    Model V is neither, or if there is no such model.

    Args:
        folder: the run.
        explained: explanation of each workload.
    """
    pair = pool_predictions([explanation.unseen for explanation in explained], "V")
    if not pair.shape[1] or np.ptp(pair[1]) == 0:
        return None
    missed = vetoed_shares(explained).fast
    off = float(np.mean(pair[0]) - np.mean(pair[1]))
    if missed > _MISSED:
        options = folder.tuner_config.explorer.options.model_dump()
        lower = f" or a lower --option veto={options['veto'] / 2:g}" if "veto" in options else ""
        return Advice(
            f"The veto of Model V would exclude {missed:.0%} of the fastest {FASTEST:.0%} of "
            "the schedules that run.",
            "Model V has seen too few failures; increase the number of trials: --trials "
            f"{2 * _most_trials(explained)}{lower}.",
        )
    if abs(off) < _SURE:
        return None
    much = "much" if off > 0 else "little"
    return Advice(
        f"Model V expects too {much} configs to run: it predicts {np.mean(pair[0]):.0%} of "
        f"random configs, but {np.mean(pair[1]):.0%} run.",
        f"Do not use the predicted probabilities as such; --trials {2 * _most_trials(explained)} "
        "would correct "
        "them.",
    )


def _too_long(folder: TunedFolder, explained: Sequence[Explained]) -> Advice | None:
    """Advise a smaller number of trials if no layer improved in the second half of the run.

    The result is None if a layer did improve.

    Args:
        folder: the run.
        explained: explanation of each workload.
    """
    last = max(explanation.trajectory.last_improvement for explanation in explained)
    whole = -(-last // folder.batch) * folder.batch
    if not last or 2 * whole > _most_trials(explained):
        return None
    return Advice(
        f"No layer improved after trial {last} of {_most_trials(explained)}.",
        f"For such a run, --trials {whole} is enough.",
    )


def _most_trials(explained: Sequence[Explained]) -> int:
    return max(explanation.trajectory.trials for explanation in explained)


def _usual_space(folder: TunedFolder) -> str:
    """Return the target's default space if the run used another one, otherwise ""."""
    try:
        usual = kind_of(folder.kind)[0].space_named("")
    except TilewrightError:
        return ""
    return "" if usual == folder.space else usual


def _list_titles(explained: Sequence[Explained]) -> str:
    names = [explanation.title for explanation in explained[:_NAMED]]
    others = len(explained) - len(names)
    return ", ".join(names) + (f" and {others} more" if others else "")
