"""Draws inputs of several kinds, by which a built network is compared with its source model.

One kind of input shows one kind of error. Integers are the hardest to draw: one may be a token, a
length or a divisor, and nothing says which. So several kinds of integers are tried, and the source
model decides which of them it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.errors import InputError

Array = NDArray[Any]
Feed = Mapping[str, Array]
Kinds = Mapping[str, tuple[Sequence[int], str]]
"""Shape and element type of each input, by name."""
Reference = Callable[[Feed], Feed]
"""Runs the source model. Raises `InputError` for inputs that it refuses."""

INTEGERS = ("flags", "ones", "small", "sizes", "large", "negative", "zeros")
"""Kinds of integers: 0 and 1, ones, 1 to 8, the largest size of an input (a length that leaves
nothing out), 100 to 999, −1 to −8, zeros."""
TEXT = "str"
"""What artifacts call the element type of text, of which arrays hold `str` objects."""
WORDS = ("a", "1", "2.5", "Tile wright", "tensor-1", "été", "")
LARGE = 100.0
"""Standard deviation of large floats: beyond the range of exp, and of most ranges that networks
were trained for."""


@dataclass(frozen=True)
class NetworkSample:
    """Inputs of a network, of one kind, and the outputs that its source model gives for them."""

    kind: str
    inputs: Feed
    outputs: Feed


@dataclass(frozen=True)
class _Wanted:
    """A kind of sample: which floats and which integers it has, and the seed of both."""

    kind: str
    floats: str
    integers: str
    seed: int


_SAMPLES = (
    _Wanted("normal", "normal", "flags", 0),
    _Wanted("normal again", "normal", "small", 1),
    _Wanted("zero", "zero", "zeros", 0),
    _Wanted("negative", "negative", "negative", 2),
    _Wanted("large", "large", "large", 3),
)
_OF_INTEGERS = (
    _Wanted("sizes", "normal", "sizes", 4),
    _Wanted("large integers", "normal", "large", 5),
)
"""Further samples of a network with integers among its inputs: a sample of large floats shows
little of what a large integer does."""


def draw_samples(
    kinds: Kinds, reference: Reference, constants: Sequence[int] = ()
) -> Iterator[NetworkSample]:
    """Yield samples of several kinds, each with the outputs of the source model.

    The first one has standard-normal floats. A later one that the model refuses is left out.

    Args:
        kinds: shapes and types of the inputs.
        reference: runs the source model.
        constants: integers that the model holds, which are tried where it refuses all others.

    Raises:
        InputError: the model refuses the first sample, whatever integers are in it.
    """
    names = [name for name, (_, dtype) in kinds.items() if not dtype.startswith("float")]
    normal = {
        name: _floats("normal", shape, dtype, np.random.default_rng([0, number]))
        for number, (name, (shape, dtype)) in enumerate(kinds.items())
        if name not in names
    }
    base, outputs = base_integers(kinds, names, normal, reference, constants)
    yield NetworkSample("normal", {**normal, **base}, outputs)
    wanted = (*_SAMPLES[1:], *(_OF_INTEGERS if base else ()))
    for each in wanted:
        floats = {
            name: _floats(each.floats, shape, dtype, np.random.default_rng([each.seed, number]))
            for number, (name, (shape, dtype)) in enumerate(kinds.items())
            if name not in base
        }
        found = accepted(kinds, each.integers, floats, base, reference, each.seed)
        if found is not None:
            yield NetworkSample(each.kind, *found)


def accepted(
    kinds: Kinds, integers: str, floats: Feed, base: Feed, reference: Reference, seed: int
) -> tuple[Feed, Feed] | None:
    """Return inputs and outputs with integers of a kind, or None if the model refuses them all.

    Where it refuses integers of that kind in all inputs together, it gets them in each input that
    it accepts them in, and those of `base` elsewhere.
    """
    drawn = {
        name: draw_integers(integers, kinds, name, np.random.default_rng([seed, number]))
        for number, name in enumerate(base)
    }
    whole = {**floats, **drawn}
    if (outputs := _tried(reference, whole)) is not None:
        return whole, outputs
    if len(base) > 1:
        alone = {
            name: array
            for name, array in drawn.items()
            if _tried(reference, {**floats, **base, name: array}) is not None
        }
        whole = {**floats, **base, **alone}
        if alone and (outputs := _tried(reference, whole)) is not None:
            return whole, outputs
    whole = {**floats, **base}
    outputs = _tried(reference, whole)
    return None if outputs is None else (whole, outputs)


def perturbed(inputs: Feed, share: float) -> dict[str, Array]:
    """Return inputs whose floats differ by this share of the largest, or of 1 where all are less:
    what a source model changes by then is no error of a built network."""
    rng, found = np.random.default_rng(7), dict[str, Array]()
    for name, array in inputs.items():
        if array.dtype.kind == "f" and array.size:
            size = share * max(float(np.abs(array).max()), 1.0)
            noise = rng.standard_normal(array.shape) * size
            found[name] = (array.astype(np.float64) + noise).astype(array.dtype)
        else:
            found[name] = array
    return found


def draw_integers(kind: str, kinds: Kinds, name: str, rng: np.random.Generator) -> Array:
    """Return an array of an input of integers, booleans or text. Integers of eight bits are of any
    value, unless they are flags, ones or zeros: most are quantised numbers."""
    shape, dtype = kinds[name]
    if dtype == TEXT:
        return draw_words(shape, rng)
    if dtype == "bool":
        flags = rng.integers(0, 2, shape) if kind in ("flags", "small") else np.ones(shape)
        return np.asarray(flags * (kind != "zeros"), bool)
    info = np.iinfo(dtype)
    if kind in ("ones", "zeros"):
        return np.full(shape, kind == "ones", dtype)
    if kind == "flags":
        return rng.integers(0, 2, shape).astype(dtype)
    if info.bits == 8:
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    if kind == "sizes":
        others = [size for other, (sizes, _) in kinds.items() if other != name for size in sizes]
        return np.full(shape, min(max(others, default=1), info.max), dtype)
    if kind == "negative" and info.min < 0:
        return np.asarray(-rng.integers(1, 9, shape), dtype)
    drawn = rng.integers(100, 1000, shape) if kind == "large" else rng.integers(1, 9, shape)
    return drawn.astype(dtype)


def draw_words(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Return an array of text: words, numbers, and nothing."""
    return rng.choice(np.array(WORDS, object), tuple(shape))


