"""Results of a tuning run as a table, and as Markdown for Prefect and MLflow."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from tilewright.core.user_text import printable
from tilewright.reports.markdown import (
    Links,
    Row,
    block,
    code,
    escape_text,
    list_links,
    markdown_table,
    paragraphs,
    with_known,
)
from tilewright.reports.number_format import (
    count_text,
    integer_text,
    interval_text,
    milliseconds,
    percent,
    speedup,
)
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import layer
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.gains import FALLBACK, FIGURES, RULE, Total, four_figures
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow, cycles_of, seconds_of
from tilewright.tuning.run_figures import above_limit, valid_share


def results_rows(summary: Summary) -> list[Row]:
    """Return the results of a run as a table, with one row per workload and one for their total.

    The columns contain the latencies of the stock compiler's fallback, the rule schedule, the tuned
    schedule and the lower bound, and the gains. Columns that are empty in every row are left out.

    Args:
        summary: content of `summary.json`.

    Returns:
        The rows.
    """
    rows = summary["workloads"]
    lines = [
        {
            "layer": layer(row["names"], parse_workload(row["workload"], row["epilogue"])),
            **_latencies(row),
            "calls": integer_text(row["count"]),
            "trials": integer_text(row["trials"]),
            "valid": percent(valid_share(row["invalid_trials"], row["trials"])),
        }
        for row in rows
    ]
    trials = integer_text(sum(row["trials"] for row in rows))
    total = {"layer": "tuned layers", **_latencies(summary["total"])}
    lines.append(total | {"calls": "", "trials": trials, "valid": ""})
    return with_known(lines)


def sure_time(row: WorkloadRow | Total) -> str:
    """Return the 95 % interval of the tuned latency in ms, such as `0.905–0.921`.

    The text is empty if there is no interval, because measurements of the target do not vary.
    """
    result = row["validation"]["tuned_interval"] if "validation" in row else None
    return "" if result is None else interval_text(result, milliseconds)


def sure_gain(row: WorkloadRow | Total) -> str:
    """Return the 95 % interval of the gain over the rule schedule, such as `1.80–1.86×`.

    The text is empty if there is no interval, because measurements of the target do not vary.
    """
    result = row["validation"]["gain_interval"] if "validation" in row else None
    return "" if result is None else f"{result.low:.2f}–{result.high:.2f}×"


def _latencies(row: WorkloadRow | Total) -> Row:
    figures, (_, above) = four_figures(row), above_limit(row)
    known = {name: getattr(figures, name) for name in FIGURES}
    return {
        **{f"{name} cycles": integer_text(cycles_of(latency)) for name, latency in known.items()},
        "over rule": speedup(figures.gain_over(RULE), 1.0),
        "over rule, 95 %": sure_gain(row),
        "over fallback": speedup(figures.gain_over(FALLBACK), 1.0),
        "above bound": "" if above is None else percent(above),
        **{f"{name} ms": milliseconds(seconds_of(latency)) for name, latency in known.items()},
        "tuned ms, 95 %": sure_time(row),
    }


def network_title(network: str, target: str, tuner: str) -> str:
    """Return the title of a run, such as `resnet18 on vta-pynq, default`."""
    return printable(f"{network} on {target}, {tuner}")


def run_name(title: str, tuner: str, seed: int, trials: int) -> str:
    """Return the name of a tuning run in MLflow.

    An example is `default, seed 0, 64 trials: resnet18 on vta-pynq`. The tuner, the seed and the
    trials come first, because they distinguish the run from its neighbours in MLflow's list.

    Args:
        title: title of the run from `network_title`.
        tuner: name of the tuner.
        seed: seed of the run.
        trials: number of trials per workload.

    Returns:
        The name.
    """
    what = title.removesuffix(printable(f", {tuner}"))
    return f"{printable(tuner)}, seed {seed}, {count_text(trials, 'trial')}: {what}"


def network_note(
    title: str, workloads: int, trials: int, command: str, links: Links, shared: bool = False
) -> str:
    """Return the description of a tuning run in Markdown, which is written when the run begins.

    Args:
        title: title of the run from `network_title`.
        workloads: number of workloads.
        trials: maximum number of trials per workload.
        command: command line that starts the run.
        links: addresses of related pages, by title.
        shared: True if the trials are allocated among all workloads; False if each workload has its
            own.

    Returns:
        The text.
    """
    figures = (
        f"{count_text(workloads * trials, 'trial')} together"
        if shared
        else f"{count_text(trials, 'trial')} each"
    )
    count = f"{count_text(workloads, 'workload')}, up to {figures}"
    what = f"**{escape_text(title)}**: {count}."
    return paragraphs(what, block(command, "sh"), list_links(links))


def workload_note(
    names: Sequence[str], workload: Workload, count: int, title: str, command: str, links: Links
) -> str:
    """Return the description of the MLflow run of one workload in Markdown.

    Args:
        names: layers that run the workload.
        workload: the workload.
        count: calls of the workload per inference.
        title: title of the network's run from `network_title`.
        command: command line that starts the network's run.
        links: addresses of related pages, by title.

    Returns:
        The text.
    """
    of = f"A workload of {escape_text(title)}: **{escape_text(layer(names, workload))}**"
    what = f"{of}, {count_text(count, 'call')} per inference."
    layers = f"Layers: {', '.join(map(code, names))}" if names else ""
    epilogue = workload.epilogue_text
    return paragraphs(
        what,
        layers,
        f"`{workload}`, epilogue `{epilogue}`",
        block(command, "sh"),
        list_links(links),
    )


def figures_text(row: WorkloadRow | Total) -> str:
    """Return the latencies and gains of a row in words.

    The tuned latency comes first, followed by the rule schedule, the stock compiler's fallback and
    the lower bound. If measurements vary, the 95 % interval follows in brackets.

    Args:
        row: results of a workload or of the whole network, with a tuned schedule.

    Returns:
        For example `tuned 7,136,630 cycles (71.4 ms): 1.03× as fast as the rule, 7,318,536 cycles
        (73.2 ms); 34.1× as fast as the stock compiler's fallback, …; 12 % above the bound, …`.
    """
    figures, (limit, above) = four_figures(row), above_limit(row)
    assert figures.tuned is not None, "a schedule was chosen"
    tuned = f"tuned {_latency(figures.tuned)}" + (f" ({sure})" if (sure := sure_time(row)) else "")
    said = []
    if gain := speedup(figures.gain_over(RULE), 1.0):
        sure = f" ({sure})" if (sure := sure_gain(row)) else ""
        said.append(f"{gain}{sure} as fast as the rule, {_latency(figures.rule)}")
    if gain := speedup(figures.gain_over(FALLBACK), 1.0):
        said.append(
            f"{gain} as fast as the stock compiler's fallback, {_latency(figures.fallback)}"
        )
    if above is not None:
        least = f", {_latency(figures.bound)}" if figures.bound is not None else ""
        said.append(f"{percent(above)} above the {limit}{least}")
    return tuned + (f": {'; '.join(said)}" if said else "")


def outcome_line(row: WorkloadRow | Total) -> str:
    """Return the latencies and gains of a row as a sentence (see `figures_text`).

    If no schedule is valid, the sentence says so.

    Args:
        row: results of a workload or of the whole network.
    """
    if four_figures(row).tuned is None:
        return "No trial is valid."
    text = figures_text(row)
    return text[0].upper() + text[1:] + "."


def with_outcome(note: str, outcome: str) -> str:
    """Insert the result of a run into its description, as the second paragraph.

    Args:
        note: the description, from `network_note` or `workload_note`.
        outcome: the result, from `outcome_line`.

    Returns:
        The extended description.
    """
    first, _, rest = note.partition("\n\n")
    return paragraphs(first, outcome, rest)


def network_summary(
    title: str, summary: Summary, links: Links, remark: str = "", picture: bytes = b""
) -> str:
    """Return the results of a tuning run as a Markdown page.

    Args:
        title: title of the run from `network_title`.
        summary: content of `summary.json`.
        links: addresses of related pages, by title.
        remark: paragraph to show before the results.
        picture: PNG file to embed; empty for none.

    Returns:
        The text.
    """
    outcome = outcome_line(summary["total"])
    return paragraphs(
        f"# {escape_text(title)}",
        escape_text(remark),
        outcome,
        list_links(links),
        markdown_table(results_rows(summary)),
        f"![best latency over trials](data:image/png;base64,{b64encode(picture).decode()})"
        if picture
        else "",
    )


def _latency(latency: Latency | None) -> str:
    cycles, seconds = cycles_of(latency), seconds_of(latency)
    time = f"{milliseconds(seconds)} ms" if seconds else ""
    if not cycles:
        return time
    return f"{integer_text(cycles)} cycles" + (f" ({time})" if time else "")
