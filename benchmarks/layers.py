"""Layers that benchmarks run, split into development layers and held-out ("judged") layers.

All benchmarks use this one split. Options of tuners are chosen on `DEVELOPMENT` only. Claims about
layers on which a tuner was not adjusted use `JUDGED`. CPU estimates have a separate split: their
constants were chosen on `CPU_DEVELOPMENT`, and they are evaluated on `CPU_JUDGED`. No option was
chosen on a Gemmini layer, so all Gemmini layers are held-out.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Convolutions of ResNet-18 with their number of calls, by the names in TVM's own benchmark."""


def _name_workloads(shapes: Mapping[str, str], epilogue: str | None = None) -> dict[str, Workload]:
    return {name: parse_workload(text, epilogue) for name, text in shapes.items()}


OTHERS = _name_workloads(
    {
        "alexnet": "conv2d:n=1,c=64,h=27,w=27,o=192,k=5,s=1,p=2",
        "vgg16": "conv2d:n=1,c=256,h=28,w=28,o=512,k=3,s=1,p=1",
        "resnet50 1": "conv2d:n=1,c=256,h=56,w=56,o=64,k=1,s=1,p=0",
        "resnet50 2": "conv2d:n=1,c=1024,h=14,w=14,o=256,k=1,s=1,p=0",
        "mobilenet_v1": "conv2d:n=1,c=512,h=14,w=14,o=512,k=1,s=1,p=0",
        "inception_v3": "conv2d:n=1,c=48,h=35,w=35,o=64,k=5,s=1,p=2",
    }
)
"""Layers of other built-in networks."""

DEVELOPMENT: dict[str, Workload] = {name: work for name, (work, _) in RESNET18.items()} | OTHERS
"""Layers on which options were chosen. The weight of exposed bytes, and the number of programs that
a first batch without estimates compiles, were chosen on all sixteen; `risk` on C4, C6, C8 and C10;
and the details that the ML²Tuner paper leaves open on C4, C8 and C11."""

JUDGED = _name_workloads(
    {
        "densenet121": "conv2d:n=1,c=256,h=56,w=56,o=128,k=1,s=1,p=0",
        "squeezenet": "conv2d:n=1,c=32,h=27,w=27,o=128,k=3,s=1,p=1",
        "resnet101": "conv2d:n=1,c=512,h=28,w=28,o=1024,k=1,s=2,p=0",
        "yolov3_tiny": "conv2d:n=1,c=128,h=26,w=26,o=256,k=3,s=1,p=1",
        "googlenet": "conv2d:n=1,c=32,h=14,w=14,o=128,k=5,s=1,p=2",
        "efficientnet_b0": "conv2d:n=1,c=320,h=7,w=7,o=1280,k=1,s=1,p=0",
        "mobilenet_v2": "conv2d:n=1,c=96,h=14,w=14,o=576,k=1,s=1,p=0",
        "unet": "conv2d:n=1,c=128,h=32,w=32,o=64,k=3,s=1,p=1",
    }
)
"""Held-out layers, on which no option was chosen. They were listed by hand before any tuner ran on
them, and come from networks without a layer in the lists above. Do not use them to choose a
default."""

GEMMINI_JUDGED = _name_workloads(
    {
        "attention values": "dense:n=128,c=128,o=64",
        "1×1 96→24 @14": "conv2d:n=1,c=96,h=14,w=14,o=24,k=1,s=1,p=0",
        "3×3 32→64 @14": "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1",
        "dense 64 rows 64→256": "dense:n=64,c=64,o=256",
        "dense 16 rows 256→256": "dense:n=16,c=256,o=256",
        "dense 1 row 512→128": "dense:n=1,c=512,o=128",
        "3×3 64→64 @7": "conv2d:n=1,c=64,h=7,w=7,o=64,k=3,s=1,p=1",
        "1×1/2 64→128 @14": "conv2d:n=1,c=64,h=14,w=14,o=128,k=1,s=2,p=0",
    },
    "bias, >> even 8, min 127, max 0",
)
"""Held-out products and convolutions for Gemmini, small enough for their spaces to be enumerated.
The last five were listed by hand before any tuner ran on them."""

