"""Describes what to compute: an operator with its shapes and what follows it in the accumulators,
without any schedule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args

from tilewright.core.errors import WorkloadError
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
"""What follows an anchor: an element-wise step, or a pattern with shapes or tensors of its own."""
BETWEEN_EPILOGUES = "|"
"""Stands in a text between the epilogues of a shortcut, of the sums and of their average."""

_OF_QUANTISED = {"dequantise", "add_dequantised", "round", "quantise"}

P = TypeVar("P", bound=Pattern)


@dataclass(frozen=True)
class Workload(Anchor):
    """An anchor operator and an ordered list of post-operations on its sums (`post`).

    Of `dtype` int8 it takes int8, sums in int32 and gives int8. Of float32 all is float32; of
    bfloat16, too, but for the products. The epilogue then adds a `bias` or a `residual` (of value
    0), clips (`min`, `max`), and computes one of `targets.steps.float_activations`. One of int8
    whose epilogue begins with `dequantise` works on reals behind its sums
    (`targets.steps.quantised`).

    First come patterns on the sums: a pool of them, a shortcut that they begin with. Element-wise
    steps follow (`epilogue`), which leave the `results`. Last are patterns on these, an average.
    There is one pattern of a kind at the most. Raises `WorkloadError` for what makes no sense.
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
        places = [_place(each) for each in self.post]
        if any(one > two or one == two != _STEP for one, two in pairwise(places)):
            raise WorkloadError(
                "its post-operations are in no order that can be computed: at most one pool or "
                "shortcut, then element-wise steps, then an average"
            )
        for each in self.patterns:
            each.check(self, self.patterns)

    def _check_float_epilogue(self) -> None:
        """Raises `WorkloadError` for steps that only integers have."""
        for step in self.epilogue:
            known = step.kind in ("bias", "residual", "min", "max") or step.kind in FUNCTIONS
            if not known or (step.kind in ("bias", "residual") and step.value):
                raise WorkloadError(
                    f"the epilogue step '{step}' is of integers; in {self.dtype} there are bias, "
                    f"residual 0, min N, max N, relu, {', '.join(FUNCTIONS)}"
                )

    def _check_integer_epilogue(self) -> None:
        """Raises `WorkloadError` for steps that only floats have."""
        for step in self.epilogue:
            if step.kind in FUNCTIONS:
                raise WorkloadError(
                    f"the epilogue step '{step}' is of floats; write dtype=float32, or leave it out"
                )

    def _check_quantised_epilogue(self) -> None:
        """Raises `WorkloadError` for other steps than reals have, or in another order."""
        first, *rest = self.epilogue
        kinds = [step.kind for step in rest]
        known = {"bias", "add_dequantised", "max", "min", "round"}
        once = kinds.count("bias") < 2 and kinds.count("add_dequantised") < 2
        in_order = first.kind == "dequantise" and set(kinds[:-1]) <= known
        in_order = in_order and set(kinds[-1:]) <= known | {"quantise"}
        plain = self.dtype == "int8" and not self.patterns and self.operator in ("conv2d", "dense")
        if not (once and in_order and plain) or EpilogueOp("bias", 32) in rest:
            raise WorkloadError(
                f"'{', '.join(map(str, self.epilogue))}' is no epilogue of reals: write int8 "
                "convolutions or dense layers without a pool, and dequantise, then at most one "
                "bias, one add of int8 or uint8, max, min and round, and quantise at the end"
            )

    # -- types ---------------------------------------------------------------------------------

    @cached_property
    def dequantises(self) -> bool:
        """Whether what follows its sums works on reals."""
        return bool(self.epilogue) and self.epilogue[0].kind == "dequantise"

    @property
    def data_dtype(self) -> str:
        """Of the numbers that it takes. Products of bfloat16 are of rounded float32."""
        if self.dequantises:
            return BYTES[self.epilogue[0].value]
        return "int8" if self.dtype == "int8" else "float32"

    @property
    def out_dtype(self) -> str:
        """Of the numbers that it gives."""
        if not self.dequantises:
            return self.data_dtype
        last = self.epilogue[-1]
        return BYTES[last.value] if last.kind == "quantise" else "float32"

    # -- post-operations -----------------------------------------------------------------------

    @cached_property
    def epilogue(self) -> tuple[EpilogueOp, ...]:
        """The element-wise steps."""
        return tuple(each for each in self.post if isinstance(each, EpilogueOp))

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The post-operations that are more than element-wise steps."""
        return tuple(each for each in self.post if isinstance(each, Pattern))

    def part(self, kind: type[P]) -> P | None:
        """The post-operation of that kind, if there is one."""
        return next((each for each in self.patterns if isinstance(each, kind)), None)

    @property
    def pool(self) -> Pool | None:
        """The max-pool of its sums."""
        return self.part(Pool)

    @property
    def shortcut(self) -> Shortcut | None:
        """What its sums begin with."""
        return self.part(Shortcut)

    @property
    def average(self) -> Average | None:
        """The average of its results."""
        return self.part(Average)

    def with_steps(self, steps: tuple[EpilogueOp, ...]) -> Workload:
        """The same with other element-wise steps."""
        return self._with(self.patterns, steps)

    def with_patterns(self, *patterns: Pattern) -> Workload:
        """The same with these patterns, in the place of those of the same kinds."""
        kinds = tuple(type(each) for each in patterns)
        kept = (each for each in self.patterns if not isinstance(each, kinds))
        return self._with((*kept, *patterns), self.epilogue)

    def without(self, kind: type[Pattern]) -> Workload:
        """The same without a pattern of that kind."""
        kept = tuple(each for each in self.patterns if not isinstance(each, kind))
        return self._with(kept, self.epilogue)

    @property
    def without_activation(self) -> Workload:
        """The same without an activation of floats: schedules of both are the same."""
        return self.with_steps(tuple(op for op in self.epilogue if op.kind not in FUNCTIONS))

    def with_each_step(self, change: Callable[[EpilogueOp], EpilogueOp]) -> Workload:
        """The same with every element-wise step changed, those of patterns too."""
        own = tuple(each.with_steps(tuple(map(change, each.steps))) for each in self.patterns)
        return self._with(own, tuple(map(change, self.epilogue)))

    def _with(self, patterns: tuple[Pattern, ...], steps: tuple[EpilogueOp, ...]) -> Workload:
        return replace(self, post=tuple(sorted((*patterns, *steps), key=_place)))

    # -- shapes --------------------------------------------------------------------------------

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return size_left(self, self.patterns)[0]

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return size_left(self, self.patterns)[1]

    @property
    def results_height(self) -> int:
        """Rows of what the epilogue works on."""
        return size_left(self, (each for each in self.patterns if not each.is_behind))[0]

    @property
    def results_width(self) -> int:
        """Columns of what the epilogue works on."""
        return size_left(self, (each for each in self.patterns if not each.is_behind))[1]

    @property
    def of_shortcut(self) -> Workload | None:
        """The convolution of the shortcut by itself, if there is one."""
        for pattern in self.patterns:
            if (own := pattern.beside(self)) is not None:
                sizes = {each.name: getattr(own, each.name) for each in fields(Anchor)}
                return Workload(**sizes, post=pattern.steps)
        return None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the unpadded operator, its shortcut's among them; a maximum
        and an average of results count none."""
        besides = (each.beside(self) for each in self.patterns)
        return self.macs_of_sums + sum(own.macs_of_sums for own in besides if own is not None)

    # -- forms ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Content hash: equal workloads have equal ids."""
        return _id(self)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads: patterns under their names, as far as there are any; int8 goes
        without saying."""
        values = {each.name: getattr(self, each.name) for each in fields(Anchor)}
        dtype = values.pop("dtype")
        values["epilogue"] = tuple(asdict(step) for step in self.epilogue)
        values |= {each.name: each.to_json() for each in self.patterns}
        return values if dtype == "int8" else values | {"dtype": dtype}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Workload:
        """Raises `KeyError` or `TypeError` if it was not written by `to_json`, `WorkloadError` if
        it makes no sense."""
        rest = dict(values)
        post: list[PostOperation] = [EpilogueOp(**step) for step in rest.pop("epilogue")]
        for kind in PATTERNS:
            found = rest.pop(kind.name, None)
            post += [] if found is None else [kind.from_json(found)]
        return Workload(**rest, post=tuple(sorted(post, key=_place)))

    @property
    def epilogue_text(self) -> str:
        """The text that `with_epilogue` reads; a shortcut's comes first, an average's last."""
        first, last = self._with_own_steps
        parts = (*(each.steps for each in first), self.epilogue, *(each.steps for each in last))
        return f" {BETWEEN_EPILOGUES} ".join(", ".join(map(str, each)) for each in parts)

    @property
    def _with_own_steps(self) -> tuple[list[Pattern], list[Pattern]]:
        """The patterns that have steps of their own, before the workload's and behind them."""
        own = [each for each in self.patterns if each.has_steps]
        return [e for e in own if not e.is_behind], [e for e in own if e.is_behind]

    def with_epilogue(self, text: str) -> Workload:
        """The same operator with the epilogue of `parse_epilogue`; that of a shortcut may come
        before it and that of an average behind it, with `|` between them: all of them or none.
        Raises `WorkloadError`."""
        given = [parse_epilogue(part) for part in text.split(BETWEEN_EPILOGUES)]
        if len(given) == 1:
            return self.with_steps(given[0])
        first, last = self._with_own_steps
        if len(given) != len(first) + 1 + len(last):
            places = ", ".join(
                f"of {kind.called} {'behind' if kind.is_behind else 'before'} it"
                for kind in PATTERNS
                if kind.has_steps
            )
            raise WorkloadError(
                f"'{text}' has {len(given)} epilogues, and {self} has {len(first) + len(last) + 1}:"
                f" its own, {places}"
            )
        own, given = given[len(first)], given[: len(first)] + given[len(first) + 1 :]
        pairs = zip(first + last, given, strict=True)
        changed = self.with_patterns(*(each.with_steps(steps) for each, steps in pairs))
        return changed.with_steps(own)

    def __str__(self) -> str:
        """The text `parse_workload` reads; the epilogue is not part of it."""
        text = ",".join((self.sizes_text, *map(str, self.patterns)))
        return text if self.dtype == "int8" else f"{text},dtype={self.dtype}"


