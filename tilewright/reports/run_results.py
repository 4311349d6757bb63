"""Results of a run as a table with a row per layer, and as Markdown for records."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from tilewright.core.user_text import printable
from tilewright.reports.markdown import (
    Links,
    Row,
    block,
    code,
    listed,
    markdown_table,
    marked,
    paragraphs,
    plain,
    with_known,
)
from tilewright.reports.number_format import counted, milliseconds, percent, ranged, speedup, whole
from tilewright.targets.display_names import layer
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.gains import Before, Total, before, before_all
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow
from tilewright.tuning.run_figures import above_limit, valid_share


def results_rows(summary: Summary) -> list[Row]:
    """Return one row per workload, and one for an inference.

    Values that the target does not provide have no column. `~` marks gains over the stock
    compiler's fallback or a rule, if no schedule is published.
    """
    rows = summary["workloads"]
    lines = [
        {
            "layer": layer(row["names"], parse_workload(row["workload"], row["epilogue"])),
            **_latencies(row, before(row)),
            "calls": whole(row["count"]),
            "trials": whole(row["trials"]),
            "valid": percent(valid_share(row["invalid_trials"], row["trials"])),
        }
        for row in rows
    ]
    trials = whole(sum(row["trials"] for row in rows))
    total = {"layer": "tuned layers", **_latencies(summary["total"], before_all(rows))}
    lines.append(total | {"calls": "", "trials": trials, "valid": ""})
    return with_known(lines)


def sure_time(row: WorkloadRow | Total) -> str:
    """Return the 95 % interval of the tuned latency in milliseconds, such as `0.905–0.921`.

    It is empty on a deterministic target.
    """
    found = row["validation"]["tuned_interval"] if "validation" in row else None
    return "" if found is None else ranged(found, milliseconds)


def sure_gain(row: WorkloadRow | Total) -> str:
    """Return the 95 % interval of the gain, such as `1.80–1.86×`; empty on a deterministic
    target."""
    found = row["validation"]["gain_interval"] if "validation" in row else None
    return "" if found is None else f"{found.low:.2f}–{found.high:.2f}×"


def _latencies(row: WorkloadRow | Total, had: Before) -> Row:
    """Return the cells with the latencies of `row` and those without tuning."""
    (_, above), mark = above_limit(row), "" if had.is_published else "~"
    return {
        "baseline cycles": marked(mark, whole(had.cycles)),
        "tuned cycles": whole(row["tuned_cycles"]),
        "gain": marked(mark, speedup(had.gain(row), 1.0)),
        "gain, 95 %": sure_gain(row),
        "baseline ms": marked(mark, milliseconds(had.seconds)),
        "tuned ms": milliseconds(row["tuned_seconds"]),
        "tuned ms, 95 %": sure_time(row),
        "above bound": "" if above is None else percent(above),
    }


def network_title(network: str, target: str, tuner: str) -> str:
    """Return the title of a run, such as `resnet18 on vta-pynq, default`."""
    return printable(f"{network} on {target}, {tuner}")


def run_name(title: str, tuner: str, seed: int, trials: int) -> str:
    """Return the MLflow name of a network's run.

    An example is `default, seed 0, 64 trials: resnet18 on vta-pynq`. It begins with what
    distinguishes it from the neighbouring runs in MLflow's list.
    """
    what = title.removesuffix(printable(f", {tuner}"))
    return f"{printable(tuner)}, seed {seed}, {counted(trials, 'trial')}: {what}"


def network_note(
    title: str, workloads: int, trials: int, command: str, links: Links, shared: bool = False
) -> str:
    """Return the description of a network's run in Markdown, written when the run begins.

    `shared` says whether the workloads share their trials.
    """
    each = (
        f"{counted(workloads * trials, 'trial')} together"
        if shared
        else f"{counted(trials, 'trial')} each"
    )
    count = f"{counted(workloads, 'workload')}, up to {each}"
    what = f"**{plain(title)}**: {count}."
    return paragraphs(what, block(command, "sh"), listed(links))


def workload_note(
    names: Sequence[str], workload: Workload, count: int, title: str, command: str, links: Links
) -> str:
    """Return the description of the run of one workload. `title` is that of the network's run."""
    of = f"A workload of {plain(title)}: **{plain(layer(names, workload))}**"
    what = f"{of}, {counted(count, 'call')} an inference."
    layers = f"Layers: {', '.join(map(code, names))}" if names else ""
    epilogue = workload.epilogue_text
    return paragraphs(
        what, layers, f"`{workload}`, epilogue `{epilogue}`", block(command, "sh"), listed(links)
    )


def outcome_line(row: WorkloadRow | Total, had: Before) -> str:
    """Return the result of a run in one line.

    An example is `baseline 7,318,536 cycles (73.2 ms), tuned 7,136,630 (71.4 ms): gain 1.03×`.
    `had` is the latency without tuning; its origin is named if it is not published. If measurements
    vary, 95 % intervals follow, such as `(1.80–1.86×)`.
    """
    earlier = _latency(had.cycles, had.seconds)
    after = _latency(row["tuned_cycles"], row["tuned_seconds"])
    if not after:
        return "Nothing that was tried is valid."
    gain = speedup(had.gain(row), 1.0)
    name = "baseline" if had.is_published else had.over
    baseline = f"{name} {earlier}, " if earlier else ""
    after += f" ({sure})" if (sure := sure_time(row)) else ""
    gain += f" ({sure})" if (sure := sure_gain(row)) else ""
    line = f"{baseline}tuned {after}" + (f": gain {gain}" if gain else "")
    return line[0].upper() + line[1:] + "."


def with_outcome(note: str, outcome: str) -> str:
    """Insert the result of a run as the second paragraph of its description."""
    first, _, rest = note.partition("\n\n")
    return paragraphs(first, outcome, rest)


def network_summary(
    title: str, summary: Summary, links: Links, remark: str = "", picture: bytes = b""
) -> str:
    """Return the results of a network as a Markdown page. `picture` is a PNG file to embed."""
    outcome = outcome_line(summary["total"], before_all(summary["workloads"]))
    return paragraphs(
        f"# {plain(title)}",
        plain(remark),
        outcome,
        listed(links),
        markdown_table(results_rows(summary)),
        f"![best latency over trials](data:image/png;base64,{b64encode(picture).decode()})"
        if picture
        else "",
    )


def _latency(cycles: int | None, seconds: float | None) -> str:
    time = f"{milliseconds(seconds)} ms" if seconds else ""
    if not cycles:
        return time
    return f"{whole(cycles)} cycles" + (f" ({time})" if time else "")