_RELU6 = "bias, relu, min 6"
CPU_DEVELOPMENT: dict[str, tuple[str, str]] = {
    "resnet18 3x3 64": ("conv2d:n=1,c=64,h=56,w=56,o=64,k=3,p=1", "bias, relu"),
    "resnet18 3x3 128": ("conv2d:n=1,c=128,h=28,w=28,o=128,k=3,p=1", "bias, residual 0, relu"),
    "resnet18 3x3 256": ("conv2d:n=1,c=256,h=14,w=14,o=256,k=3,p=1", "bias, relu"),
    "resnet18 3x3 512": ("conv2d:n=1,c=512,h=7,w=7,o=512,k=3,p=1", "bias, residual 0, relu"),
    "resnet18 7x7/2": ("conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3", "bias, relu"),
    "resnet18 3x3/2 256": ("conv2d:n=1,c=128,h=28,w=28,o=256,k=3,s=2,p=1", "bias, relu"),
    "mobilenet_v2 1x1 16-96": ("conv2d:n=1,c=16,h=112,w=112,o=96,k=1", _RELU6),
    "mobilenet_v2 1x1 192-64": ("conv2d:n=1,c=192,h=14,w=14,o=64,k=1", "bias"),
    "mobilenet_v2 1x1 960-320": ("conv2d:n=1,c=960,h=7,w=7,o=320,k=1", "bias"),
    "mobilenet_v2 dw 144": ("conv2d:n=1,c=144,h=56,w=56,o=144,k=3,p=1,g=144", _RELU6),
    "mobilenet_v2 dw/2 96": ("conv2d:n=1,c=96,h=112,w=112,o=96,k=3,s=2,p=1,g=96", _RELU6),
    "vit_tiny qkv": ("dense:n=197,c=192,o=576", "bias"),
    "vit_tiny mlp": ("dense:n=197,c=768,o=192", "bias, residual 0"),
    "vit_tiny scores": ("batch_matmul:n=3,h=197,c=64,o=197", ""),
}  # fmt: skip
"""Float32 layers of three networks, with their epilogues, on which the constants of the CPU
estimates were chosen."""

CPU_JUDGED: dict[str, tuple[str, str]] = {
    "efficientnet_b0 1x1 24-144": ("conv2d:n=1,c=24,h=56,w=56,o=144,k=1", "bias"),
    "efficientnet_b0 dw/2 144": ("conv2d:n=1,c=144,h=56,w=56,o=144,k=5,s=2,p=2,g=144", "bias"),
    "efficientnet_b0 1x1 480-112": ("conv2d:n=1,c=480,h=14,w=14,o=112,k=1", "bias"),
    "efficientnet_b0 dw 1152": ("conv2d:n=1,c=1152,h=7,w=7,o=1152,k=5,p=2,g=1152", "bias"),
    "unet 3x3 256-512": ("conv2d:n=1,c=256,h=16,w=16,o=512,k=3,p=1", "bias, relu"),
    "unet 1x1 512-1024": ("conv2d:n=1,c=512,h=16,w=16,o=1024,k=1", "bias"),
    "convnext_t dw 192": ("conv2d:n=1,c=192,h=28,w=28,o=192,k=7,p=3,g=192", "bias"),
    "convnext_t 2x2/2 384": ("conv2d:n=1,c=192,h=28,w=28,o=384,k=2,s=2", "bias"),
    "convnext_t dense 192-768": ("dense:n=784,c=192,o=768", "bias"),
    "mixer_s16 tokens": ("dense:n=512,c=196,o=256", "bias"),
    "keywords 1x1 64-64": ("conv2d:n=1,c=64,h=25,w=5,o=64,k=1", "bias, relu"),
    "audio 1x3 64-128": ("conv2d:n=1,c=64,h=1,w=1001,o=128,k=1x3,p=0x1", "bias, relu"),
}
"""Float32 layers of six networks of `benchmarks.cpu.models`, with their epilogues. CPU estimates
are evaluated on them; no constant of the estimates was chosen on them."""


def cpu_workload(layer: str) -> Workload:
    """Return the layer of `CPU_DEVELOPMENT` or `CPU_JUDGED` with this name, in float32."""
    text, epilogue = (CPU_DEVELOPMENT | CPU_JUDGED)[layer]
    return parse_workload(f"{text},dtype=float32", epilogue)
