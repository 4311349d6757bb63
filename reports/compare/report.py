"""`report.html`: who finds what, with how many measurements, at what price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from evaluation.compare.plan import GOAL, ComparisonPlan
from evaluation.compare.standings import Floats, Interval, Results, Standing, relative_trials
from reports.compare import plots
from reports.figures import count, duration, percent, ranged
from reports.pages import definitions, figure, legend, page, table
from reports.styles import colours, heat, house_style
from targets.table import Table
from targets.titles import title

REPORT = "report.html"
_WORST_SHOWN = 1.0  # regret from which a cell is as red as it gets
_ATTEMPTS = ("valid trials", "invalid trials", "lowered beyond them", "of those, failed")


@dataclass(frozen=True)
class SpaceFacts:
    """What is known of a workload's whole space."""

    title: str
    configs: int
    valid: int
    optimum_cycles: int
    near: int  # configs within the goal of the optimum


def ground(name: str, table: Table) -> SpaceFacts:
    optimum = table.optimum_cycles
    valid = table.status == "valid"
    near = valid & (table.cycles <= optimum * (1 + GOAL))
    return SpaceFacts(
        title(name, table.workload), len(table), int(valid.sum()), optimum, int(near.sum())
    )


def report(
    plan: ComparisonPlan,
    results: Results,
    rows: Sequence[Standing],
    grounds: Sequence[SpaceFacts],
    live: bool,
) -> bytes:
    """The page, from standings best first and the workloads' grounds in their order."""
    titles = [each.title for each in grounds]
    with house_style():
        parts = [
            _head(plan),
            f'<p class="verdict">{verdict(results, rows)}</p>',
            _standings(results, rows),
            "<h2>Convergence</h2>",
            "<p>Regret is how much slower the best schedule found so far is than the best of the "
            "whole space, which is known because the space was enumerated. Lines are medians over "
            "seeds, bands 95 % confidence intervals; a line begins where half of the seeds have a "
            "valid schedule for every workload.</p>",
            legend(results.tuners, colours(results.tuners)),
            figure(plots.convergence(results)),
            "<h2>Regret, and what it took</h2>",
            _pictures(results, rows),
            "<h2>Workload by workload</h2>",
            *_heat_maps(results, rows, titles),
        ]
        if len(titles) > 1:
            parts += [
                "<h3>Convergence</h3>",
                legend(results.tuners, colours(results.tuners)),
                figure(plots.convergence_by_workload(results, titles)),
            ]
        parts += ["<h2>The ground truth</h2>", _grounds(grounds), _settings(plan), _terms(live)]
    return page(f"Tuners on {plan.test_bed.target}, {plan.test_bed.space} space", parts)


def verdict(results: Results, rows: Sequence[Standing]) -> str:
    """What the standings say in two sentences, as HTML."""
    best = rows[0]
    text = (
        f"<b>{escape(best.tuner)}</b> ends {_distance(best.regret)} the optimum and is within "
        f"{percent(GOAL)} of it in {percent(best.reached)} of its runs, after "
        f"{count(best.trials.middle)} trial{'s' * (best.trials.middle != 1)}."
    )
    if len(rows) == 1:
        return text
    rivals = [
        f"{escape(row.tuner)} {count(row.trials.middle)} ({percent(row.reached)} of runs)"
        for row in rows[1:4]
    ]
    text += f" Next: {', '.join(rivals)}."
    if "autotvm" in results.tuners and best.tuner != "autotvm":
        ratio = relative_trials(results, best.tuner, "autotvm")
        always = results.reached[results.tuners.index("autotvm")].all()
        most = "" if always else "at most "
        text += f" That is {most}{percent(ratio)} of the trials that autotvm needs."
    return text


# -- parts -----------------------------------------------------------------------------------------


def _head(plan: ComparisonPlan) -> str:
    test_bed = plan.test_bed
    many = len(test_bed.workloads)
    seeds = len(plan.seeds)
    return (
        f"<h1>Tuners on {escape(test_bed.target)}, {escape(test_bed.space)} space</h1>"
        f'<p class="facts">{many} workload{"s" * (many > 1)} · {plan.trials} trials in batches '
        f"of {plan.batch} · {seeds} seed{'s' * (seeds > 1)} · "
        f"{len(plan.tuner_configs) * many * seeds:,} runs</p>"
    )


