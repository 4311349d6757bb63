"""Workloads: operators with their shapes and post-operations, without a schedule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args

from tilewright.core.errors import WorkloadError
from tilewright.core.renamed import warn_renamed
from tilewright.targets.anchor import KEYS, Anchor, DType, Sizes, anchor_of
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, EpilogueOp, parse_epilogue, usual
from tilewright.targets.patterns import PATTERNS
from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Pattern, size_left
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.steps.quantised import BYTES

PostOperation = EpilogueOp | Pattern
"""Post-operation of an anchor. It is either an element-wise step, or a pattern that has shapes or
tensors of its own."""
BETWEEN_EPILOGUES = "|"
"""Separator in the text form of a workload between the epilogues of its shortcut, of the workload
itself, and of its average pool."""

_OF_QUANTISED = {"dequantise", "add_dequantised", "round", "quantise"}

P = TypeVar("P", bound=Pattern)


@dataclass(frozen=True)
class Workload(Anchor):
    """An anchor operator and an ordered list of post-operations on its accumulators.

    The element types depend on `dtype`:

    - `int8`: inputs and outputs are int8, accumulators are int32. If the epilogue begins with
      `dequantise`, the steps after it compute with real numbers (see `targets.steps.quantised`).
    - `float32`: everything is float32. The epilogue may add a `bias` or a `residual` (with value
      0), clip (`min`, `max`) and compute one of `targets.steps.float_activations`.
    - `bfloat16`: like `float32`, except that the operands of the multiplications are rounded to
      bfloat16.

    The post-operations have a fixed order: first patterns on the accumulators (a max-pool or a
    shortcut), then element-wise steps (the `epilogue`), then patterns on their results (an
    average). There is at most one pattern of each kind.

    Attributes:
        post: the post-operations, in order. The other attributes are those of `Anchor`.

    Raises:
        WorkloadError: the sizes or the post-operations are inconsistent.
    """

    post: tuple[PostOperation, ...] = field(default=DEFAULT_EPILOGUE, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype == "int8":
            self._check_integer_epilogue()
        else:
            self._check_float_epilogue()
        if any(step.kind in _OF_QUANTISED for step in self.epilogue):
            self._check_quantised_epilogue()
        places = [_place(post_operation) for post_operation in self.post]
        if any(one > two or one == two != _STEP for one, two in pairwise(places)):
            raise WorkloadError(
                "its post-operations are in an unsupported order: at most one pool or "
                "shortcut, then element-wise steps, then an average"
            )
        for pattern in self.patterns:
            pattern.check(self, self.patterns)

    def _check_float_epilogue(self) -> None:
        """Raise `WorkloadError` if a step is only defined for integers."""
        for step in self.epilogue:
            allowed = step.kind in ("bias", "residual", "min", "max") or step.kind in FUNCTIONS
            if not allowed or (step.kind in ("bias", "residual") and step.value):
                raise WorkloadError(
                    f"the epilogue step '{step}' needs integers; {self.dtype} supports bias, "
                    f"residual 0, min N, max N, relu, {', '.join(FUNCTIONS)}"
                )

    def _check_integer_epilogue(self) -> None:
        """Raise `WorkloadError` if a step is only defined for floats."""
        for step in self.epilogue:
            if step.kind in FUNCTIONS:
                raise WorkloadError(
                    f"the epilogue step '{step}' needs floating-point numbers; write "
                    "dtype=float32, or leave it out"
                )

    def _check_quantised_epilogue(self) -> None:
        """Raise `WorkloadError` if a dequantising epilogue has invalid steps or a wrong order."""
        first, *rest = self.epilogue
        kinds = [step.kind for step in rest]
        allowed = {"bias", "add_dequantised", "max", "min", "round"}
        once = kinds.count("bias") < 2 and kinds.count("add_dequantised") < 2
        in_order = first.kind == "dequantise" and set(kinds[:-1]) <= allowed
        in_order = in_order and set(kinds[-1:]) <= allowed | {"quantise"}
        plain = self.dtype == "int8" and not self.patterns and self.operator in ("conv2d", "dense")
        if not (once and in_order and plain) or EpilogueOp("bias", 32) in rest:
            raise WorkloadError(
                f"'{', '.join(map(str, self.epilogue))}' is not a supported epilogue of real "
                "numbers: write an int8 convolution or dense layer without a pool, then "
                "dequantise, at most one bias, one add of int8 or uint8, max, min and "
                "round, and quantise at the end"
            )

    # -- types ---------------------------------------------------------------------------------

    @cached_property
    def dequantises(self) -> bool:
        """True if the epilogue converts the accumulators to real numbers."""
        return bool(self.epilogue) and self.epilogue[0].kind == "dequantise"

    @property
    def data_dtype(self) -> str:
        """Element type of the input tensor.

        For the workload type `bfloat16` it is float32, because the kernel rounds the operands
        itself.
        """
        if self.dequantises:
            return BYTES[self.epilogue[0].value]
        return "int8" if self.dtype == "int8" else "float32"

    @property
    def out_dtype(self) -> str:
        """Element type of the output tensor."""
        if not self.dequantises:
            return self.data_dtype
        last = self.epilogue[-1]
        return BYTES[last.value] if last.kind == "quantise" else "float32"

    # -- post-operations -----------------------------------------------------------------------

    @cached_property
    def epilogue(self) -> tuple[EpilogueOp, ...]:
        """The element-wise steps among the post-operations."""
        return tuple(
            post_operation for post_operation in self.post if isinstance(post_operation, EpilogueOp)
        )

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The post-operations that are patterns, not element-wise steps."""
        return tuple(
            post_operation for post_operation in self.post if isinstance(post_operation, Pattern)
        )

    def part(self, kind: type[P]) -> P | None:
        """Return `find_pattern(kind)`. This method is a deprecated alias."""
        warn_renamed("Workload.part", "Workload.find_pattern")
        return self.find_pattern(kind)

    def find_pattern(self, kind: type[P]) -> P | None:
        """Return the pattern of the given type, or None if there is none."""
        return next((pattern for pattern in self.patterns if isinstance(pattern, kind)), None)

    @property
    def pool(self) -> Pool | None:
        """The max-pool of the accumulators, or None."""
        return self.find_pattern(Pool)

    @property
    def shortcut(self) -> Shortcut | None:
        """The shortcut convolution whose results are added to the accumulators, or None."""
        return self.find_pattern(Shortcut)

    @property
    def average(self) -> Average | None:
        """The global average of the results, or None."""
        return self.find_pattern(Average)

    def with_steps(self, steps: tuple[EpilogueOp, ...]) -> Workload:
        """Return the same workload with different element-wise steps.

        Args:
            steps: the new steps, which replace all present steps outside patterns.
        """
        return self._with(self.patterns, steps)

    def with_patterns(self, *patterns: Pattern) -> Workload:
        """Return the same workload with some patterns added or replaced.

        Args:
            *patterns: the new patterns. A pattern replaces the workload's pattern of the same type.
        """
        kinds = tuple(type(pattern) for pattern in patterns)
        kept = (pattern for pattern in self.patterns if not isinstance(pattern, kinds))
        return self._with((*kept, *patterns), self.epilogue)

    def without(self, kind: type[Pattern]) -> Workload:
        """Return `remove_pattern(kind)`. This method is a deprecated alias."""
        warn_renamed("Workload.without", "Workload.remove_pattern")
        return self.remove_pattern(kind)

    def remove_pattern(self, kind: type[Pattern]) -> Workload:
        """Return the same workload without its pattern of the given type."""
        kept = tuple(pattern for pattern in self.patterns if not isinstance(pattern, kind))
        return self._with(kept, self.epilogue)

    @property
    def without_activation(self) -> Workload:
        """The workload without its float activation. Both workloads have the same schedules."""
        return self.with_steps(tuple(op for op in self.epilogue if op.kind not in FUNCTIONS))

    def with_each_step(self, change: Callable[[EpilogueOp], EpilogueOp]) -> Workload:
        """Return the same workload with every element-wise step replaced.

        Args:
            change: returns the replacement of a step. It is also applied to the steps of patterns,
                for example of a shortcut.
        """
        changed_patterns = tuple(
            pattern.with_steps(tuple(map(change, pattern.steps))) for pattern in self.patterns
        )
        return self._with(changed_patterns, tuple(map(change, self.epilogue)))

    def _with(self, patterns: tuple[Pattern, ...], steps: tuple[EpilogueOp, ...]) -> Workload:
        return replace(self, post=tuple(sorted((*patterns, *steps), key=_place)))

    # -- shapes --------------------------------------------------------------------------------

    @property
    def out_height(self) -> int:
        """Height of the output tensor in rows."""
        return size_left(self, self.patterns)[0]

    @property
    def out_width(self) -> int:
        """Width of the output tensor in columns."""
        return size_left(self, self.patterns)[1]

    @property
    def results_height(self) -> int:
        """Height of the tensor on which the epilogue works: after a max-pool, before an average."""
        return size_left(self, (pattern for pattern in self.patterns if not pattern.is_behind))[0]

    @property
    def results_width(self) -> int:
        """Width of the tensor on which the epilogue works: after a max-pool, before an average."""
        return size_left(self, (pattern for pattern in self.patterns if not pattern.is_behind))[1]

    @property
    def of_shortcut(self) -> Workload | None:
        """The convolution of the shortcut as a separate workload, or None without a shortcut."""
        for pattern in self.patterns:
            if (anchor := pattern.second_anchor(self)) is not None:
                sizes = {size.name: getattr(anchor, size.name) for size in fields(Anchor)}
                return Workload(**sizes, post=pattern.steps)
        return None

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates, including those of a shortcut.

        Multiplications with the padding that fills up hardware blocks are not counted. Neither are
        the operations of a max-pool or an average.
        """
        besides = (pattern.second_anchor(self) for pattern in self.patterns)
        return self.macs_of_sums + sum(
            anchor.macs_of_sums for anchor in besides if anchor is not None
        )

    # -- forms ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Content hash of the workload: 12 hexadecimal digits."""
        return _id(self)

    def to_json(self) -> dict[str, Any]:
        """Return the workload as JSON that `from_json` reads.

        Each pattern is stored under its name. The element type is omitted if it is int8.
        """
        values = {size.name: getattr(self, size.name) for size in fields(Anchor)}
        dtype = values.pop("dtype")
        values["epilogue"] = tuple(asdict(step) for step in self.epilogue)
        values |= {pattern.name: pattern.to_json() for pattern in self.patterns}
        return values if dtype == "int8" else values | {"dtype": dtype}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Workload:
        """Read a workload that `to_json` wrote.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is missing or unknown.
            WorkloadError: the workload is inconsistent.
        """
        rest = dict(values)
        post: list[PostOperation] = [EpilogueOp(**step) for step in rest.pop("epilogue")]
        for kind in PATTERNS:
            pattern = rest.pop(kind.name, None)
            post += [] if pattern is None else [kind.from_json(pattern)]
        return Workload(**rest, post=tuple(sorted(post, key=_place)))

    @property
    def epilogue_text(self) -> str:
        """Text of all epilogues of the workload, as `with_epilogue` reads it.

        The epilogue of a shortcut comes before the workload's own epilogue, and the epilogue of an
        average after it.
        """
        first, last = self._with_own_steps
        parts = (
            *(pattern.steps for pattern in first), self.epilogue,
            *(pattern.steps for pattern in last),
        )  # fmt: skip
        return f" {BETWEEN_EPILOGUES} ".join(", ".join(map(str, steps)) for steps in parts)

    @property
    def _with_own_steps(self) -> tuple[list[Pattern], list[Pattern]]:
        """Patterns that have element-wise steps of their own, such as a shortcut or an average.

        The first list contains the patterns that come before the workload's own steps. The second
        list contains the patterns that come after them.
        """
        stepped = [pattern for pattern in self.patterns if pattern.has_steps]
        return [e for e in stepped if not e.is_behind], [e for e in stepped if e.is_behind]

    def with_epilogue(self, text: str) -> Workload:
        """Return the same workload with the epilogue that a text describes.

        Args:
            text: the epilogue in the form of `parse_epilogue`. If the workload has a shortcut or an
                average, the text may also contain their epilogues, separated by `|`. The epilogue
                of the shortcut comes before the workload's epilogue, and the epilogue of the
                average after it. The text must contain either the workload's epilogue only, or all
                epilogues.

        Raises:
            WorkloadError: the text cannot be parsed, or has the wrong number of epilogues.
        """
        parts = [parse_epilogue(part) for part in text.split(BETWEEN_EPILOGUES)]
        if len(parts) == 1:
            return self.with_steps(parts[0])
        first, last = self._with_own_steps
        if len(parts) != len(first) + 1 + len(last):
            places = ", ".join(
                f"one of {kind.called} {'after' if kind.is_behind else 'before'} it"
                for kind in PATTERNS
                if kind.has_steps
            )
            raise WorkloadError(
                f"'{text}' has {len(parts)} epilogues, but {self} needs "
                f"{len(first) + len(last) + 1}: its own, {places}"
            )
        own, parts = parts[len(first)], parts[: len(first)] + parts[len(first) + 1 :]
        pairs = zip(first + last, parts, strict=True)
        changed = self.with_patterns(*(pattern.with_steps(steps) for pattern, steps in pairs))
        return changed.with_steps(own)

    def __str__(self) -> str:
        """Return the text that `parse_workload` reads, which does not include the epilogue."""
        text = ",".join((self.sizes_text, *map(str, self.patterns)))
        return text if self.dtype == "int8" else f"{text},dtype={self.dtype}"


