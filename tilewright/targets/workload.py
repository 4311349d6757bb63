"""Describes what to compute: one tensor operator with its shapes and epilogue, without any
schedule."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import (
    CLIPPED_TO_INT8,
    DEFAULT_EPILOGUE,
    RESIDUALS,
    EpilogueOp,
    parse_epilogue,
    usual,
)

_CONSTANTS = ("offset", "shr", "shl", "min", "max")
"""Steps of an epilogue that read no tensor."""

Operator = Literal["conv2d", "dense", "max_pool", "batch_matmul"]
DType = Literal["int8", "float32"]


@dataclass(frozen=True)
class Pool:
    """A max-pool of a convolution's sums: the maximum of each window of a channel, of which pixels
    in the padding do not count."""

    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0

    def __str__(self) -> str:
        """As it stands in a workload's text."""
        pads = _pads(self.pad_top, self.pad_left, self.pad_bottom, self.pad_right)
        kernel, stride = (self.kernel_h, self.kernel_w), (self.stride_h, self.stride_w)
        return f"mk={_pair(*kernel)},ms={_pair(*stride)},mp={pads}"


BETWEEN_EPILOGUES = "|"
"""Stands in a text between the epilogues of a shortcut, of the sums and of their average."""


@dataclass(frozen=True)
class Shortcut:
    """A 1×1 convolution of an image of its own into the sums of another convolution. Its sums pass
    its own epilogue, which reads nothing but a value a channel, before the other's are added."""

    in_channels: int
    height: int
    width: int
    stride_h: int = 1
    stride_w: int = 1
    epilogue: tuple[EpilogueOp, ...] = CLIPPED_TO_INT8

    def __str__(self) -> str:
        """As it stands in a workload's text."""
        image, stride = (self.height, self.width), (self.stride_h, self.stride_w)
        return f"xc={self.in_channels},xi={_pair(*image)},xs={_pair(*stride)}"


@dataclass(frozen=True)
class Average:
    """The sum of all results of a channel of a convolution, `height` × `width`, each times a tap
    (`targets.integer_average`), and an epilogue of its own, of constants alone."""

    height: int
    width: int
    epilogue: tuple[EpilogueOp, ...] = CLIPPED_TO_INT8

    def __str__(self) -> str:
        """As it stands in a workload's text."""
        return f"avg={_pair(self.height, self.width)}"