def _standings(results: Results, rows: Sequence[Standing]) -> str:
    """A line a tuner; the best of a column in bold, as far as it is one to be good at."""
    goal = percent(GOAL)
    columns = [
        _column("regret", rows, lambda row: row.regret, percent),
        _column(f"runs within<br>{goal}", rows, lambda row: _exact(row.reached), percent, -1.0),
        _column(f"trials<br>to {goal}", rows, lambda row: row.trials, count, open_ended=True),
        _column("invalid<br>until then", rows, lambda row: row.invalid, count),
        _column("invalid<br>share", rows, lambda row: row.invalid_share, percent),
        _column("lowered<br>beyond", rows, lambda row: row.lowered, count, 0.0),
        _column("failed<br>compiles", rows, lambda row: row.failed, count, 0.0),
        _column("time", rows, lambda row: _exact(row.seconds.middle), duration),
        _column(
            f"time<br>to {goal}", rows, lambda row: _exact(row.seconds_to_goal.middle), duration
        ),
        _column("worst<br>workload", rows, lambda row: _exact(row.worst[1]), percent),
    ]
    shade = dict(zip(results.tuners, colours(results.tuners), strict=True))
    names = [
        f'<td class="name"><i style="background:{shade[row.tuner]}"></i>{escape(row.tuner)}</td>'
        for row in rows
    ]
    head = ["tuner", *(column[0] for column in columns)]
    return table(head, list(zip(names, *(column[1:] for column in columns), strict=True)))


def _column(
    head: str,
    rows: Sequence[Standing],
    figure_of: Callable[[Standing], Interval],
    form: Callable[[float], str],
    sense: float = 1.0,
    open_ended: bool = False,
) -> list[str]:
    """A heading and its cells. `sense` 1: the lowest is best, -1: the highest, 0: neither."""
    shown = [figure_of(row) for row in rows]
    best = min(sense * each.middle for each in shown)
    cells = []
    for row, each in zip(rows, shown, strict=True):
        text = form(each.middle)
        if sense and len(rows) > 1 and sense * each.middle <= best and np.isfinite(best):
            text = f"<b>{text}</b>"
        around = ranged(each, form)
        unsure = "≥ " if open_ended and row.reached < 1 else ""
        cells.append(unsure + text + (f"<small>{around}</small>" if around else ""))
    return [head, *cells]


def _exact(number: float) -> Interval:
    return Interval(number, number, number)


def _pictures(results: Results, rows: Sequence[Standing]) -> str:
    shades = ("#2f7d5c", "#c0562f", "#a9bccb", "#dcb6a4")
    attempts = legend(_ATTEMPTS, shades, "box") + figure(plots.attempts(results, rows))
    return (
        '<div class="pair">'
        f"<div><h3>Regret after the last trial</h3>{figure(plots.final_regret(results, rows))}"
        '<p class="note">Dots are seeds.</p></div>'
        f"<div><h3>Trials spent on invalid configs</h3>{figure(plots.invalid_trials(results))}"
        "</div>"
        f"<div><h3>Configs compiled</h3>{attempts}</div>"
        f"<div><h3>Time</h3>{figure(plots.seconds(results, rows))}</div></div>"
    )


def _heat_maps(results: Results, rows: Sequence[Standing], titles: Sequence[str]) -> list[str]:
    regret = np.median(results.regret[..., -1], axis=2)
    trials = np.median(results.trials_to_goal, axis=2)
    never = np.median(results.reached, axis=2) < 0.5
    share = results.invalid[..., -1].sum(axis=2) / results.spent.sum(axis=2)
    heads = [escape(text) for text in titles]

    def cells(k: int, w: int) -> str:
        return f"&gt; {results.trials}" if never[k, w] else count(trials[k, w])

    return [
        f"<h3>Regret after {results.trials} trials, median over seeds</h3>",
        _heat(results, rows, heads, regret, _regret_heat, lambda k, w: percent(regret[k, w])),
        f"<h3>Trials to come within {percent(GOAL)}, median over seeds</h3>",
        _heat(
            results, rows, heads, np.where(never, np.inf, trials),
            lambda value: np.log(max(value, 1)) / np.log(max(results.trials, 2)), cells,
        ),
        "<h3>Invalid share of the trials</h3>",
        _heat(results, rows, heads, share, lambda value: value,
              lambda k, w: percent(share[k, w])),
        '<p class="note">Underlined: the best of a column, or as good.</p>',
    ]  # fmt: skip


