"""Describes a tuning run in Markdown: the description of a record, with the command and links."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

from tilewright.core.sanitize import printable
from tilewright.reports.markdown import block, code, paragraphs, plain
from tilewright.reports.number_format import counted, milliseconds, speedup, whole
from tilewright.reports.run_table import markdown_table, results_rows, sure_gain, sure_time
from tilewright.targets.display_names import layer
from tilewright.targets.workload import Workload
from tilewright.tuning.gains import Before, Total, before_all
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow

Links = Mapping[str, str]
"""Addresses by what is there."""


def network_title(network: str, target: str, tuner: str) -> str:
    """`resnet18 on vta-pynq, default`: the name of a run."""
    return printable(f"{network} on {target}, {tuner}")


def run_name(title: str, tuner: str, seed: int, trials: int) -> str:
    """`default, seed 0, 64 trials: resnet18 on vta-pynq`: the name of a network's run in MLflow,
    where runs of other tuners and seeds stand above and below it."""
    what = title.removesuffix(printable(f", {tuner}"))
    return f"{printable(tuner)}, seed {seed}, {counted(trials, 'trial')}: {what}"


def network_note(
    title: str, workloads: int, trials: int, command: str, links: Links, shared: bool = False
) -> str:
    """Of a network's run, from its beginning; where trials are `shared`, no workload has its
    own."""
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
    """Of the run of one workload of the network's run `title`."""
    of = f"A workload of {plain(title)}: **{plain(layer(names, workload))}**"
    what = f"{of}, {counted(count, 'call')} an inference."
    layers = f"Layers: {', '.join(map(code, names))}" if names else ""
    epilogue = workload.epilogue_text
    return paragraphs(
        what, layers, f"`{workload}`, epilogue `{epilogue}`", block(command, "sh"), listed(links)
    )


def outcome_line(row: WorkloadRow | Total, had: Before) -> str:
    """`baseline 7,318,536 cycles (73.2 ms), tuned 7,136,630 (71.4 ms): gain 1.03×`; `had` is what
    there is without tuning, called by its name where it is not published. Where
    measuring does not repeat, 95 % intervals stand behind: `(1.80–1.86×)`."""
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
    """A note with what came out of the run as its second paragraph."""
    first, _, rest = note.partition("\n\n")
    return paragraphs(first, outcome, rest)


def network_summary(
    title: str, summary: Summary, links: Links, remark: str = "", picture: bytes = b""
) -> str:
    """The results of a network as a page of its own; the `picture`, a PNG file, is part of it."""
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


def listed(links: Links) -> str:
    """A line a link."""
    return "\n".join(f"- [{plain(name)}]({address})" for name, address in links.items())