_STEP = next((i for i, kind in enumerate(PATTERNS) if kind.is_behind), len(PATTERNS)) - 0.5


def _place(each: PostOperation) -> float:
    """By what post-operations are in order."""
    return _STEP if isinstance(each, EpilogueOp) else PATTERNS.index(type(each))


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
    return workload.with_each_step(usual) if workload.dtype == "int8" else workload


def parse_workload(text: str, epilogue: str | None = None) -> Workload:
    """`conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1` (pairs as `3x5`; p also as top x left x bottom x
    right; `d` dilation, `g` groups; `mk`, `ms`, `mp` window, stride and padding of a max-pool of
    its sums; `xc`, `xi`, `xs` channels, image and stride of a shortcut; `avg` the size of the image
    that is averaged behind the epilogue), `dense:n=1,c=512,o=1000`,
    `batch_matmul:n=3,h=64,c=64,o=64` or `max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1`; with
    `dtype=float32` in floating point. Raises `WorkloadError`."""
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
    own = [kind for kind in PATTERNS if operator in kind.operators]
    needed, optional = (set(keys.split()) for keys in KEYS[operator])
    known = needed | optional | {key for kind in own for key in kind.keys}
    given = set(sizes.values)
    if unknown := given - known:
        raise WorkloadError(f"unknown key {sorted(unknown)[0]} in '{text}'; known: {sorted(known)}")
    if missing := needed - given:
        raise WorkloadError(f"'{text}' lacks {', '.join(sorted(missing))}")
    patterns = [each for kind in own if (each := kind.parse(sizes)) is not None]
    plain = () if operator == "max_pool" or dtype != "int8" else DEFAULT_EPILOGUE
    anchor = anchor_of(operator, sizes, dtype)
    post: tuple[PostOperation, ...] = tuple(sorted((*patterns, *plain), key=_place))
    found = Workload(
        **{each.name: getattr(anchor, each.name) for each in fields(Anchor)}, post=post
    )
    return found if epilogue is None else found.with_epilogue(epilogue)
