"""Tabulates the results of a run for people: a row a layer, for pages of any kind."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.reports.markdown import plain
from tilewright.reports.number_format import milliseconds, percent, ranged, speedup, whole
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload
from tilewright.tuning.gains import Before, Total, before, before_all
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow

Row = dict[str, str]
"""Cells by the heading of their column."""


def results_rows(summary: Summary) -> list[Row]:
    """A row a workload and one of an inference. What the target cannot tell has no column; `~`
    marks what rests on the stock compiler's fallback, or on a rule, where it publishes no
    schedule."""
    rows = summary["workloads"]
    lines = [
        {
            "layer": layer(row["names"], parse_workload(row["workload"], row["epilogue"])),
            **_latencies(row, before(row)),
            "calls": whole(row["count"]),
            "trials": whole(row["trials"]),
            "valid": percent(1 - row["invalid_trials"] / max(row["trials"], 1)),
        }
        for row in rows
    ]
    trials = whole(sum(row["trials"] for row in rows))
    total = {"layer": "tuned layers", **_latencies(summary["total"], before_all(rows))}
    lines.append(total | {"calls": "", "trials": trials, "valid": ""})
    return with_known(lines)


def with_known(rows: Sequence[Row]) -> list[Row]:
    """The rows without columns that none of them has a cell of."""
    known = [head for head in rows[0] if any(row[head] for row in rows)] if rows else []
    return [{head: row[head] for head in known} for row in rows]


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows of equal headings; all but the first column are figures, and stand on the right."""
    heads = list(rows[0])
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[plain(row[head]) for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sure_time(row: WorkloadRow | Total) -> str:
    """`0.905–0.921`, milliseconds: the 95 % interval of what the tuned schedule takes; empty where
    measuring repeats."""
    found = row["validation"]["tuned_interval"] if "validation" in row else None
    return "" if found is None else ranged(found, milliseconds)


def sure_gain(row: WorkloadRow | Total) -> str:
    """`1.80–1.86×`: that of the gain."""
    found = row["validation"]["gain_interval"] if "validation" in row else None
    return "" if found is None else f"{found.low:.2f}–{found.high:.2f}×"


def _latencies(row: WorkloadRow | Total, had: Before) -> Row:
    """The latencies of `row`, beside what there is without tuning."""
    bound, mark = _above(row), "" if had.is_published else "~"
    return {
        "baseline cycles": marked(mark, whole(had.cycles)),
        "tuned cycles": whole(row["tuned_cycles"]),
        "gain": marked(mark, speedup(had.gain(row), 1.0)),
        "gain, 95 %": sure_gain(row),
        "baseline ms": marked(mark, milliseconds(had.seconds)),
        "tuned ms": milliseconds(row["tuned_seconds"]),
        "tuned ms, 95 %": sure_time(row),
        "above bound": "" if bound is None else percent(bound),
    }


def marked(mark: str, text: str) -> str:
    """Nothing stays nothing."""
    return mark + text if text else ""


def _above(row: WorkloadRow | Total) -> float | None:
    """How far the tuned schedule is above what no schedule beats."""
    tuned, bound = row["tuned_seconds"], row["bound_seconds"] or row["roofline_seconds"]
    return tuned / bound - 1 if tuned and bound else None
