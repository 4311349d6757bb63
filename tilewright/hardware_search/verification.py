"""Verifies the machines on the Pareto front before they are reported.

For every machine on the front and every layer, the best schedule is lowered, measured again and
executed on data. The stored trials cannot be trusted blindly, because anyone who can write to a
trial database could claim any latency. If a new measurement contradicts a stored trial, all stored
trials of that layer on that machine are measured again and corrected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.pareto import front_of
from tilewright.hardware_search.problem import CodesignLayer, Design
from tilewright.hardware_search.results import ProvenDesign, ProvenLayer
from tilewright.search.round_steps import Trial, trial_at
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.capabilities import (
    PARTS,
    HasDesigns,
    HasEnergy,
    MeasuresInOnePass,
    Verifies,
    bound_of,
    capability,
)
from tilewright.tuning.verification import WrongSchedule, latency_of_trial, reproduces


def prove_front(evaluator: BudgetedEvaluator, objective: Objective) -> list[ProvenDesign] | int:
    """Lower, measure and execute the schedules of the Pareto front again.

    Args:
        evaluator: the measurements of a search.
        objective: the objective that is minimised besides the area.

    Returns:
        The machines on the front with their layers. If stored trials contradict the new
        measurements, they are corrected in the store, and the number of corrected trials is
        returned instead.

    Raises:
        WrongSchedule: a schedule computes wrong numbers.
        TrialStoreError: the store cannot be written.
        RunInUse: another command works on the run.
    """
    front = front_of(evaluator, objective)
    chosen = [
        [(point.design, *pair) for pair in zip(point.design.layers, point.flats, strict=True)]
        for point in front
    ]
    if wrong := sum(
        _measure_and_correct(evaluator, *layer) for layers in chosen for layer in layers
    ):
        return wrong
    return [
        ProvenDesign(point, tuple(_prove_layer(*layer) for layer in layers))
        for point, layers in zip(front, chosen, strict=True)
    ]


def _measure_and_correct(
    evaluator: BudgetedEvaluator, design: Design, layer: CodesignLayer, flat: int
) -> int:
    """Measure the best schedule of a layer again, and correct the stored trials if it differs.

    If the best schedule's trial is reproduced, the other trials of the layer are not checked.
    Otherwise, all trials of the layer are measured again.

    Args:
        evaluator: the measurements of the search.
        design: the machine.
        layer: the layer.
        flat: flat index of the best schedule.

    Returns:
        The number of stored trials that were wrong and have been corrected.
    """
    tried = evaluator.layer_trials(design, layer.workload)
    if _holds(design, tried.trials[flat], _measured_again(design, layer, [flat])[0]):
        return 0
    again = dict(zip(tried.trials, _measured_again(design, layer, list(tried.trials)), strict=True))
    wrong = {
        flat: again[flat]
        for flat, trial in tried.trials.items()
        if not _holds(design, trial, again[flat])
    }
    evaluator.correct(design, layer.workload, wrong)
    return len(wrong)


def _holds(design: Design, claimed: Trial, trial: Trial) -> bool:
    """Return whether a repeated measurement reproduces the latency of a stored trial.

    If either latency is unknown, both trials must have the same status.

    Args:
        design: the machine.
        claimed: the stored trial.
        trial: the new trial of the same config.
    """
    before, now = latency_of_trial(claimed), latency_of_trial(trial)
    if before is None or now is None:
        return claimed.status == trial.status
    return reproduces(design.target, before, now)


def _measured_again(design: Design, layer: CodesignLayer, flat: Sequence[int]) -> list[Trial]:
    target, workload = design.target, layer.workload
    configs = target.space(workload).unravel(np.array(flat, np.int64))
    once = capability(target, MeasuresInOnePass)
    if once is not None:
        measured = once.lower_and_measure(workload, configs)[1]
    else:
        measured = target.measure(target.lower(workload, configs))
    return [trial_at(measured, row) for row in range(len(measured))]


def _prove_layer(design: Design, layer: CodesignLayer, flat: int) -> ProvenLayer:
    target, workload = design.target, layer.workload
    space = target.space(workload)
    config = space.unravel(np.array([flat]))
    lowered = target.lower(workload, config)
    measured = target.measure(lowered)
    bound = bound_of(target, workload)
    return ProvenLayer(
        layer=layer,
        knobs=space.describe(config[0].tolist()),
        cycles=int(measured.cycles[0]),
        seconds=float(measured.seconds[0]),
        counters={name: int(values[0]) for name, values in sorted(measured.counters.items())},
        parts=_parts(design, lowered),
        bound=-1 if bound is None else bound.cycles,
        verified=_verify_program(design, layer, lowered),
        energy=_energy(design, measured),
    )


def _energy(design: Design, measured: Measurements) -> dict[str, float]:
    knows = capability(design.target, HasEnergy)
    if knows is None:
        return {}
    return {name: 1e-6 * float(item[0]) for name, item in knows.energy(measured).items()}


def _parts(design: Design, lowered: Lowered) -> dict[str, int]:
    family = capability(design.target, HasDesigns)
    parts = None if family is None else family.breakdown(lowered)
    if parts is None or parts[0].min() < 0:
        return {}
    return dict(zip(PARTS, parts[0].tolist(), strict=True))


def _verify_program(design: Design, layer: CodesignLayer, lowered: Lowered) -> bool:
    """Execute a program on data, and compare its output with the reference.

    Args:
        design: the machine.
        layer: the layer.
        lowered: the compiled schedule of the layer.

    Returns:
        True if the output was compared, False if the machine cannot run programs on data.

    Raises:
        WrongSchedule: the output differs from the reference.
    """
    verifies = capability(design.target, Verifies)
    if verifies is None:
        return False
    wrong = int(verifies.verify(lowered)[0])
    if wrong:
        raise WrongSchedule(
            f"{layer.workload} on {design.name}: the best schedule computes {wrong} wrong "
            "values; this is a defect of Tilewright, please report it with the seed and the "
            "specification"
        )
    return True
