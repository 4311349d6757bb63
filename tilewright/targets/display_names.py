"""Shortens names of workloads for tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.user_text import printable
from tilewright.targets.patterns.max_pool import stride_title
from tilewright.targets.steps import STEP_KINDS
from tilewright.targets.workload import Workload


def title(name: str, workload: Workload) -> str:
    """`3×3/2 64→128 @56`, behind the name where that is not the workload's own text: `C4 · 1×1…`.
    An epilogue in brackets stays."""
    text = str(workload)
    if name == text:
        return shape(workload)
    if name.startswith(text):
        return shape(workload) + name.removeprefix(text)
    return f"{printable(name)} · {shape(workload)}"


def layer(names: Sequence[str], workload: Workload) -> str:
    """A workload of a network by the first layer that is one, how many others are, its shape and
    its post-operations: `conv4 +2 · 3×3/1 64→64 @56 residual`; the last two alone where it has no
    name."""
    return f"{layer_name(names, workload)} · {shape(workload)}" if names else shape(workload)


def layer_name(names: Sequence[str], workload: Workload) -> str:
    """The same without what it computes: `conv4 +2`; the shape where it has no name."""
    if not names:
        return shape(workload)
    others = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{printable(names[0])}{others}"


def ascii_only(text: str) -> str:
    """The same for a page whose font has no more: `conv4 +2 - 3x3/1 64-64 @56`."""
    return text.translate({ord("×"): "x", ord("→"): "-", ord("·"): "-"})


def shape(workload: Workload) -> str:
    """Kernel/stride, channels in→out, image; what is unusual behind it: dilation, groups, patterns
    and steps of which not every layer has one. A pool's channels stay."""
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
    extra += "".join(f" {each.title}" for each in w.patterns)
    steps = (STEP_KINDS[each.kind].title for each in w.epilogue if each.kind in STEP_KINDS)
    extra += "".join(f" {each}" for each in dict.fromkeys(steps) if each)
    channels = f"{w.in_channels}→{w.out_channels}"
    return f"{w.kernel_h}×{w.kernel_w}/{stride} {channels} @{image}{extra}{batch}"
