"""Lists layers that benchmarks run: ResNet-18's ten convolutions on a VTA, and shapes from
elsewhere.
"""

from __future__ import annotations

from tilewright.targets.workload import Workload, parse_workload

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
"""With their count in the network, by the name TVM's own benchmark gives them."""

OTHERS: dict[str, Workload] = {
    name: parse_workload(text)
    for name, text in (
        ("alexnet", "conv2d:n=1,c=64,h=27,w=27,o=192,k=5,s=1,p=2"),
        ("vgg16", "conv2d:n=1,c=256,h=28,w=28,o=512,k=3,s=1,p=1"),
        ("resnet50 1", "conv2d:n=1,c=256,h=56,w=56,o=64,k=1,s=1,p=0"),
        ("resnet50 2", "conv2d:n=1,c=1024,h=14,w=14,o=256,k=1,s=1,p=0"),
        ("mobilenet_v1", "conv2d:n=1,c=512,h=14,w=14,o=512,k=1,s=1,p=0"),
        ("inception_v3", "conv2d:n=1,c=48,h=35,w=35,o=64,k=5,s=1,p=2"),
    )
}
"""Shapes of other networks of the zoo. Of all defaults, only the weight of exposed bytes and the
size of a blind first batch were chosen with them in sight."""
