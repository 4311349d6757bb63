"""Specification of a VTA: block shape, scratchpads and memory port.

The keys are those of the original stack's `vta_config.json` (logarithms to base 2), and those of
the memory port, which the Chisel generator keeps in its own source code. A specification is
rejected if the fields of an instruction or a micro-op do not fit into its word. The error message
then shows the sum of the field widths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.errors import SpecError, UnknownName, closest_name
from tilewright.core.files import as_object, read_json

INSTRUCTION_BITS = 128
LOOP_FIELD_BITS = 14  # width of iter_out and iter_in
INSTRUCTION_HEAD_BITS = 8  # opcode, four dependency flags, reset_reg


def scratchpad_problems(
    element_bits: Mapping[str, int], depth_logs: tuple[int, int, int, int]
) -> list[str]:
    """Return an error message for each invalid element size and each invalid depth of a scratchpad.

    An element must be a whole number of bytes. A scratchpad must have between 2 and 2^16 elements.

    Args:
        element_bits: size of an element in bits, by name.
        depth_logs: log2 of the number of elements of the uop, input, weight and accumulator
            scratchpads.
    """
    problems = []
    for name, bits in element_bits.items():
        if bits % 8:
            problems.append(
                f"one {name} element has {bits} bits, which is not a whole number of bytes"
            )
    names = ("uop", "input", "weight", "accumulator")
    for name, log_depth in zip(names, depth_logs, strict=True):
        if log_depth < 1:
            problems.append(
                f"the {name} scratchpad would hold 2^{log_depth} elements; "
                f"enlarge its LOG_*_BUFF_SIZE"
            )
        if log_depth > 16:
            problems.append(
                f"the {name} scratchpad would hold 2^{log_depth} elements, but sram_base has "
                f"16 bits; shrink its LOG_*_BUFF_SIZE"
            )
    return problems


def word_problems(
    u: int, i: int, w: int, a: int, inp_f: int, wgt_f: int, acc_f: int, uop_bits: int
) -> list[str]:
    """Return an error message for each instruction word or micro-op whose fields do not fit.

    Args:
        u: log2 of the micro-op depth.
        i: log2 of the input depth.
        w: log2 of the weight depth.
        a: log2 of the accumulator depth.
        inp_f: width of an input factor field in bits.
        wgt_f: width of a weight factor field in bits.
        acc_f: width of an accumulator factor field in bits.
        uop_bits: width of a micro-op in bits.
    """
    problems = []
    src = max(a, i)
    if a + src + w > uop_bits:
        problems.append(
            f"a micro-op needs a + max(a,i) + w = {a} + {src} + {w} = {a + src + w} bits, but has "
            f"{uop_bits}; shrink LOG_ACC/INP/WGT_BUFF_SIZE or set LOG_UOP_WIDTH to 6"
        )
    loops = [u, u + 1, LOOP_FIELD_BITS, LOOP_FIELD_BITS]
    gemm = [*loops, acc_f, acc_f, inp_f, inp_f, wgt_f, wgt_f]
    alu = [*loops, acc_f, acc_f, acc_f, acc_f, 3, 1, 16]
    for name, fields in (("GEMM", gemm), ("ALU", alu)):
        if field_end(fields) > INSTRUCTION_BITS:
            first = " + ".join(map(str, [INSTRUCTION_HEAD_BITS, *loops]))
            second = " + ".join(map(str, fields[4:]))
            problems.append(
                f"the {name} instruction's factor fields need {second} = {sum(fields[4:])} bits, "
                f"but its second word has 64 (the first word holds {first}); "
                "shrink the scratchpads or raise LOG_*_FACTOR_RESTRICT"
            )
    return problems


def field_end(widths: list[int], start: int = INSTRUCTION_HEAD_BITS) -> int:
    """Return the first free bit after instruction fields that are placed one after another.

    Fields are placed from low to high bits. A field that would cross bit 64 begins at bit 64.

    Args:
        widths: width of each field in bits.
        start: first bit of the first field.
    """
    position = start
    for width in widths:
        if position < 64 < position + width:
            position = 64
        position += width
    return position


NOT_OF_THE_MACHINE = frozenset({"TARGET", "HW_VER"})
"""Keys of `vta_config.json` that are ignored, because they select a driver and a bitstream and do
not describe the machine."""
DEEPEST = 1 << 20
"""Maximum number of elements that a specification may state for a scratchpad as built."""


class Machine(NamedTuple):
    """Numbers of a `VtaSpec` that compiled code needs, as a named tuple of integers.

    Compiled code takes them as a single argument.
    """

    batch: int
    block_in: int
    block_out: int
    inp_bits: int
    wgt_bits: int
    acc_bits: int
    inp_bytes: int  # bytes of one scratchpad element
    wgt_bytes: int
    acc_bytes: int
    out_bytes: int
    uop_bytes: int
    log_uop_depth: int  # log2 of the number of addressable elements
    log_inp_depth: int
    log_wgt_depth: int
    log_acc_depth: int
    uop_built: int  # number of elements that the hardware really has
    inp_built: int
    wgt_built: int
    acc_built: int
    inp_factor_bits: int
    wgt_factor_bits: int
    acc_factor_bits: int
    bus_bytes: int
    max_burst_beats: int
    memory_latency_cycles: int
    read_tags: int
    queue_entries: int
    token_limit: int


def _log(name: str, default: int, lowest: int, highest: int, meaning: str) -> Any:
    """Create the pydantic field for a key of `vta_config.json` that is a base-2 logarithm.

    Args:
        name: name of the field, whose upper-case form is the key in the file.
        default: default value.
        lowest: smallest allowed value.
        highest: largest allowed value.
        meaning: description of the field, which ends with the unit in brackets.
    """
    return _key(
        default,
        meaning,
        ge=lowest,
        le=highest,
        validation_alias=AliasChoices(name, name.upper()),
        serialization_alias=name.upper(),
    )


def _key(default: int | float | str | None, meaning: str, **limits: Any) -> Any:
    text, _, unit = meaning.rpartition(" [")
    extra: dict[str, Any] = {"unit": unit.rstrip("]")} if text else {}
    return Field(default, description=text or meaning, json_schema_extra=extra, **limits)


class VtaSpec(BaseModel):
    """Specification of a VTA: block shape, scratchpads, memory port and clock.

    Buffer sizes are log2 of bytes, and widths are log2 of bits. A specification is read from and
    written to mappings with the keys of `vta_config.json`. The key `LOG_BLOCK` sets both
    `LOG_BLOCK_IN` and `LOG_BLOCK_OUT`, unless they are given. Specifications are immutable, and
    equal specifications have equal fingerprints.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    name: str = _key("custom", "name of the machine")
    log_inp_width: int = _log("log_inp_width", 3, 0, 5, "size of an input value [log2 bits]")
    log_wgt_width: int = _log("log_wgt_width", 3, 0, 5, "size of a weight [log2 bits]")
    log_acc_width: int = _log("log_acc_width", 5, 3, 5, "size of an accumulator [log2 bits]")
    log_batch: int = _log("log_batch", 0, 0, 6, "rows multiplied at once [log2]")
    log_block_in: int = _log("log_block_in", 4, 0, 8, "input channels per block [log2]")
    log_block_out: int = _log("log_block_out", 4, 0, 8, "output channels per block [log2]")
    log_uop_width: int = _log("log_uop_width", 5, 5, 6, "size of a micro-op [log2 bits]")
    log_uop_buff_size: int = _log("log_uop_buff_size", 15, 3, 26, "micro-op buffer [log2 bytes]")
    log_inp_buff_size: int = _log("log_inp_buff_size", 15, 0, 26, "input buffer [log2 bytes]")
    log_wgt_buff_size: int = _log("log_wgt_buff_size", 18, 0, 26, "weight buffer [log2 bytes]")
    log_acc_buff_size: int = _log("log_acc_buff_size", 17, 0, 26, "accumulators [log2 bytes]")
    log_inp_factor_restrict: int = _log(
        "log_inp_factor_restrict", 0, 0, 4, "reduction of the input factor fields [bits]"
    )
    log_wgt_factor_restrict: int = _log(
        "log_wgt_factor_restrict", 0, 0, 4, "reduction of the weight factor fields [bits]"
    )
    log_acc_factor_restrict: int = _log(
        "log_acc_factor_restrict", 0, 0, 4, "reduction of the accumulator factor fields [bits]"
    )
    bus_bits: int = _key(64, "width of the memory port [bits]", ge=64, le=1024)
    max_burst_beats: int = _key(256, "longest burst on it [beats]", ge=1, le=4096)
    memory_latency_cycles: int = _key(
        16, "latency from the address of a read to its first beat [cycles]", ge=1, le=100_000
    )
    read_tags: int = _key(16, "reads in flight at the same time", ge=1, le=256)
    instruction_queue_entries: int = _key(
        512, "capacity of the queue of each unit [instructions]", ge=2, le=1 << 16
    )
    token_limit: int = _key(255, "tokens a dependency queue holds", ge=1, le=1 << 30)
    clock_mhz: float = _key(100.0, "clock, for times [MHz]", ge=1e-3, le=1e6, allow_inf_nan=False)
    uop_depth: int | None = _key(
        None,
        "capacity of the micro-op buffer as built, if it differs from its size [micro-ops]",
        ge=1,
        le=DEEPEST,
    )
    inp_depth: int | None = _key(
        None,
        "capacity of the input buffer as built, if it differs from its size [elements]",
        ge=1,
        le=DEEPEST,
    )
    wgt_depth: int | None = _key(
        None,
        "capacity of the weight buffer as built, if it differs from its size [elements]",
        ge=1,
        le=DEEPEST,
    )
    acc_depth: int | None = _key(
        None,
        "capacity of the accumulators as built, if it differs from their size [elements]",
        ge=1,
        le=DEEPEST,
    )
    out_depth: int | None = _key(
        None,
        "capacity of the output buffer as built, if it differs from its size [elements]",
        ge=1,
        le=DEEPEST,
    )
    source: str = _key("", "source of the figures")

    def model_post_init(self, context: Any) -> None:
        """Check that instructions can address the scratchpads.

        Raises:
            SpecError: the fields of an instruction or a micro-op do not fit.
        """
        for problem in self._encoding_problems():
            raise SpecError(f"specification '{self.name}' cannot be encoded: {problem}")

    # -- reading ---------------------------------------------------------------------------

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> VtaSpec:
        """Build a specification from the keys of `vta_config.json` and of the memory port.

        Unknown keys are ignored.

        Args:
            values: value of each key; missing keys get their defaults.

        Raises:
            SpecError: a value is invalid.
        """
        values = dict(values)
        block = values.pop("LOG_BLOCK", values.pop("log_block", None))
        if block is not None:
            for side in ("LOG_BLOCK_IN", "LOG_BLOCK_OUT"):
                if side.lower() not in values:
                    values.setdefault(side, block)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise SpecError(
                f"specification key {key}: {first['msg']} (got {first.get('input')!r:.60}); "
                "correct the value and try again"
            ) from None

    @classmethod
    def load(cls, name_or_path: str) -> VtaSpec:
        """Load a preset by name, or a JSON file by path. Unknown keys in a file are errors.

        Args:
            name_or_path: name of a preset, or path of a file whose name ends with `.json`.

        Raises:
            SpecError: the file cannot be read, or the specification is invalid.
            UnknownName: the name is neither a preset nor a `.json` file.
        """
        presets = preset_files()
        if name_or_path in presets:
            keys = as_object(read_json(presets[name_or_path].read_text()))
            return cls.from_mapping({"name": name_or_path, **keys})
        path = Path(name_or_path)
        if path.suffix != ".json":
            raise UnknownName("target", name_or_path, [*presets, "a path to a .json file"])
        try:
            values = read_json(path.read_text())
        except OSError as error:
            raise SpecError(
                f"cannot read {path}: {error.strerror}; check the file and its permissions"
            ) from None
        except json.JSONDecodeError as error:
            raise SpecError(f"{path} is not JSON: {error}; correct the file") from None
        except ValueError as error:
            raise SpecError(f"{path}: {error}") from None
        if not isinstance(values, dict):
            raise SpecError(
                f"{path} does not contain a JSON object; it must have the keys of vta_config.json"
            )
        if not set(values) - NOT_OF_THE_MACHINE - {"name", "source"}:
            raise SpecError(
                f"{path} does not describe a machine; give it keys such as LOG_BLOCK and "
                "LOG_INP_BUFF_SIZE ('tilewright target show vta-pynq' lists all keys)"
            )
        named = {"name": path.stem} | values
        _refuse_unknown(named)
        return cls.from_mapping(named)

    @property
    def assumed(self) -> dict[str, int | float]:
        """Default values of the keys that were not given, by key.

        Keys without a default are omitted.
        """
        return {
            field.serialization_alias or name: field.default
            for name, field in type(self).model_fields.items()
            if name not in self.model_fields_set and isinstance(field.default, int | float)
        }

    # -- derived sizes ---------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Number of rows that the GEMM core multiplies at once."""
        return 1 << self.log_batch

    @property
    def block_in(self) -> int:
        """Number of input channels per block."""
        return 1 << self.log_block_in

    @property
    def block_out(self) -> int:
        """Number of output channels per block."""
        return 1 << self.log_block_out

    @property
    def macs_per_cycle(self) -> int:
        """Number of multiply-accumulates of one GEMM iteration, which takes one cycle."""
        return self.batch * self.block_in * self.block_out

    @cached_property
    def fingerprint(self) -> str:
        """Content hash of everything that changes a program or its cycles, without the name."""
        values = self.model_dump(exclude={"name", "source"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def machine(self) -> Machine:
        """The numbers that compiled code needs, as a named tuple of integers."""
        u, i, w, a = self._depth_logs()
        element = self._element_bytes()
        return Machine(
            batch=self.batch,
            block_in=self.block_in,
            block_out=self.block_out,
            inp_bits=1 << self.log_inp_width,
            wgt_bits=1 << self.log_wgt_width,
            acc_bits=1 << self.log_acc_width,
            inp_bytes=element["inp"],
            wgt_bytes=element["wgt"],
            acc_bytes=element["acc"],
            out_bytes=element["out"],
            uop_bytes=1 << (self.log_uop_width - 3),
            log_uop_depth=u,
            log_inp_depth=i,
            log_wgt_depth=w,
            log_acc_depth=a,
            # The Chisel hardware holds 2048 micro-ops regardless of LOG_UOP_BUFF_SIZE
            # (core/Configs.scala).
            uop_built=self.uop_depth or min(1 << u, 2048),
            inp_built=self.inp_depth or 1 << i,
            wgt_built=self.wgt_depth or 1 << w,
            acc_built=self.acc_depth or 1 << a,
            inp_factor_bits=i - self.log_inp_factor_restrict,
            wgt_factor_bits=w - self.log_wgt_factor_restrict,
            acc_factor_bits=a - self.log_acc_factor_restrict,
            bus_bytes=self.bus_bits // 8,
            max_burst_beats=self.max_burst_beats,
            memory_latency_cycles=self.memory_latency_cycles,
            read_tags=self.read_tags,
            queue_entries=self.instruction_queue_entries,
            token_limit=self.token_limit,
        )

    def _element_bits(self) -> dict[str, int]:
        inp, wgt, acc = 1 << self.log_inp_width, 1 << self.log_wgt_width, 1 << self.log_acc_width
        return {
            "inp": self.batch * self.block_in * inp,
            "wgt": self.block_out * self.block_in * wgt,
            "acc": self.batch * self.block_out * acc,
            "out": self.batch * self.block_out * inp,
        }

    def _element_bytes(self) -> dict[str, int]:
        return {name: bits // 8 for name, bits in self._element_bits().items()}

    def _depth_logs(self) -> tuple[int, int, int, int]:
        """Return log2 of the number of addressable uop, inp, wgt and acc elements (u, i, w, a)."""
        return (
            self.log_uop_buff_size - (self.log_uop_width - 3),
            self.log_inp_buff_size - self.log_batch - self.log_block_in - self.log_inp_width + 3,
            self.log_wgt_buff_size
            - self.log_block_out
            - self.log_block_in
            - self.log_wgt_width
            + 3,
            self.log_acc_buff_size - self.log_batch - self.log_block_out - self.log_acc_width + 3,
        )

    # -- what cannot be encoded ------------------------------------------------------------

    def _encoding_problems(self) -> list[str]:
        u, i, w, a = self._depth_logs()
        problems = scratchpad_problems(self._element_bits(), (u, i, w, a))
        if problems:
            return problems
        if self.bus_bits & (self.bus_bits - 1) or self.max_burst_beats & (self.max_burst_beats - 1):
            problems.append("bus_bits and max_burst_beats must be powers of two")
        problems += word_problems(
            u, i, w, a,
            i - self.log_inp_factor_restrict,
            w - self.log_wgt_factor_restrict,
            a - self.log_acc_factor_restrict,
            1 << self.log_uop_width,
        )  # fmt: skip
        return problems


def _refuse_unknown(values: Mapping[str, object]) -> None:
    """Raise `SpecError` for an unknown key. The message suggests the most similar key."""
    fields = VtaSpec.model_fields
    keys = [fields[name].serialization_alias or name for name in fields] + ["LOG_BLOCK"]
    read = {*keys, *fields, "log_block", *NOT_OF_THE_MACHINE}
    for key in values:
        if key not in read:
            near = closest_name(str(key), keys)
            meant = f"did you mean {near}?" if near else "remove or correct it:"
            raise SpecError(
                f"the specification '{values.get('name', 'custom')}' has the unknown key "
                f"{key}; {meant} 'tilewright target show vta-pynq' lists all keys"
            )


def preset_files() -> dict[str, Path]:
    """Return the paths of the shipped specifications, by preset name."""
    folder = Path(str(resources.files("tilewright.targets.vta") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}
