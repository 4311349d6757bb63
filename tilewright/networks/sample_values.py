"""Draw inputs for comparing a built network with its source model.

Different kinds of inputs reveal different errors. Integers are the hardest to draw, because an
integer input may be a token, a length or a divisor, and the model does not tell which. Several
kinds of integers are therefore tried, and running the source model shows which of them it accepts.
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
"""Arrays of the inputs or outputs of a network, by name."""
Kinds = Mapping[str, tuple[Sequence[int], str]]
"""Shape and element type of each input of a network, by name."""
Reference = Callable[[Feed], Feed]
"""Function that runs the source model on input arrays and returns the output arrays. It raises
`InputError` if the model rejects the inputs."""

INTEGERS = ("flags", "ones", "small", "sizes", "large", "negative", "zeros")
"""Kinds of integer inputs, in the order in which they are tried.

- `flags`: 0 and 1.
- `ones`: only 1.
- `small`: 1 to 8.
- `sizes`: the largest dimension of another input, which is a valid length.
- `large`: 100 to 999.
- `negative`: −8 to −1.
- `zeros`: only 0.
"""
TEXT = "str"
"""Name of the element type of text tensors in artifacts. The elements of the arrays are `str`
objects."""
WORDS = ("a", "1", "2.5", "Tile wright", "tensor-1", "été", "")
"""Values from which text inputs are drawn."""
LARGE = 100.0
"""Standard deviation of large float inputs. They exceed the range of exp in float32 and the range
of most training data."""


@dataclass(frozen=True)
class NetworkSample:
    """Inputs of a network and the outputs of its source model.

    Attributes:
        kind: kind of the inputs, for messages.
        inputs: input arrays by name.
        outputs: output arrays by name.
    """

    kind: str
    inputs: Feed
    outputs: Feed


@dataclass(frozen=True)
class _Wanted:
    """Description of a sample to draw.

    Attributes:
        kind: name of the sample, for messages.
        floats: kind of the float inputs.
        integers: kind of the integer inputs, one of `INTEGERS`.
        seed: seed of the random generator.
    """

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
"""Additional samples for networks with integer inputs. Large integers are not drawn together with
large floats, because the large floats would hide their effect."""


def draw_samples(
    kinds: Kinds, reference: Reference, constants: Sequence[int] = ()
) -> Iterator[NetworkSample]:
    """Yield samples of several kinds, each with the outputs of the source model.

    The floats of the first sample are standard normal. A later sample that the model rejects is
    skipped.

    Args:
        kinds: shape and element type of each input, by name.
        reference: runs the source model.
        constants: integers that the model contains. They are tried as inputs if the model rejects
            all other integers.

    Yields:
        Samples: input arrays, and the outputs that the source model computes from them.

    Raises:
        InputError: the model rejects the first sample with every kind of integers.
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
    for spec in wanted:
        floats = {
            name: _floats(spec.floats, shape, dtype, np.random.default_rng([spec.seed, number]))
            for number, (name, (shape, dtype)) in enumerate(kinds.items())
            if name not in base
        }
        pair = find_accepted_inputs(kinds, spec.integers, floats, base, reference, spec.seed)
        if pair is not None:
            yield NetworkSample(spec.kind, *pair)


def find_accepted_inputs(
    kinds: Kinds, integers: str, floats: Feed, base: Feed, reference: Reference, seed: int
) -> tuple[Feed, Feed] | None:
    """Find integer inputs of a kind that the model accepts together with the given floats.

    If the model rejects integers of this kind in all inputs at once, every input is tried by
    itself. The inputs for which the model rejects them then get their integers from `base`.

    Args:
        kinds: shape and element type of each input, by name.
        integers: kind of integers, one of `INTEGERS`.
        floats: the float inputs.
        base: integer inputs that the model is known to accept.
        reference: runs the source model.
        seed: seed of the random generator.

    Returns:
        Inputs and outputs by name, or None if the model rejects all combinations.
    """
    drawn = {
        name: draw_integers(integers, kinds, name, np.random.default_rng([seed, number]))
        for number, name in enumerate(base)
    }
    whole = {**floats, **drawn}
    if (outputs := _try_inputs(reference, whole)) is not None:
        return whole, outputs
    if len(base) > 1:
        alone = {
            name: array
            for name, array in drawn.items()
            if _try_inputs(reference, {**floats, **base, name: array}) is not None
        }
        whole = {**floats, **base, **alone}
        if alone and (outputs := _try_inputs(reference, whole)) is not None:
            return whole, outputs
    whole = {**floats, **base}
    outputs = _try_inputs(reference, whole)
    return None if outputs is None else (whole, outputs)