def base_integers(
    kinds: Kinds, names: Sequence[str], others: Feed, reference: Reference,
    constants: Sequence[int] = (),
) -> tuple[dict[str, Array], Feed]:  # fmt: skip
    """Return integers that the model accepts in all inputs of these names, beside the `others`, and
    its outputs. Where it refuses all kinds, `constants` are tried: a model compares an input with
    the sampling rates or the modes that it knows. Raises `InputError` where it refuses all."""
    refusal: InputError | None = None
    drawn = [
        {
            name: draw_integers(kind, kinds, name, np.random.default_rng([0, number]))
            for number, name in enumerate(names)
        }
        for kind in (INTEGERS if names else INTEGERS[:1])
    ]
    drawn += [{**drawn[0], **_filled(kinds, names, constant)} for constant in constants if names]
    for base in drawn:
        try:
            return base, reference({**others, **base})
        except InputError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _filled(kinds: Kinds, names: Sequence[str], value: int) -> dict[str, Array]:
    """Return arrays full of a number, of the inputs whose integers are large enough for it."""
    found = {}
    for name in names:
        shape, dtype = kinds[name]
        if dtype not in ("bool", TEXT) and np.iinfo(dtype).max >= value:
            found[name] = np.full(shape, value, dtype)
    return found


def _tried(reference: Reference, inputs: Feed) -> Feed | None:
    try:
        return reference(inputs)
    except InputError:
        return None


def _floats(kind: str, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> Array:
    drawn = rng.standard_normal(shape)
    if kind == "zero":
        drawn = np.zeros(shape)
    elif kind == "negative":
        drawn = -np.abs(drawn)
    elif kind == "large":
        drawn = drawn * LARGE
    # Arithmetic on an array without dimensions gives a number, which onnxruntime does not take.
    return np.asarray(drawn, dtype)


def seeded_inputs(
    kinds: Mapping[str, tuple[Sequence[int], str]], seed: int = 0
) -> dict[str, Array]:
    """Arrays by input name, in the shapes and types given: normal, or zeros and ones where an input
    takes integers, or words."""
    rng, found = np.random.default_rng(seed), {}
    for name, (shape, dtype) in kinds.items():
        if dtype == TEXT:
            found[name] = draw_words(shape, rng)
            continue
        real = dtype.startswith("float")
        drawn = rng.standard_normal(shape) if real else rng.integers(0, 2, shape)
        found[name] = drawn.astype(dtype)
    return found
