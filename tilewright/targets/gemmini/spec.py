"""Specification of a Gemmini: sizes of the array and the local memories, queues and memory port."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.errors import SpecError, UnknownName, closest_name
from tilewright.core.files import as_object, read_json

DIM = 16
"""Number of rows and columns of the systolic array. The simulators were compared with the RTL only
for this size."""
ARRAY_OUTPUT_BITS = 20
"""Width in bits of the values that the array outputs. Its 32-bit accumulators are saturated to this
width."""
# Bytes of a bus beat and of the largest memory request, in the default configuration of the
# generator.
BUS_BYTES = 16
MAX_REQUEST_BYTES = 64
MOST_ENTRIES = 32
"""Maximum number of entries per queue and per part of the reservation station that the simulator
supports."""
DEFAULT_PRESET = "gemmini-default"


class GemminiMachine(NamedTuple):
    """The integers of a `GemminiSpec` that compiled code needs, as a single argument.

    Fields named `…_entries` are capacities of the reservation station's parts, fields named
    `…_queue` are capacities of the queues between the station and the controllers.
    """

    scratchpad_rows: int
    scratchpad_bank_rows: int
    scratchpad_bank_bits: int  # log2 of the number of rows in a scratchpad bank
    accumulator_rows: int
    accumulator_bank_rows: int
    accumulator_bank_bits: int
    address_mask: int  # mask of the row field of a local address
    garbage_mask: int  # bits of a local address that are all ones in the garbage address
    load_entries: int
    execute_entries: int
    store_entries: int
    load_queue: int
    execute_queue: int
    store_queue: int
    requests_in_flight: int
    memory_latency_cycles: int
    cycles_per_beat: int


class GemminiSpec(BaseModel):
    """Specification of a Gemmini. It is immutable; equal specifications have equal fingerprints."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str = Field("custom", description="name of the machine")
    dim: int = Field(
        DIM, ge=DIM, le=DIM, description="rows and columns of the array",
        validation_alias=AliasChoices("dim", "DIM"),
    )  # fmt: skip
    scratchpad_rows: int = Field(16384, ge=64, le=1 << 20, description="rows of 16 int8")
    scratchpad_banks: int = Field(4, ge=1, le=4, description="single-ported banks")
    accumulator_rows: int = Field(1024, ge=64, le=1 << 20, description="rows of 16 int32")
    accumulator_banks: int = Field(2, ge=1, le=2, description="banks that share one adder")
    load_entries: int = Field(
        8, ge=2, le=MOST_ENTRIES, description="load entries of the reservation station"
    )
    execute_entries: int = Field(
        16, ge=4, le=MOST_ENTRIES, description="execute entries of the reservation station"
    )
    store_entries: int = Field(
        4, ge=2, le=MOST_ENTRIES, description="store entries of the reservation station"
    )
    load_queue: int = Field(
        8, ge=2, le=MOST_ENTRIES, description="load commands queued before the controller"
    )
    execute_queue: int = Field(
        8, ge=3, le=MOST_ENTRIES, description="execute commands queued before the controller"
    )
    store_queue: int = Field(
        2, ge=2, le=MOST_ENTRIES, description="store commands queued before the controller"
    )
    requests_in_flight: int = Field(
        16, ge=16, le=16, description="requests in flight, of the reader and of the writer each"
    )
    bus_bytes: int = Field(
        BUS_BYTES, ge=BUS_BYTES, le=BUS_BYTES, description="width of the memory port [bytes]",
        validation_alias=AliasChoices("bus_bytes", "port_bytes"),
    )  # fmt: skip
    max_request_bytes: int = Field(
        MAX_REQUEST_BYTES, ge=MAX_REQUEST_BYTES, le=MAX_REQUEST_BYTES,
        description="longest request [bytes]",
    )  # fmt: skip
    memory_latency_cycles: int = Field(
        20, ge=1, le=100_000, description="from a request to its first response beat [cycles]",
        validation_alias=AliasChoices("memory_latency_cycles", "latency"),
    )  # fmt: skip
    cycles_per_beat: int = Field(1, ge=1, le=64, description="duration of a response [cycles]")
    clock_mhz: float = Field(
        1000.0, ge=1e-3, le=1e6, allow_inf_nan=False, description="clock, for times [MHz]"
    )
    source: str = Field("", description="source of the figures")

    def model_post_init(self, context: object) -> None:
        """Raise `SpecError` if a memory size is not a power of two."""
        for key in ("scratchpad_rows", "scratchpad_banks", "accumulator_rows", "accumulator_banks"):
            if (value := getattr(self, key)) & (value - 1):
                raise SpecError(
                    f"specification '{self.name}': {key} = {value} must be a power of two, "
                    "because local addresses are split at bits; round it to a power of two"
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> GemminiSpec:
        """Build a specification from a mapping with the keys of a preset.

        The keys `memory_base` and `memory_size`, which describe a memory image, are ignored.

        Args:
            values: settings by key. Absent keys take the default machine's values.

        Raises:
            SpecError: a key is unknown or a value is invalid.
        """
        settings = {key: value for key, value in values.items() if key not in _NOT_OF_THE_MACHINE}
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise SpecError(_explain_error(error)) from None

    @classmethod
    def load(cls, name_or_path: str) -> GemminiSpec:
        """Load a preset by name, or a JSON file by path.

        Args:
            name_or_path: name of a preset, or path of a file whose name ends in `.json`.

        Raises:
            SpecError: the file cannot be read, or the specification is invalid.
            UnknownName: there is no such preset.
        """
        presets = preset_files()
        path = presets.get(name_or_path, Path(name_or_path))
        if path.suffix != ".json":
            raise UnknownName("target", name_or_path, [*presets, "a path to a .json file"])
        try:
            values = as_object(read_json(path.read_text()))
        except OSError as error:
            raise SpecError(
                f"cannot read {path}: {error.strerror}; check the file and its permissions"
            ) from None
        except ValueError as error:
            raise SpecError(
                f"{path} does not describe a machine: {error}; correct the file"
            ) from None
        return cls.from_mapping({"name": path.stem, **values})

    @cached_property
    def machine_record(self) -> GemminiMachine:
        """The integers of `machine` as a numpy record, which compiled code passes by reference."""
        return cast(GemminiMachine, np.array([tuple(self.machine)], _RECORD)[0])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all settings that change results or cycles, 16 hexadecimal digits.

        The name and the source of a specification are excluded.
        """
        values = self.model_dump(exclude={"name", "source"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def machine(self) -> GemminiMachine:
        """The integers that compiled code needs, as a named tuple."""
        address_mask = max(self.scratchpad_rows, self.accumulator_rows) - 1
        flags = 0b111 << 29  # accumulator, accumulate, full width
        return GemminiMachine(
            scratchpad_rows=self.scratchpad_rows,
            scratchpad_bank_rows=self.scratchpad_rows // self.scratchpad_banks,
            scratchpad_bank_bits=(self.scratchpad_rows // self.scratchpad_banks).bit_length() - 1,
            accumulator_rows=self.accumulator_rows,
            accumulator_bank_rows=self.accumulator_rows // self.accumulator_banks,
            accumulator_bank_bits=(self.accumulator_rows // self.accumulator_banks).bit_length()
            - 1,
            address_mask=address_mask,
            garbage_mask=flags | (address_mask + 1) | address_mask,
            load_entries=self.load_entries,
            execute_entries=self.execute_entries,
            store_entries=self.store_entries,
            load_queue=self.load_queue,
            execute_queue=self.execute_queue,
            store_queue=self.store_queue,
            requests_in_flight=self.requests_in_flight,
            memory_latency_cycles=self.memory_latency_cycles,
            cycles_per_beat=self.cycles_per_beat,
        )


_RECORD = np.dtype((np.record, [(name, np.int64) for name in GemminiMachine._fields]))
_COMPARED = frozenset({
    "dim", "DIM", "bus_bytes", "port_bytes", "max_request_bytes", "requests_in_flight",
})  # fmt: skip
"""Keys that accept only one value. The simulators were compared with the RTL only for this
value."""
_NOT_OF_THE_MACHINE = frozenset({"memory_base", "memory_size"})


def _explain_error(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = closest_name(key, [*GemminiSpec.model_fields, "latency", "port_bytes", "DIM"])
        meant = f"did you mean {near}?" if near else "remove it"
        return f"the specification has the unknown key {key}; {meant}"
    value, limits = first.get("input"), first.get("ctx", {})
    if key in _COMPARED and isinstance(value, int):
        only = limits.get("le", limits.get("ge"))
        return (
            f"specification key {key} = {value} is valid hardware, but the simulators were "
            f"only compared with the RTL for {only}; write {only}"
        )
    return (
        f"specification key {key}: {first['msg']} (got {first.get('input')!r:.60}); "
        "correct the value and try again"
    )


def preset_files() -> dict[str, Path]:
    """Return the paths of the shipped specifications, by preset name."""
    folder = Path(str(resources.files("tilewright.targets.gemmini") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}
