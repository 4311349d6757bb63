"""Loads an AArch64 object file and resolves its relocations, as a linker does.

The format follows the ELF specification and Arm's "ELF for the Arm 64-bit Architecture" (IHI 0056).
The names of relocations are those of the specification.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

SHF_ALLOC, SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 2, 4, 8
ABS64, ABS32, PREL32 = 257, 258, 261
ADR_PREL_PG_HI21, ADD_ABS_LO12, JUMP26, CALL26 = 275, 277, 282, 283
ADR_GOT_PAGE, LD64_GOT_LO12 = 311, 312
LOW_BITS = {ADD_ABS_LO12: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, LD64_GOT_LO12: 3}
"""Relocations of the lowest twelve bits of an address, with log2 of the unit in which they
count."""
ALIGNMENT = 64


@dataclass(frozen=True)
class Section:
    """A section of the object file. `address` is its place in memory, or 0 if it is not loaded."""

    kind: int
    offset: int
    size: int
    link: int
    info: int
    address: int


class LoadedObject:
    """An AArch64 object file in memory.

    Attributes:
        image: the bytes to load at the address `base`.
        symbols: the addresses of the symbols that the file defines.

    Args:
        content: the bytes of the object file.
        base: the address at which the file is loaded.
        undefined: the addresses of symbols that the file does not define.

    Raises:
        ValueError: the file or one of its relocations is not supported.
        KeyError: a symbol has no address.
    """

    def __init__(self, content: bytes, base: int, undefined: Mapping[str, int]) -> None:
        if content[:6] != b"\x7fELF\2\1" or content[18:20] != b"\xb7\0":
            raise ValueError("this is no object file of AArch64, little endian")
        self._content, self._base, self._undefined = content, base, undefined
        self._sections = self._placed()
        end = max(section.address + section.size for section in self._sections)
        self._slots: dict[str, int] = {}
        self._next_slot = -(-end // ALIGNMENT) * ALIGNMENT
        self.image = bytearray(self._next_slot - base)
        for item in self._sections:
            if item.address and item.kind != SHT_NOBITS:
                start = item.address - base
                self.image[start : start + item.size] = self._bytes(item)
        self._table = self._symbols()
        self.symbols = {name: address for name, address in self._table if name and address}
        for item in self._sections:
            if item.kind == SHT_RELA and self._sections[item.info].address:
                self._relocate(item, self._sections[item.info].address)

    def _placed(self) -> list[Section]:
        first, count = *struct.unpack_from("<Q", self._content, 40), self._content[60]
        result, free = [], self._base
        for index in range(count):
            _, kind, flags, _, offset, size, link, info, align, _ = struct.unpack_from(
                "<IIQQQQIIQQ", self._content, first + 64 * index
            )
            address = 0
            if flags & SHF_ALLOC:
                address = -(-free // max(align, ALIGNMENT)) * max(align, ALIGNMENT)
                free = address + size
            result.append(Section(kind, offset, size, link, info, address))
        return result

    def _bytes(self, section: Section) -> bytes:
        return self._content[section.offset : section.offset + section.size]

    def _symbols(self) -> list[tuple[str, int]]:
        """Return names and addresses of symbols. The address of an unknown symbol is 0."""
        table = next(section for section in self._sections if section.kind == SHT_SYMTAB)
        names, result = self._bytes(self._sections[table.link]), []
        for name, _, _, index, value, _ in struct.iter_unpack("<IBBHQQ", self._bytes(table)):
            text = names[name : names.index(b"\0", name)].decode()
            section = self._sections[index] if 0 < index < len(self._sections) else None
            loaded = section is not None and section.address
            result.append((text, section.address + value if section and loaded else 0))
        return result

    def _slot(self, name: str, address: int) -> int:
        """Return the address of a table entry that holds a symbol's address."""
        if name not in self._slots:
            self._slots[name] = self._next_slot
            self.image += struct.pack("<Q", address)
            self._next_slot += 8
        return self._slots[name]

    def _relocate(self, relocations: Section, start: int) -> None:
        for offset, info, addend in struct.iter_unpack("<QQq", self._bytes(relocations)):
            name, address = self._table[info >> 32]
            if not address:
                address = self._undefined[name]
            self._write(info & 0xFFFFFFFF, start + offset, (name, address), addend)

    def _write(self, kind: int, place: int, symbol: tuple[str, int], addend: int) -> None:
        at = place - self._base
        value = symbol[1] + addend
        if kind in (ADR_GOT_PAGE, LD64_GOT_LO12):
            value = self._slot(*symbol) + addend
        if kind == ABS64:
            struct.pack_into("<Q", self.image, at, value)
        elif kind in (ABS32, PREL32):
            number = (value - (place if kind == PREL32 else 0)) & 0xFFFFFFFF
            struct.pack_into("<I", self.image, at, number)
        elif kind in (ADR_PREL_PG_HI21, ADR_GOT_PAGE):
            pages = (value >> 12) - (place >> 12)
            self._set_bits(at, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)
        elif kind in LOW_BITS:
            self._set_bits(at, (value & 0xFFF) >> LOW_BITS[kind] << 10)
        elif kind in (JUMP26, CALL26):
            self._set_bits(at, (value - place) >> 2 & 0x3FFFFFF)
        else:
            raise ValueError(f"relocation {kind} of '{symbol[0]}' is not known here; add it")

    def _set_bits(self, at: int, bits: int) -> None:
        (instruction,) = struct.unpack_from("<I", self.image, at)
        struct.pack_into("<I", self.image, at, instruction | bits)