@dataclass(frozen=True)
class Workload:
    """An operator with static shapes. Sizes in elements, NCHW/OIHW.

    Of `dtype` int8 it takes int8, sums in int32 and gives int8; of float32 all is float32, and its
    epilogue adds a `bias` or a `residual` (of value 0) and clips (`min`, `max`). A `dense` is a
    `conv2d` with 1×1 image and kernel: `in_channels` × `out_channels`. A `batch_matmul` multiplies
    `batch` pairs of matrices, `height` × `in_channels` by `in_channels` × `out_channels`. A
    `max_pool` takes the maximum of each window of a channel; pixels in the padding do not count. Of
    a `conv2d` with a `pool` the sums are pooled first; the epilogue is of what is left. Those of
    one with a `shortcut` begin with what that leaves. What the epilogue leaves is its `results`; of
    one with an `average` they are averaged. Raises `WorkloadError` for sizes that make no sense.
    """

    operator: Operator
    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    epilogue: tuple[EpilogueOp, ...] = field(default=DEFAULT_EPILOGUE)
    pool: Pool | None = None
    dtype: DType = "int8"
    shortcut: Shortcut | None = None
    average: Average | None = None

    def __post_init__(self) -> None:
        for name in (
            "batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w",
            "stride_h", "stride_w", "dilation_h", "dilation_w", "groups",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.pad_top, self.pad_left, self.pad_bottom, self.pad_right) < 0:
            raise WorkloadError("padding must not be negative")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise WorkloadError(
                f"groups={self.groups} must divide both channel counts "
                f"({self.in_channels} in, {self.out_channels} out)"
            )
        if self.operator == "max_pool":
            if self.in_channels != self.out_channels or self.groups != self.in_channels:
                raise WorkloadError("a max_pool does not mix channels: c, o and g must be the same")
            _check_windows(self)
        if self.pool is not None:
            self._check_pool(self.pool)
        if self.operator == "batch_matmul" and self.width != 1:
            raise WorkloadError("a batch_matmul has rows (height) and no width")
        if self.dtype == "float32":
            self._check_float_epilogue()
        if self.sums_height < 1 or self.sums_width < 1:
            raise WorkloadError(
                f"the kernel ({self.kernel_h}×{self.kernel_w}) is larger than the padded image"
            )
        if self.results_height < 1 or self.results_width < 1:
            raise WorkloadError("the pool's window is larger than its padded image")
        if self.shortcut is not None:
            self._check_shortcut(self.shortcut)
        if self.average is not None:
            self._check_average(self.average)

    def _check_average(self, average: Average) -> None:
        """Raises `WorkloadError` for one that is not of all results of an int8 convolution."""
        if self.operator != "conv2d" or self.pool is not None or self.dtype != "int8":
            raise WorkloadError("only a conv2d in int8, without a pool, has an average (avg)")
        if (average.height, average.width) != (self.results_height, self.results_width):
            raise WorkloadError(
                f"its average is of {average.height}×{average.width} pixels, and it has "
                f"{self.results_height}×{self.results_width}"
            )
        wrong = next((op for op in average.epilogue if op.kind not in _CONSTANTS), None)
        if wrong is not None:
            raise WorkloadError(f"'{wrong}': an average's epilogue has constants alone")

    def _check_shortcut(self, shortcut: Shortcut) -> None:
        """Raises `WorkloadError` for one that does not fit the convolution it is added to."""
        if self.operator != "conv2d" or self.pool is not None or self.groups != 1:
            raise WorkloadError("only a conv2d in one group, without a pool, has a shortcut (xc)")
        if self.dtype != "int8":
            raise WorkloadError("a shortcut (xc) is of integers")
        if any(op.kind in ("add", *RESIDUALS) for op in shortcut.epilogue):
            raise WorkloadError("a shortcut's epilogue reads no tensor of the output's size")
        own = self.of_shortcut
        size = self.results_height, self.results_width
        if own is not None and (own.out_height, own.out_width) != size:
            raise WorkloadError(
                f"its shortcut gives {own.out_height}×{own.out_width} pixels, and it "
                f"{size[0]}×{size[1]}"
            )

    def _check_pool(self, pool: Pool) -> None:
        """Raises `WorkloadError` for a pool behind anything but a convolution."""
        if self.operator != "conv2d":
            raise WorkloadError("only the sums of a conv2d are pooled (mk)")
        if min(pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w) < 1:
            raise WorkloadError("a pool's window and stride must be at least 1")
        if min(pool.pad_top, pool.pad_left, pool.pad_bottom, pool.pad_right) < 0:
            raise WorkloadError("padding must not be negative")
        _check_windows(pool)

    def _check_float_epilogue(self) -> None:
        """Raises `WorkloadError` for steps that only integers have."""
        for step in self.epilogue:
            if step.kind not in ("bias", "residual", "min", "max") or (
                step.kind in ("bias", "residual") and step.value
            ):
                raise WorkloadError(
                    f"the epilogue step '{step}' is of integers; in float32 there are bias, "
                    "residual 0, min N, max N and relu"
                )

    @property
    def sums_height(self) -> int:
        """Rows of the sums of products, or of a max_pool's output."""
        reach = self.dilation_h * (self.kernel_h - 1) + 1
        return (self.height + self.pad_top + self.pad_bottom - reach) // self.stride_h + 1

    @property
    def sums_width(self) -> int:
        """Columns of the sums of products, or of a max_pool's output."""
        reach = self.dilation_w * (self.kernel_w - 1) + 1
        return (self.width + self.pad_left + self.pad_right - reach) // self.stride_w + 1

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return self.results_height if self.average is None else 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return self.results_width if self.average is None else 1

    @property
    def results_height(self) -> int:
        """Rows of what the epilogue works on."""
        p, rows = self.pool, self.sums_height
        return (
            rows if p is None else (rows + p.pad_top + p.pad_bottom - p.kernel_h) // p.stride_h + 1
        )

    @property
    def results_width(self) -> int:
        """Columns of what the epilogue works on."""
        p, cols = self.pool, self.sums_width
        return (
            cols if p is None else (cols + p.pad_left + p.pad_right - p.kernel_w) // p.stride_w + 1
        )

    @property
    def of_shortcut(self) -> Workload | None:
        """The convolution of the shortcut by itself, if there is one."""
        s = self.shortcut
        if s is None:
            return None
        return Workload(
            "conv2d", self.batch, s.in_channels, s.height, s.width, self.out_channels,
            stride_h=s.stride_h, stride_w=s.stride_w, epilogue=s.epilogue,
        )  # fmt: skip

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the unpadded operator, its shortcut's among them; a maximum
        and an average of results count none."""
        if self.operator == "max_pool":
            return 0
        own = (
            self.batch * self.out_channels * self.sums_height * self.sums_width
            * (self.in_channels // self.groups) * self.kernel_h * self.kernel_w
        )  # fmt: skip
        return own if self.of_shortcut is None else own + self.of_shortcut.macs

    @property
    def id(self) -> str:
        """Content hash: equal workloads have equal ids."""
        return _id(self)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads: with a `pool`, a `shortcut` and an `average` where there are any;
        int8 goes without saying."""
        values = asdict(self)
        if self.pool is None:
            del values["pool"]
        if self.dtype == "int8":
            del values["dtype"]
        for part in ("shortcut", "average"):
            if values[part] is None:
                del values[part]
        return values

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Workload:
        """Raises `KeyError` or `TypeError` if it was not written by `to_json`, `WorkloadError` if
        it makes no sense."""
        epilogue = tuple(EpilogueOp(**step) for step in values["epilogue"])
        pool = Pool(**values["pool"]) if values.get("pool") is not None else None
        parts: dict[str, Any] = {"epilogue": epilogue, "pool": pool}
        for name, part in (("shortcut", Shortcut), ("average", Average)):
            if values.get(name) is not None:
                own = tuple(EpilogueOp(**step) for step in values[name]["epilogue"])
                parts[name] = part(**{**values[name], "epilogue": own})
        return Workload(**{**values, **parts})

    @property
    def epilogue_text(self) -> str:
        """The text that `with_epilogue` reads; a shortcut's comes first, an average's last."""
        parts = (self.shortcut, self, self.average)
        each = [", ".join(map(str, part.epilogue)) for part in parts if part is not None]
        return f" {BETWEEN_EPILOGUES} ".join(each)

    def with_epilogue(self, text: str) -> Workload:
        """The same operator with the epilogue of `parse_epilogue`; that of a shortcut may come
        before it and that of an average behind it, with `|` between them: all of them or none.
        Raises `WorkloadError`."""
        first, *others = (parse_epilogue(part) for part in text.split(BETWEEN_EPILOGUES))
        if not others:
            return replace(self, epilogue=first)
        shortcut, average = self.shortcut, self.average
        wanted = (shortcut is not None) + (average is not None)
        if len(others) != wanted:
            raise WorkloadError(
                f"'{text}' has {len(others) + 1} epilogues, and {self} has {wanted + 1}: its own, "
                "of a shortcut (xc) before it, of an average (avg) behind it"
            )
        if shortcut is not None:
            shortcut, first = replace(shortcut, epilogue=first), others.pop(0)
        if average is not None:
            average = replace(average, epilogue=others.pop(0))
        return replace(self, epilogue=first, shortcut=shortcut, average=average)

    def __str__(self) -> str:
        """The text `parse_workload` reads; the epilogue is not part of it."""
        sizes = (
            f"n={self.batch},c={self.in_channels},h={self.height},w={self.width}"
            f",o={self.out_channels}"
        )
        kind = "" if self.dtype == "int8" else f",dtype={self.dtype}"
        if self.operator == "dense":
            return f"dense:n={self.batch},c={self.in_channels},o={self.out_channels}{kind}"
        if self.operator == "batch_matmul":
            return (
                f"batch_matmul:n={self.batch},h={self.height},c={self.in_channels}"
                f",o={self.out_channels}{kind}"
            )
        pads = _pads(self.pad_top, self.pad_left, self.pad_bottom, self.pad_right)
        if self.operator == "max_pool":
            sizes = sizes.rpartition(",")[0]
        text = (
            f"{self.operator}:{sizes},k={_pair(self.kernel_h, self.kernel_w)}"
            f",s={_pair(self.stride_h, self.stride_w)},p={pads}"
        )
        if (self.dilation_h, self.dilation_w) != (1, 1):
            text += f",d={_pair(self.dilation_h, self.dilation_w)}"
        grouped = self.groups > 1 and self.operator != "max_pool"
        text += f",g={self.groups}" if grouped else ""
        parts = (self.pool, self.shortcut, self.average)
        return ",".join([text, *(str(part) for part in parts if part is not None)]) + kind


