"""Writes `report.html`: each tuner's results, its number of measurements, and its costs."""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.comparison import Comparison
from tilewright.evaluation.compare.ground_truth import space_facts
from tilewright.evaluation.compare.plan import GOAL, ComparisonPlan
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.compare import plots
from tilewright.reports.compare.heat_maps import heat_maps
from tilewright.reports.compare.leaderboard_table import leaderboard_columns
from tilewright.reports.compare.verdict import invalid_note, spoken
from tilewright.reports.number_format import percent
from tilewright.reports.styles import house_style, line_styles
from tilewright.reports.templates import render

REPORT = "report.html"


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write `report.html` into `folder`. Raises `OSError`."""
    write_atomically(folder / REPORT, report(comparison))


def report(comparison: Comparison) -> bytes:
    """The page, in UTF-8. Opens the tables of all workloads, for the facts of their spaces."""
    plan, results, rows = comparison.plan, comparison.results, comparison.leaderboard
    test_bed = plan.test_bed
    facts = [space_facts(name, test_bed.table(name)) for name, _ in test_bed.workloads]
    said = verdict(results, rows)
    with house_style():
        pictures = {
            "convergence": plots.convergence(results),
            "final_regret": plots.final_regret(results, rows),
            "invalid_trials": plots.invalid_trials(results),
            "attempts": plots.attempts(results, rows),
            "seconds": plots.seconds(results, rows),
        }
        if len(facts) > 1:
            titles = [each.title for each in facts]
            pictures["by_workload"] = plots.convergence_by_workload(results, titles)
    return render(
        "compare/report.html.jinja",
        title=f"Tuners on {test_bed.target}" + f", {test_bed.space} space" * bool(test_bed.space),
        plan=plan,
        goal=percent(GOAL),
        best=said.best.tuner,
        verdict=spoken(said),
        lines=dict(zip(results.tuners, line_styles(results.tuners), strict=True)),
        invalid_note=invalid_note(rows),
        leaderboard=rows,
        columns=leaderboard_columns(rows),
        pictures=pictures,
        attempts=plots.ATTEMPTS,
        heat_maps=heat_maps(results, rows),
        facts=facts,
        counted=all(each.optimum.cycles > 0 for each in facts),
        options=_options(plan),
        live=isinstance(test_bed, EnumeratedTestBed) and test_bed.live,
    )


def _options(plan: ComparisonPlan) -> list[tuple[str, str]]:
    """Each tuner with its options, those left at their defaults too."""
    return [
        (
            config.label,
            ", ".join(
                f"{name} = {value}"
                for name, value in config.explorer.options.model_dump(mode="json").items()
            )
            or "none",
        )
        for config in plan.tuner_configs
    ]
