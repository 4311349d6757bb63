"""The ten ResNet-18 convolutions a VTA runs, with their count in the network."""

from __future__ import annotations

from targets.workload import Workload, parse_workload

_SHAPES = (
    # name, count, (h = w, c), o, kernel, stride, pad
    ("C2", 4, 56, 64, 64, 3, 1, 1),
    ("C3", 1, 56, 64, 128, 3, 2, 1),
    ("C4", 1, 56, 64, 128, 1, 2, 0),
    ("C5", 3, 28, 128, 128, 3, 1, 1),
    ("C6", 1, 28, 128, 256, 3, 2, 1),
    ("C7", 1, 28, 128, 256, 1, 2, 0),
    ("C8", 3, 14, 256, 256, 3, 1, 1),
    ("C9", 1, 14, 256, 512, 3, 2, 1),
    ("C10", 1, 14, 256, 512, 1, 2, 0),
    ("C11", 3, 7, 512, 512, 3, 1, 1),
)

RESNET18: dict[str, tuple[Workload, int]] = {
    name: (parse_workload(f"conv2d:n=1,c={c},h={hw},w={hw},o={o},k={k},s={s},p={p}"), count)
    for name, count, hw, c, o, k, s, p in _SHAPES
}
"""By the name TVM's own benchmark gives it."""
