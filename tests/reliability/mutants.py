"""Damages files as an attacker might. A seed determines each mutant, so it can be reproduced."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Iterator
from typing import Any

_BYTES = [bytes([value]) for value in (0, 1, 0x7F, 0x80, 0xFF)]
_NUMBERS = [b"-1", b"0", b"9" * 19, b"1e308", b"nan", b"-inf", b"4294967295", b"9" * 30]
_MARK = "@@fragment@@"
FRAGMENTS = [
    "null", "true", "false", "-1", "0", "1", "1.5", "-0.0", "1e308", "1e400", "-1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "9223372036854775808", "9" * 30, "9" * 400, "9" * 5000,
    '""', '"x"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"[bold]"',
    '"../../etc/passwd"', '"' + "x" * 100_000 + '"', "[]", "{}", "[[]]", "[null]", '{"": {}}',
    "[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "[1,", '"',
]  # fmt: skip
"""Values that JSON can or almost can hold: out-of-range numbers, unpaired surrogates, deep
nesting."""


def mutant(whole: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy of a file.

    The damage flips bits, overwrites bytes, removes, doubles, swaps or zeroes ranges, replaces
    numbers in text or binary form, or cuts off the end.
    """
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _edit(data, rng)
    return bytes(data)


def _edit(data: bytearray, rng: random.Random) -> None:
    if not data:
        return
    at, kind = rng.randrange(len(data)), rng.randrange(10)
    length = rng.choice((1, 2, 4, 8, 16, 64))
    if kind <= 1:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[at : at + length] = rng.choice(_BYTES) * length
    elif kind == 3:
        data[at : at + length] = rng.randbytes(length)
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        data[at:at] = data[at : at + length]
    elif kind == 6:
        other = rng.randrange(len(data))
        data[at : at + length] = data[other : other + length]
    elif kind == 7:
        number = rng.choice((0, -1, 1 << 31, (1 << 31) - 1, 1 << 20, rng.getrandbits(31)))
        data[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, rng.choice(("big", "little")))
    elif kind == 8:
        near = range(at, min(at + 200, len(data)))
        if digits := [place for place in near if 0x30 <= data[place] < 0x3A]:
            data[digits[0] : digits[0] + 1] = rng.choice(_NUMBERS)
    elif rng.random() < 0.2:
        del data[at:]


def json_mutant(document: Any, rng: random.Random) -> bytes:
    """Return a JSON document with some values or keys replaced, removed, doubled or added.

    Sometimes the result is not valid JSON.
    """
    copy, fragments = json.loads(json.dumps(document)), []
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(copy))
        if not places:
            break
        holder, key = rng.choice(places)
        action = rng.randrange(8)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[rng.choice(["", "x", "\x1b[2J", _MARK, str(key).upper()])] = holder[key]
        elif action == 2 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif action == 3:
            other, place = rng.choice(places)
            with_other = other[place] if _has(other, place) else None
            holder[key] = json.loads(json.dumps(with_other))
        else:
            holder[key] = _MARK
    text = json.dumps(copy)
    while f'"{_MARK}"' in text:
        fragments.append(rng.choice(FRAGMENTS))
        text = text.replace(f'"{_MARK}"', fragments[-1], 1)
    if rng.random() < 0.1 and text.startswith("{") and len(text) > 2:  # a duplicate key
        text = (
            '{"' + rng.choice(["kind", "version", "x"]) + f'":{rng.choice(FRAGMENTS)},' + text[1:]
        )
    data = text.encode()
    return mutant(data, rng) if rng.random() < 0.2 else data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def archive_mutant(whole: bytes, rng: random.Random) -> bytes:
    """Return a damaged ZIP file: changed members with correct checksums, or changed bytes."""
    if rng.random() < 0.3:
        return mutant(whole, rng)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    names = sorted(files)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(names)
        action = rng.randrange(8)
        if action == 0:
            files.pop(name, None)
        elif action == 1:
            files[name] = files.get(rng.choice(names), b"")
        elif name in files:
            # mostly near the beginning, where headers are
            head = files[name][:128] if rng.random() < 0.5 else files[name]
            files[name] = mutant(head, rng) + files[name][len(head) :]
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as new:
        for name, data in files.items():
            new.writestr(name, data)
    return buffer.getvalue()


_OPERATORS = ["Conv", "Gemm", "Reshape", "Loop", "If", "Einsum", "Resize", "Concat", "Slice", "No"]
_SIZES = [0, -1, 1, 3, 1 << 20, 1 << 31, 1 << 62, -(1 << 63)]


def onnx_mutant(model: Any, rng: random.Random) -> bytes:
    """Return a model with changed nodes, names, sizes and weights, or with changed bytes."""
    if rng.random() < 0.3:
        return mutant(model.SerializeToString(), rng)
    copy = type(model)()
    copy.CopyFrom(model)
    graph = copy.graph
    names = [name for node in graph.node for name in (*node.input, *node.output)] + ["", "x"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        node, action = rng.choice(graph.node), rng.randrange(9)
        if action == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif action == 1 and node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        elif action == 2:
            node.op_type = rng.choice(_OPERATORS)
        elif action == 3 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.i = rng.choice(_SIZES)
            for place in range(len(attribute.ints)):
                attribute.ints[place] = rng.choice([*_SIZES, attribute.ints[place]])
        elif action == 4 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.dims[:] = [rng.choice([*_SIZES, *tensor.dims]) for _ in tensor.dims]
        elif action == 5 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        elif action == 6:
            for value in (*graph.input, *graph.output):
                for dim in value.type.tensor_type.shape.dim:
                    dim.dim_value = rng.choice([*_SIZES, dim.dim_value, dim.dim_value])
        elif action == 7:
            graph.node.append(node)
        elif len(graph.node) > 1:
            graph.node.remove(node)
    return bytes(copy.SerializeToString())


def checked_line(body: bytes) -> bytes:
    """Return a ledger line with a correct checksum and the given content."""
    check = hashlib.blake2b(body, digest_size=8).hexdigest().encode()
    return b'{"check":"' + check + b'","record":' + body + b"}\n"
