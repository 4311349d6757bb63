"""Page `fusion.html`: the layers of a network, what is fused into each, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.files import Json, as_int, as_list, as_object, as_text
from tilewright.reports.templates import render
from tilewright.tuning.fusion_interface import FusionDecision, FusionSummary

ROW = 58
"""Height of a layer in the picture, in pixels."""
MARGIN = 150
"""Width of the area for lines between layers, in pixels."""
_KINDS = {
    "activation": "clip", "pool": "max-pool", "shortcut": "shortcut", "average": "average",
    "siblings": "sibling",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A layer of the network, drawn as a box on the fusion page.

    Attributes:
        name: name of the layer.
        title: the layer's workload as text.
        cycles: cycles of the layer by itself.
        width: width of the box: cycles of the layer relative to the layer with the most cycles.
        decisions: the decisions whether to fuse the layer's operators.
    """

    name: str
    title: str
    cycles: int
    width: float
    decisions: tuple[FusionDecision, ...]


@dataclass(frozen=True)
class FusionLine:
    """A curve on the fusion page from a layer to a layer that reads its result.

    Attributes:
        path: the curve, as the `d` attribute of an SVG path.
        near: True if the reading layer is drawn directly below the layer that it reads.
    """

    path: str
    near: bool


def fusion_page(network: str, target: str, said: FusionSummary, file: Mapping[str, Json]) -> bytes:
    """Render the HTML page that shows which operators of a network are fused, and what that saves.

    Args:
        network: name of the network.
        target: name of the target.
        said: summary of the fusion decisions, as in `summary.json`.
        file: content of `fusion.json`.

    Returns:
        The page in UTF-8.
    """
    rows = [as_object(row) for row in as_list(file["layers"])]
    largest = max((as_int(row["cycles"]) for row in rows), default=1)
    boxes = [
        Box(
            as_text(row["name"]), as_text(row["title"]), as_int(row["cycles"]),
            as_int(row["cycles"]) / largest,
            tuple(said["decisions"][as_int(place)] for place in as_list(row["labels"])),
        )
        for row in rows
    ]  # fmt: skip
    reads = [[as_int(read) for read in as_list(row["reads"])] for row in rows]
    mode = said["mode"]
    return render(
        "fusion.html.jinja",
        title=f"{network} on {target}: fused operators",
        said=said,
        fused=sum(row["fused"] for row in said["decisions"]),
        beside=[(name, said["cycles"][name]) for name in said["cycles"] if name != mode],
        boxes=boxes,
        lines=_lines(reads),
        height=ROW * len(boxes),
        row=ROW,
        margin=MARGIN,
        kinds=_KINDS,
        refused=[as_object(row) for row in as_list(file["refused"])],
    )


def _lines(reads: Sequence[Sequence[int]]) -> list[FusionLine]:
    """Return the curves that connect each layer with the layers whose results it reads.

    The boxes of the layers stand below each other. A curve bends to the left around the boxes
    between its ends. The longer the curve, the further it bends.

    Args:
        reads: for each layer, the indices of the layers whose results it reads.
    """
    lines = []
    for to, sources in enumerate(reads):
        for source in sources:
            begin, end = (source + 0.5) * ROW, (to + 0.5) * ROW
            reach = min(MARGIN - 12, 18 + 9 * (to - source))
            bow = f"M{MARGIN} {begin:g} C{MARGIN - reach} {begin:g} {MARGIN - reach} {end:g} "
            lines.append(FusionLine(f"{bow}{MARGIN} {end:g}", to - source == 1))
    return lines