_STEP = next((i for i, kind in enumerate(PATTERNS) if kind.is_behind), len(PATTERNS)) - 0.5


def _place(post_operation: PostOperation) -> float:
    """Return the position of a post-operation in the fixed order, as a sort key.

    Args:
        post_operation: an element-wise step or a pattern.
    """
    return _STEP if isinstance(post_operation, EpilogueOp) else PATTERNS.index(type(post_operation))


@lru_cache(maxsize=4096)
def _id(workload: Workload) -> str:
    text = json.dumps(workload.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def canonical(workload: Workload) -> Workload:
    """Return the canonical form of a workload: each integer step is replaced by its representative.

    Workloads with equal canonical forms have the same schedules, equal cycles, and programs that
    differ only in immediates (constants in instructions).

    Most constants do not matter, so each kind of step has one representative. The exceptions are:

    - Right shifts, including those per channel, have several representatives, because the amount
      determines whether there is room for a near-zero `bias` next to the accumulators
      (`NEAR_SHIFTS`). A left shift is executed as a right shift by a negative amount, and has the
      same representative as a small right shift.
    - The scale of a residual determines how the residual is added. Up to 6, the factor 2^scale fits
      into one int8 weight. A scale of 7 needs two matrix products. A larger scale needs a shift.
    """
    return workload.with_each_step(usual) if workload.dtype == "int8" else workload


def parse_workload(text: str, epilogue: str | None = None) -> Workload:
    """Parse the text of a workload.

    These are examples of texts:

    - `conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1`
    - `dense:n=1,c=512,o=1000`
    - `batch_matmul:n=3,h=64,c=64,o=64`
    - `max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1`

    These are the keys:

    - `n`: batch size.
    - `c`, `o`: input and output channels.
    - `h`, `w`: height and width of the image.
    - `k`, `s`, `p`, `d`: kernel size, stride, padding and dilation. Different sizes for rows and
      columns are written as `3x5`. Padding can also be written as top x left x bottom x right.
    - `g`: number of groups.
    - `mk`, `ms`, `mp`: window, stride and padding of a max-pool of the accumulators.
    - `xc`, `xi`, `xs`: channels, image size and stride of a shortcut.
    - `avg`: size of the image that is averaged after the epilogue.
    - `dtype`: element type; the default is int8. `float32` and `bfloat16` select floating point.

    Args:
        text: the text of the workload.
        epilogue: text for `Workload.with_epilogue`; None for the default epilogue.

    Raises:
        WorkloadError: the text cannot be parsed, or the workload is inconsistent.
    """
    operator, _, body = text.partition(":")
    if operator not in KEYS:
        raise WorkloadError(f"'{text}' must begin with one of {', '.join(KEYS)}, and a colon")
    dtype: DType = "int8"
    items = []
    for item in body.split(","):
        key, _, value = item.strip().partition("=")
        if key == "dtype" and value in get_args(DType):
            dtype = cast(DType, value)
        else:
            items.append(item)
    sizes = Sizes.parse(text, items)
    kinds = [kind for kind in PATTERNS if operator in kind.operators]
    needed, optional = (set(keys.split()) for keys in KEYS[operator])
    known = needed | optional | {key for kind in kinds for key in kind.keys}
    given = set(sizes.values)
    if unknown := given - known:
        raise WorkloadError(f"unknown key {sorted(unknown)[0]} in '{text}'; known: {sorted(known)}")
    if missing := needed - given:
        raise WorkloadError(f"'{text}' lacks {', '.join(sorted(missing))}")
    patterns = [pattern for kind in kinds if (pattern := kind.parse(sizes)) is not None]
    plain = () if operator == "max_pool" or dtype != "int8" else DEFAULT_EPILOGUE
    anchor = anchor_of(operator, sizes, dtype)
    post: tuple[PostOperation, ...] = tuple(sorted((*patterns, *plain), key=_place))
    workload = Workload(
        **{size.name: getattr(anchor, size.name) for size in fields(Anchor)}, post=post
    )
    return workload if epilogue is None else workload.with_epilogue(epilogue)
