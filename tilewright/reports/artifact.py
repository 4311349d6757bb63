"""Description of an artifact's content and cost, as lines for the terminal and for pages.

An artifact is the folder that `tilewright build` writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text
from tilewright.core.user_text import printable
from tilewright.networks.artifact.library import LIBRARY
from tilewright.networks.compiled.weights_file import WEIGHTS
from tilewright.reports.markdown import escape_text, paragraphs
from tilewright.reports.number_format import mega, milliseconds, percent, pluralise

LIBRARY_KIND, SIZED_KIND = "library", "sized library"
MEBI = 1 << 20


def built_lines(manifest: Mapping[str, Json], out: Path) -> list[str]:
    """Describe an artifact, the folder that `tilewright build` writes, as lines of plain text.

    Args:
        manifest: content of the artifact's `manifest.json`.
        out: folder of the artifact.

    Returns:
        A headline with network, target and folder, followed by indented lines with details.
    """
    head = f"{as_text(manifest['network'])} on {as_text(manifest['target'])} → {out}"
    of = {LIBRARY_KIND: _library, SIZED_KIND: _libraries}.get(str(manifest.get("kind")), _programs)
    return [head, *of(manifest, out)]


def built_note(manifest: Mapping[str, Json], out: Path, warnings: Sequence[str]) -> str:
    """Describe an artifact in Markdown: the content of `built_lines` as a list, and the warnings.

    Args:
        manifest: content of the artifact's `manifest.json`.
        out: folder of the artifact.
        warnings: warnings of the build.

    Returns:
        The text.
    """
    head, *lines = built_lines(manifest, out)
    doubts = "\n".join(f"- {escape_text(warning)}" for warning in warnings)
    listed = "\n".join(f"- {escape_text(line.strip())}" for line in lines)
    return paragraphs(f"# {escape_text(head)}", listed, "Doubts:\n\n" + doubts if doubts else "")


def _programs(manifest: Mapping[str, Json], out: Path) -> list[str]:
    cycles, macs = as_object(manifest["cycles"]), as_object(manifest["macs"])
    stream, alone = as_int(cycles["stream"]), as_int(cycles["sum_of_layers"])
    total, ours = as_int(macs["total"]), as_int(macs["accelerator"])
    layers = as_list(manifest["layers"])
    segments = [step for step in as_list(manifest["steps"]) if as_object(step)["kind"] == "segment"]
    hertz = as_number(as_object(as_object(manifest["specification"])["keys"])["clock_mhz"]) * 1e6
    streams = f"{len(segments)} {pluralise(len(segments), 'stream')}"
    buffers = [as_object(buffer) for buffer in as_list(as_object(manifest["memory"])["buffers"])]
    return [
        f"  {len(layers)} {pluralise(len(layers), 'layer')} in {streams}: {stream:,} cycles, "
        f"{milliseconds(stream / hertz)} ms",
        f"{alone:,} cycles is the sum of all layers run alone",
        f"  {percent(ours / total if total else 1.0)} of {mega(total)} MMAC on the accelerator",
        f"  {as_int(manifest['dram_bytes']) / MEBI:.2f} MiB of memory:",
        *(f"    {as_text(row['name']):14}{as_int(row['bytes']):>14,} bytes" for row in buffers),
        *(f"  {line}" for line in _accuracy(manifest)),
        *_left_to_others(manifest),
    ]


def accuracy_lines(accuracy: Mapping[str, Json]) -> list[str]:
    """Return lines about the error of a network's outputs relative to the reference.

    The reference is the outputs of the source model, which another program such as onnxruntime
    computed on sample inputs.

    Args:
        accuracy: the entry `accuracy` of an artifact's `manifest.json`.

    Returns:
        The lines.
    """
    samples = as_int(accuracy["samples"])
    tops = [as_object(output)["same_top"] for output in as_list(accuracy["outputs"])]
    known = [as_number(top) for top in tops if top is not None]
    relative = as_number(accuracy["error"])
    decibels = f", {-20 * math.log10(relative):.0f} dB" if relative > 0 else ""
    error = (
        f"relative error {relative:.2g}{decibels} against {as_text(accuracy['reference'])} (at "
        f"most {as_number(accuracy['tolerance']):g})"
    )
    of = f"on {samples} {pluralise(samples, 'sample')}"
    same = [f"{of}, the same largest value in {percent(min(known))}"] if known else [of]
    return [error, *same]


def unchecked_lines(manifest: Mapping[str, Json]) -> list[str]:
    """Return a line with the names of the outputs that the accuracy check could not check.

    An output cannot be checked if it has the same value for all samples.

    Args:
        manifest: content of an artifact's `manifest.json`.

    Returns:
        A list with the line; empty if all outputs were checked.
    """
    if "not_checked" in manifest:
        names = [as_text(name) for name in as_list(manifest["not_checked"])]
    else:
        outputs = as_list(as_object(manifest.get("accuracy") or {}).get("outputs", []))
        rows = map(as_object, outputs)
        names = [as_text(row["name"]) for row in rows if row.get("checked", True) is False]
    if not names:
        return []
    return [f"not checked, because no sample affects it: {', '.join(map(printable, names))}"]


def _accuracy(manifest: Mapping[str, Json]) -> list[str]:
    result = manifest.get("accuracy")
    lines = [] if result is None else accuracy_lines(as_object(result))
    lines += unchecked_lines(manifest)
    lost = as_object(
        as_object(manifest.get("quantisation") or {}).get("rounded_weights_decibels") or {}
    )
    if lost:
        worst = min(lost, key=lambda name: as_number(lost[name]))
        lines.append(
            f"{len(lost)} {pluralise(len(lost), 'layer')} with weights that were rounded again, "
            f"the worst is {worst} with {as_number(lost[worst]):.1f} dB"
        )
    return lines


def _left_to_others(manifest: Mapping[str, Json]) -> list[str]:
    """Return lines about the operators on the CPU, and whether a board can run the network alone.

    Args:
        manifest: content of the artifact's `manifest.json`.
    """
    islands = as_list(manifest["cpu"])
    names = [
        as_text(as_object(operator)["operator"]) or "?"
        for island in islands
        for operator in as_list(as_object(island)["operators"])
    ]
    moves = sum(not as_list(as_object(island)["operators"]) for island in islands)
    kinds = ", ".join(
        [f"{names.count(kind)} {kind}" for kind in dict.fromkeys(names)]
        + ([f"{moves} {pluralise(moves, 'change')} of layout"] if moves else [])
    )
    left = [f"  left to the CPU: {kinds}"] if islands else []
    if manifest["bare"] is True:
        return [
            *left,
            ("  a board can run it alone: 'tilewright board runtime DIR' writes the C code"),
        ]
    if islands:
        return [*left, "  a board cannot run it alone: the host must compute the operators above"]
    return [*left, f"  a board cannot run it alone: {as_text(manifest['why_not_bare'])}"]


def region_lines(manifest: Mapping[str, Json]) -> list[str]:
    """Describe the regions of a network, which are the parts that onnxruntime runs.

    Args:
        manifest: content of an artifact's `manifest.json`.

    Returns:
        For each region, a line with its operators and its size. If the manifest states why
        onnxruntime runs the region, a line with the first reason follows.
    """
    lines = []
    for row in map(as_object, as_list(manifest.get("regions", []))):
        kinds = [as_text(as_object(operator)["operator"]) for operator in as_list(row["operators"])]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        size = as_int(as_object(as_object(manifest["files"])[as_text(row["file"])])["bytes"])
        macs = as_int(row["macs"])  # 0 if shapes depend on values
        work = f"{mega(macs)} MMAC, " if macs else ""
        lines.append(
            f"  onnxruntime runs {len(kinds)} {pluralise(len(kinds), 'operator')} "
            f"({work}{size / MEBI:.2f} MiB): {counts}"
        )
        causes = [as_object(cause) for cause in as_list(row["causes"])]
        if causes:
            first = causes[0]
            more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
            lines.append(
                f"    because of '{as_text(first['name'])}' ({as_text(first['operator'])}){more}: "
                f"{as_text(first['reason'])}"
            )
    return lines


def _libraries(manifest: Mapping[str, Json], out: Path) -> list[str]:
    """Describe an artifact that contains one library per input size.

    Args:
        manifest: content of the artifact's `manifest.json`.
        out: folder of the artifact.

    Returns:
        The lines about each library. The last line says for which dimensions inputs of other sizes
        are padded to the next larger library.
    """
    padded = [as_text(item) for item in as_list(manifest["padded"])]
    lines = []
    for row in map(as_object, as_list(manifest["sizes"])):
        at = ", ".join(f"{name} {as_int(size)}" for name, size in as_object(row["at"]).items())
        library = as_object(row["library"])
        lines += [
            f"  {at}:",
            *(f"  {line}" for line in _library(library, out / as_text(row["folder"]))),
        ]
    between = (
        f"padded for sizes in between: {', '.join(padded)}"
        if padded
        else "sizes in between are not accepted"
    )
    return [*lines, f"  {between}"]


def _mebi(path: Path) -> str:
    return f"{(path.stat().st_size if path.exists() else 0) / MEBI:.1f} MiB"


def _library(manifest: Mapping[str, Json], out: Path) -> list[str]:
    macs, layers = as_object(manifest["macs"]), as_list(manifest["layers"])
    total, ours = as_int(macs["total"]), as_int(macs["kernels"])
    kernels = {as_text(as_object(row)["function"]) for row in layers}
    if not layers:
        return region_lines(manifest)
    operators = as_int(manifest.get("compiled_operators", len(layers)))
    return [
        (
            f"  {len(layers)} {pluralise(len(layers), 'layer')} computed by {len(kernels)} "
            f"{pluralise(len(kernels), 'kernel')}: {percent(ours / total if total else 1.0)} of "
            f"{mega(total)} MMAC; TVM compiles the rest, {operators} operators in all"
        ),
        *region_lines(manifest),
        f"  {_mebi(out / LIBRARY)} of code, {_mebi(out / WEIGHTS)} of weights",
        *(f"  {line}" for line in _accuracy(manifest)),
    ]