def _heat(
    results: Results,
    rows: Sequence[Standing],
    heads: Sequence[str],
    values: Floats,
    warmth: Callable[[float], float],
    text: Callable[[int, int], str],
) -> str:
    lines = []
    for row in rows:
        k = results.tuners.index(row.tuner)
        cells = [f"<td>{escape(row.tuner)}</td>"]
        for w in range(len(heads)):
            ground, ink = heat(warmth(float(values[k, w])))
            shown = text(k, w)
            best = np.isfinite(values[k, w]) and values[k, w] <= values[:, w].min() + 1e-9
            shown = f"<b>{shown}</b>" if best else shown
            cells.append(f'<td style="background:{ground};color:{ink}">{shown}</td>')
        lines.append(cells)
    numbered = [f"<small>no. {w + 1}</small><br>{head}" for w, head in enumerate(heads)]
    return table(["", *numbered], lines, "heat")


def _regret_heat(regret: float) -> float:
    """0 at a tenth of a percent, 1 at `_WORST_SHOWN`, even on a log scale."""
    low = np.log(plots.FLOOR)
    return float((np.log(max(regret, plots.FLOOR)) - low) / (np.log(_WORST_SHOWN) - low))


def _grounds(grounds: Sequence[SpaceFacts]) -> str:
    lines = [
        [f"{place}", f'<td class="text">{escape(each.title)}</td>',
         f"{each.configs:,}", percent(each.valid / each.configs), f"{each.optimum_cycles:,}",
         f"{each.near:,}<small>{each.near / each.configs:.2%}</small>"]
        for place, each in enumerate(grounds, 1)
    ]  # fmt: skip
    head = [
        "no.",
        '<th class="text">workload</th>',
        "configs",
        "valid",
        "optimum, cycles",
        f"within {percent(GOAL)}",
    ]
    return table(head, lines)


def _settings(plan: ComparisonPlan) -> str:
    lines = []
    for tuner_config in plan.tuner_configs:
        options = tuner_config.explorer.options.model_dump(mode="json")
        text = ", ".join(f"{name} = {value}" for name, value in options.items()) or "none"
        wrapped = f'<td class="text">{escape(text)}</td>'
        lines.append([escape(tuner_config.label), wrapped])
    return "<h2>Settings</h2>" + table(["tuner", '<th class="text">options</th>'], lines)


def _terms(live: bool) -> str:
    measured = (
        "Tuners ran on the target itself: lowering and simulating are part of the seconds."
        if live
        else "Measurements were replayed from the enumerated space: the seconds are the tuner's "
        "own, models included, without lowering and simulating."
    )
    return "<h2>How to read this</h2>" + definitions([
        ("trial", "A place in a measured batch, spent whether its config fails to compile, fails "
         "when run, or is valid."),
        ("regret", "Best cycles found / optimum − 1; over several workloads the geometric mean of "
         "best / optimum, − 1."),
        (f"trials to {percent(GOAL)}", "Geometric mean over workloads of the trials until the "
         "regret fell to the goal; a run that never got there counts with its whole budget, and "
         "the figure is then a lower bound (≥)."),
        ("lowered beyond", "Configs compiled to be looked at and not measured; failed compiles are "
         "those among them that have no program. Means of a run."),
        ("time", measured + " Runs share the machine's cores; medians are not disturbed by the "
         "first run in a process, which loads libraries."),
        ("intervals", "95 % percentile bootstrap over seeds."),
    ])  # fmt: skip


def _distance(regret: Interval) -> str:
    if regret.middle == 0:
        return "at"
    if np.isinf(regret.middle):
        return "without a valid schedule, infinitely far from"
    return f"{percent(regret.middle)} above"