def _check_windows(windows: Workload | Pool) -> None:
    """Raises `WorkloadError` for windows of padding only."""
    pads = (windows.pad_top, windows.pad_bottom, windows.pad_left, windows.pad_right)
    sizes = (windows.kernel_h, windows.kernel_h, windows.kernel_w, windows.kernel_w)
    if any(pad >= size for pad, size in zip(pads, sizes, strict=True)):
        raise WorkloadError("a max_pool's padding must be smaller than its window")


_KEYS: Mapping[str, tuple[str, str]] = {
    "conv2d": ("c h w o k", "n s p d g mk ms mp xc xi xs avg"),
    "dense": ("c o", "n"),
    "max_pool": ("c h w k", "n s p d"),
    "batch_matmul": ("h c o", "n"),
}
"""By operator what its text must have and may have."""


@lru_cache(maxsize=4096)
def _id(workload: Workload) -> str:
    text = json.dumps(workload.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def canonical(workload: Workload) -> Workload:
    """The workload with the usual immediates in its integer epilogue: those of equal canonical form
    have the same schedules, programs that differ in immediates alone, and equal cycles.

    A left shift is a right shift by a negative amount. Of a residual's scale it matters only
    whether 2^scale fits one weight (at most 6), or two (7); of a right shift, whether it leaves
    room for a `bias` near zero beside the sums (`NEAR_SHIFTS`), also of a channel's own.
    """
    if workload.dtype != "int8":
        return workload
    shortcut, average = workload.shortcut, workload.average
    if shortcut is not None:
        shortcut = replace(shortcut, epilogue=tuple(map(usual, shortcut.epilogue)))
    if average is not None:
        average = replace(average, epilogue=tuple(map(usual, average.epilogue)))
    own = tuple(map(usual, workload.epilogue))
    return replace(workload, epilogue=own, shortcut=shortcut, average=average)


def _pair(*values: int) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def _pads(top: int, left: int, bottom: int, right: int) -> str:
    return _pair(top, left) if (top, left) == (bottom, right) else _pair(top, left, bottom, right)


def parse_workload(text: str, epilogue: str | None = None) -> Workload:
    """`conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1` (pairs as `3x5`; p also as top x left x bottom x
    right; `d` dilation, `g` groups; `mk`, `ms`, `mp` window, stride and padding of a max-pool of
    its sums; `xc`, `xi`, `xs` channels, image and stride of a shortcut; `avg` the size of the image
    that is averaged behind the epilogue), `dense:n=1,c=512,o=1000`,
    `batch_matmul:n=3,h=64,c=64,o=64` or `max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1`; with
    `dtype=float32` in floating point. Raises `WorkloadError`."""
    operator, _, body = text.partition(":")
    if operator not in _KEYS:
        raise WorkloadError(f"'{text}' must begin with one of {', '.join(_KEYS)}, and a colon")
    values: dict[str, list[int]] = {}
    dtype: DType = "int8"
    for item in body.split(","):
        key, _, value = item.strip().partition("=")
        if key == "dtype" and value in get_args(DType):
            dtype = cast(DType, value)
            continue
        if not re.fullmatch(r"\d+(x\d+){0,3}", value) or key in values:
            raise WorkloadError(
                f"cannot read '{item}' in '{text}'; write for example c=64 or k=3x5"
            )
        values[key] = [int(part) for part in value.split("x")]
    needed, optional = (set(keys.split()) for keys in _KEYS[operator])
    known = needed | optional
    if unknown := set(values) - known:
        raise WorkloadError(f"unknown key {sorted(unknown)[0]} in '{text}'; known: {sorted(known)}")
    if missing := needed - set(values):
        raise WorkloadError(f"'{text}' lacks {', '.join(sorted(missing))}")

    def one(key: str, default: int) -> int:
        return values.get(key, [default])[0]

    def two(key: str, default: int) -> tuple[int, int]:
        found = values.get(key, [default])
        return found[0], found[-1]

    def four(key: str) -> tuple[int, int, int, int]:
        found = values.get(key, [0])
        top, left, bottom, right = found if len(found) == 4 else (found[0], found[-1]) * 2
        return top, left, bottom, right

    if {"ms", "mp"} & set(values) and "mk" not in values:
        raise WorkloadError(f"'{text}' pools its sums (ms, mp) and lacks mk, the window")
    if {"xc", "xi", "xs"} & set(values) and not {"xc", "xi"} <= set(values):
        raise WorkloadError(f"'{text}' has a shortcut and lacks xc, its channels, or xi, its image")
    kernel, stride, dilation = two("k", 1), two("s", 1), two("d", 1)
    top, left, bottom, right = four("p")
    pool = operator == "max_pool"
    plain = () if pool or dtype != "int8" else DEFAULT_EPILOGUE
    found = Workload(
        operator=cast(Operator, operator),
        batch=one("n", 1),
        in_channels=one("c", 1),
        height=one("h", 1),
        width=one("w", 1),
        out_channels=one("c" if pool else "o", 1),
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        pad_top=top,
        pad_left=left,
        pad_bottom=bottom,
        pad_right=right,
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        groups=one("c" if pool else "g", 1),
        epilogue=plain,
        pool=Pool(*two("mk", 1), *two("ms", 1), *four("mp")) if "mk" in values else None,
        dtype=dtype,
        shortcut=Shortcut(one("xc", 1), *two("xi", 1), *two("xs", 1)) if "xc" in values else None,
        average=Average(*two("avg", 1)) if "avg" in values else None,
    )
    return found if epilogue is None else found.with_epilogue(epilogue)
