"""Runs AArch64 kernels in an emulator: compiled here, loaded, and called with the usual tensors.

The memory layout catches out-of-bounds accesses. Each tensor ends at the end of a page, as far as
its alignment allows, between two inaccessible pages. Only the output is writable.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import unicorn
from numpy.typing import NDArray
from unicorn import arm64_const as arm

from tests.targets.cpu.aarch64_object import LoadedObject
from tilewright.targets.cpu.compile import FUNCTION, llvm_target, lowering, scheduled
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import ARM_DOTS, CpuSpec

ARM = CpuSpec(1, 4, "", "an AArch64", ARM_DOTS, triple="aarch64-linux-gnu")
PLAIN_ARM = CpuSpec(1, 4, "", "an AArch64", triple="aarch64-linux-gnu")
PAGE, ALIGNMENT = 1 << 12, 64
STUBS, CODE, DATA, STACK_BYTES = 1 << 16, 1 << 20, 1 << 32, 1 << 20
SECONDS = 60
RETURN, NOTHING = 0xD65F03C0, 0xD503201F
LAUNCH = (0xAA0003E3, 0xAA0103E2, 0x58000081, 0x2A1F03E0, 0xD61F0060, NOTHING)
"""Machine code of TVM's function that launches parallel tasks: mov x3, x0; mov x2, x1; ldr x1,
environment; mov w0, wzr; br x3. It calls task 0, the only one, with its data and the environment,
whose address follows the code."""
DL_TENSOR, CPU_DEVICE = 7, 1
CODES = {"i": 0, "u": 1, "f": 2}


class EmulationFailed(Exception):
    """The kernel did something illegal. The message says what, and where."""


class Emulator:
    """Emulated processor with one kernel from an object file, and the memory that it sees.

    The processor supports all extensions. Without `dots` it is a Cortex-A72, which has neither
    dot-product instructions nor newer extensions.
    """

    def __init__(self, content: bytes, *, dots: bool = True) -> None:
        self._machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._machine.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX if dots else arm.UC_CPU_ARM64_A72)
        self._free, self._error = DATA, ""
        addresses = self._offer()
        self._loaded = LoadedObject(content, CODE, addresses)
        for name, address in self._loaded.symbols.items():  # variables that TVM's loader sets
            if name.startswith("__TVM"):
                struct.pack_into("<Q", self._loaded.image, address - CODE, addresses[name[2:]])
        size = -(-len(self._loaded.image) // PAGE) * PAGE
        self._machine.mem_map(CODE, size)
        self._machine.mem_write(CODE, bytes(self._loaded.image))

    def call(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Call the kernel with TVM's packed calling convention. Return the last array, the output.

        Raises:
            EmulationFailed: the kernel did something illegal.
        """
        places = [self._tensor(array, array is arrays[-1]) for array in arrays]
        packed = b"".join(struct.pack("<iIQ", DL_TENSOR, 0, header) for _, header in places)
        arguments, result = self._put(packed), self._put(bytes(16), writable=True)
        stack = self._room(STACK_BYTES, writable=True) + STACK_BYTES
        given = (0, arguments, len(arrays), result)
        for number, value in enumerate(given):
            self._machine.reg_write(arm.UC_ARM64_REG_X0 + number, value)
        self._machine.reg_write(arm.UC_ARM64_REG_SP, stack)
        self._machine.reg_write(arm.UC_ARM64_REG_LR, STUBS)
        self._run(self._loaded.symbols[f"__tvm_ffi_{FUNCTION}"])
        last = arrays[-1]
        written = self._machine.mem_read(places[-1][0], last.nbytes)
        return np.frombuffer(bytes(written), last.dtype).reshape(last.shape)

    def _run(self, start: int) -> None:
        machine = self._machine
        try:
            machine.emu_start(start, STUBS, timeout=SECONDS * 1_000_000)
        except unicorn.UcError as error:
            raise EmulationFailed(f"{error} {self._place()}") from None
        if machine.reg_read(arm.UC_ARM64_REG_PC) != STUBS:
            raise EmulationFailed(f"not done after {SECONDS} seconds {self._place()}")
        status = machine.reg_read(arm.UC_ARM64_REG_X0) & 0xFFFFFFFF
        if status or self._error:
            raise EmulationFailed(self._error or f"the kernel returned {status}")

    def _place(self) -> str:
        """Describe the current program counter for an error message."""
        place = self._machine.reg_read(arm.UC_ARM64_REG_PC)
        known = {at: name for name, at in self._loaded.symbols.items() if at <= place}
        near = max(known, default=place)
        return (
            f"at {place:#x}, {place - near:#x} behind {known.get(near, 'anything')}, an "
            f"instruction {self._instruction(place)}"
        )

    def _instruction(self, place: int) -> str:
        try:
            (word,) = struct.unpack("<I", self._machine.mem_read(place, 4))
        except unicorn.UcError:
            return "that cannot be read"
        return f"{word:#010x}"

    # -- memory --------------------------------------------------------------------------------

    def _room(self, size: int, *, writable: bool) -> int:
        """Map `size` bytes of memory, followed by an unmapped page. Return their address."""
        pages = -(-max(size, 1) // PAGE) * PAGE
        writes = unicorn.UC_PROT_WRITE if writable else 0
        self._machine.mem_map(self._free, pages, unicorn.UC_PROT_READ | writes)
        end = self._free + pages
        self._free = end + PAGE
        return end - -(-size // ALIGNMENT) * ALIGNMENT

    def _put(self, content: bytes, *, writable: bool = False) -> int:
        place = self._room(len(content), writable=writable)
        self._machine.mem_write(place, content)
        return place

    def _tensor(self, array: NDArray[Any], writable: bool) -> tuple[int, int]:
        """Store an array. Return the addresses of its data and of its `DLTensor` header."""
        data = self._put(array.tobytes(), writable=writable)
        steps = [stride // array.itemsize for stride in array.strides]
        shape, strides = (self._put(struct.pack(f"<{array.ndim}q", *item)) for item in (
            array.shape, steps
        ))  # fmt: skip
        header = struct.pack(
            "<QiiiBBHQQQ", data, CPU_DEVICE, 0, array.ndim, CODES[array.dtype.kind],
            8 * array.itemsize, 1, shape, strides, 0,
        )  # fmt: skip
        return data, self._put(header)

    def _text(self, place: int) -> str:
        result = b""
        while not result.endswith(b"\0"):
            result += bytes(self._machine.mem_read(place + len(result), 1))
        return result[:-1].decode()

    # -- runtime functions that kernels call ---------------------------------------------------

    def _offer(self) -> dict[str, int]:
        """Return the addresses of the runtime functions that kernels call.

        Each function is a single return instruction. The emulator computes its result before that
        instruction runs. The first address is the return address of the kernel itself.
        """
        calls: dict[str, Callable[..., int]] = {
            "TVMBackendAllocWorkspace": lambda _kind, _device, size, *_: self._room(
                size, writable=True
            ),
            "TVMBackendFreeWorkspace": lambda *_: 0,
            "TVMFFIErrorSetRaisedFromCStr": lambda kind, text, *_: self._raised(kind, [text]),
            "TVMFFIErrorSetRaisedFromCStrParts": lambda kind, parts, count, *_: self._raised(
                kind, struct.unpack(f"<{count}Q", self._machine.mem_read(parts, 8 * count))
            ),
            "memset": self._memset,
            "memcpy": self._memcpy,
        }
        places = {STUBS + 4 * (1 + index): call for index, call in enumerate(calls.values())}
        addresses = dict(zip(calls, places, strict=True))
        environment = struct.pack("<Qi", 0, 1)
        launch = STUBS + PAGE // 2
        addresses["TVMBackendParallelLaunch"] = launch
        self._machine.mem_map(STUBS, PAGE)
        self._machine.mem_write(STUBS, struct.pack("<I", RETURN) * (1 + len(calls)))
        after = launch + 4 * len(LAUNCH) + 8
        code = struct.pack(f"<{len(LAUNCH)}IQ", *LAUNCH, after) + environment
        self._machine.mem_write(launch, code)

        def hook(machine: Any, address: int, _size: int, _data: object) -> None:
            if address not in places:
                return
            given = [machine.reg_read(arm.UC_ARM64_REG_X0 + number) for number in range(5)]
            machine.reg_write(arm.UC_ARM64_REG_X0, places[address](*given))

        self._machine.hook_add(unicorn.UC_HOOK_CODE, hook, begin=STUBS, end=launch - 1)
        return addresses

    def _raised(self, kind: int, texts: Sequence[int]) -> int:
        self._error = f"{self._text(kind)}: {''.join(map(self._text, texts))}"
        return 0

    def _memset(self, place: int, value: int, size: int, *_: int) -> int:
        self._machine.mem_write(place, bytes([value & 0xFF]) * size)
        return place

    def _memcpy(self, place: int, source: int, size: int, *_: int) -> int:
        self._machine.mem_write(place, bytes(self._machine.mem_read(source, size)))
        return place


def object_of(function: Any, spec: CpuSpec) -> bytes:
    """Compile a TensorIR function to an object file and return its bytes."""
    import tvm

    module = tvm.IRModule({FUNCTION: function.with_attr("global_symbol", FUNCTION)})
    made = tvm.compile(module, target=llvm_target(spec), tir_pipeline=lowering())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.o"
        made.mod.write_to_file(str(file))
        return file.read_bytes()


def emulated(
    function: Any, tensors: SampleTensors, values: KnobValues, *, dots: bool = True
) -> float:
    """Run a TensorIR function in the emulator and return its error, see `SampleTensors.error`.

    Raises:
        EmulationFailed: the function did something illegal.
    """
    arrays = [argument.numpy() for argument in tensors.arguments(values)]
    return tensors.error(Emulator(object_of(function, tensors.spec), dots=dots).call(arrays))


def emulated_error_of(tensors: SampleTensors, values: KnobValues) -> float:
    """Run the kernel of a config in the emulator and return its error.

    Raises:
        DoesNotApply: the config does not apply to the workload.
    """
    return emulated(scheduled(tensors.workload, tensors.spec, values), tensors, values)
