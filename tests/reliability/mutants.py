"""Files that went through a stranger's hands: mutants of a file, drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

_BYTES = [bytes([value]) for value in (0, 1, 0x7F, 0x80, 0xFF)]
_NUMBERS = [b"-1", b"0", b"9" * 19, b"1e308", b"nan", b"-inf", b"99999999999999999999", b"4294967295"]


def mutants(whole: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """So many: bits flipped, bytes overwritten, ranges cut out, doubled, swapped and zeroed, numbers
    replaced in text and in binary, and cuts at the end."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            _edit(data, rng)
        yield bytes(data)


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
        number = rng.choice((0, -1, 1 << 31, (1 << 31) - 1, 1 << 20, -(1 << 31), rng.getrandbits(31)))
        data[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, rng.choice(("big", "little")))
    elif kind == 8:
        digits = [place for place in range(at, min(at + 200, len(data))) if chr(data[place]).isdigit()]
        if digits:
            data[digits[0] : digits[0] + 1] = rng.choice(_NUMBERS)
    else:
        del data[at:] if rng.random() < 0.2 else data[at : at + 1]