def perturb_inputs(inputs: Feed, share: float) -> dict[str, Array]:
    """Add noise to the float inputs.

    If such noise changes the outputs of the source model as much as a build does, the error of the
    build is tolerated.

    Args:
        inputs: arrays by name.
        share: standard deviation of the noise, as a fraction of the largest absolute value of the
            array (at least 1).

    Returns:
        New arrays by name. Integer arrays are unchanged.
    """
    rng, noisy = np.random.default_rng(7), dict[str, Array]()
    for name, array in inputs.items():
        if array.dtype.kind == "f" and array.size:
            size = share * max(float(np.abs(array).max()), 1.0)
            noise = rng.standard_normal(array.shape) * size
            noisy[name] = (array.astype(np.float64) + noise).astype(array.dtype)
        else:
            noisy[name] = array
    return noisy


def draw_integers(kind: str, kinds: Kinds, name: str, rng: np.random.Generator) -> Array:
    """Draw an array of integers, booleans or text for an input.

    Most 8-bit inputs are quantised numbers. They therefore take any value, except for the kinds
    `flags`, `ones` and `zeros`.

    Args:
        kind: kind of integers, one of `INTEGERS`.
        kinds: shape and element type of each input, by name.
        name: name of the input.
        rng: random generator.

    Returns:
        Array of the shape and element type of the input.
    """
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
        other_sizes = [
            size for other, (sizes, _) in kinds.items() if other != name for size in sizes
        ]
        return np.full(shape, min(max(other_sizes, default=1), info.max), dtype)
    if kind == "negative" and info.min < 0:
        return np.asarray(-rng.integers(1, 9, shape), dtype)
    drawn = rng.integers(100, 1000, shape) if kind == "large" else rng.integers(1, 9, shape)
    return drawn.astype(dtype)


def draw_words(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Draw a text array of the given shape. The texts are words, numbers and empty strings."""
    return rng.choice(np.array(WORDS, object), tuple(shape))


def base_integers(
    kinds: Kinds, names: Sequence[str], others: Feed, reference: Reference,
    constants: Sequence[int] = (),
) -> tuple[dict[str, Array], Feed]:  # fmt: skip
    """Find integers that the model accepts in all of the given inputs.

    The kinds in `INTEGERS` are tried first. If the model rejects all of them, the `constants` are
    tried, because some models compare an input with a fixed set of values, such as sampling rates.

    Args:
        kinds: shape and element type of each input, by name.
        names: names of the integer inputs.
        others: arrays of all other inputs.
        reference: runs the source model.
        constants: integers that the model contains.

    Returns:
        The integer arrays by name, and the model's outputs.

    Raises:
        InputError: the model rejects all integers that were tried.
    """
    refusal: InputError | None = None
    drawn = [
        {
            name: draw_integers(kind, kinds, name, np.random.default_rng([0, number]))
            for number, name in enumerate(names)
        }
        for kind in (INTEGERS if names else INTEGERS[:1])
    ]
    drawn += [
        {**drawn[0], **_fill_arrays(kinds, names, constant)} for constant in constants if names
    ]
    for base in drawn:
        try:
            return base, reference({**others, **base})
        except InputError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _fill_arrays(kinds: Kinds, names: Sequence[str], value: int) -> dict[str, Array]:
    """Return an array for each input in which all elements are equal to one integer.

    Args:
        kinds: shape and element type of each input, by name.
        names: names of the inputs. Inputs of a type that cannot hold the integer are left out.
        value: the integer.
    """
    arrays = {}
    for name in names:
        shape, dtype = kinds[name]
        if dtype not in ("bool", TEXT) and np.iinfo(dtype).max >= value:
            arrays[name] = np.full(shape, value, dtype)
    return arrays


def _try_inputs(reference: Reference, inputs: Feed) -> Feed | None:
    """Run the source model on inputs that it may reject.

    Args:
        reference: runs the source model.
        inputs: arrays by input name.

    Returns:
        The outputs by name, or None if the model rejects the inputs.
    """
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
    # numpy returns a scalar for arithmetic on a 0-d array, and onnxruntime does not accept scalars.
    return np.asarray(drawn, dtype)


def seeded_inputs(
    kinds: Mapping[str, tuple[Sequence[int], str]], seed: int = 0
) -> dict[str, Array]:
    """Draw random inputs.

    Floats are standard normal, integers are 0 or 1, and text comes from a fixed list of words.

    Args:
        kinds: shape and element type of each input, by name.
        seed: seed of the random generator.

    Returns:
        Arrays by input name.
    """
    rng, arrays = np.random.default_rng(seed), {}
    for name, (shape, dtype) in kinds.items():
        if dtype == TEXT:
            arrays[name] = draw_words(shape, rng)
            continue
        real = dtype.startswith("float")
        drawn = rng.standard_normal(shape) if real else rng.integers(0, 2, shape)
        arrays[name] = drawn.astype(dtype)
    return arrays
