"""Short names of workloads for tables and plots."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.user_text import printable
from tilewright.targets.patterns.max_pool import stride_title
from tilewright.targets.steps import STEP_KINDS
from tilewright.targets.workload import Workload


def title(name: str, workload: Workload) -> str:
    """Return a short title of a workload, such as `3×3/2 64→128 @56`.

    A workload with a name of its own keeps the name, as in `C4 · 1×1…`.

    Args:
        name: name of the workload. If it starts with the workload's text, the text is replaced by
            the shape, and the rest, such as an epilogue in brackets, is kept.
        workload: the workload.
    """
    text = str(workload)
    if name == text:
        return shape(workload)
    if name.startswith(text):
        return shape(workload) + name.removeprefix(text)
    return f"{printable(name)} · {shape(workload)}"


def layer(names: Sequence[str], workload: Workload) -> str:
    """Return a label for a workload of a network, such as `conv4 +2 · 3×3/1 64→64 @56 residual`.

    The label consists of the name of the first layer that has this workload, the number of other
    layers that have it, the shape, and the post-operations.

    Args:
        names: names of the layers with this workload. If empty, the label has only the shape.
        workload: the workload.
    """
    return f"{layer_name(names, workload)} · {shape(workload)}" if names else shape(workload)


def layer_name(names: Sequence[str], workload: Workload) -> str:
    """Return a short name for a workload that several layers of a network may share.

    Args:
        names: names of the layers that have this workload.
        workload: the workload, whose shape is the result if there are no names.

    Returns:
        The first name and the number of further layers, such as `conv4 +2`.
    """
    if not names:
        return shape(workload)
    others = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{printable(names[0])}{others}"


def ascii_only(text: str) -> str:
    """Replace ×, → and · by ASCII characters, for fonts that lack these symbols.

    For example, `conv4 +2 · 3×3/1 64→64 @56` becomes `conv4 +2 - 3x3/1 64-64 @56`.
    """
    return text.translate({ord("×"): "x", ord("→"): "-", ord("·"): "-"})


def shape(workload: Workload) -> str:
    """Describe the shape of a workload as kernel/stride, channels in→out and image size.

    Unusual properties follow if the workload has them: dilation, groups, fused patterns, notable
    element-wise steps, and the batch size.
    """
    w = workload
    batch = f" n={w.batch}" if w.batch > 1 else ""
    if w.operator == "dense":
        return f"dense {w.in_channels}→{w.out_channels}{batch}"
    image = str(w.height) if w.height == w.width else f"{w.height}×{w.width}"
    stride = stride_title(w.stride_h, w.stride_w)
    extra = f" d={w.dilation_h}" if (w.dilation_h, w.dilation_w) != (1, 1) else ""
    if w.operator == "max_pool":
        return f"max {w.kernel_h}×{w.kernel_w}/{stride} {w.in_channels} @{image}{extra}{batch}"
    extra += f" g={w.groups}" if w.groups > 1 else ""
    extra += "".join(f" {step.title}" for step in w.patterns)
    steps = (STEP_KINDS[step.kind].title for step in w.epilogue if step.kind in STEP_KINDS)
    extra += "".join(f" {step}" for step in dict.fromkeys(steps) if step)
    channels = f"{w.in_channels}→{w.out_channels}"
    return f"{w.kernel_h}×{w.kernel_w}/{stride} {channels} @{image}{extra}{batch}"
