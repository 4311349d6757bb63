"""Test cases of built networks: random networks, or model files with their expected outputs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.artifacts.check import Outcome, check_model
from benchmarks.artifacts.drawn_networks import draw
from benchmarks.artifacts.forms import FORMS, Form, NotDrawn, convert_to_form, data_inputs, feeds_of
from benchmarks.artifacts.numbers import Arrays, run_in_onnxruntime

SAMPLES, INFERENCES = 16, 3


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its inputs.

    Attributes:
        title: seed or path of the model.
        form: form of the network, such as float32 or a kind of quantisation.
        model: the model.
        feeds: inputs of each inference, arrays by name in the shapes of the inputs.
        samples: calibration samples of a float model.
        right: expected outputs of each inference. If None, they are computed by onnxruntime.
    """

    title: str
    form: str
    model: onnx.ModelProto
    feeds: Sequence[Arrays]
    samples: Sequence[Arrays] = ()
    right: Sequence[Arrays] | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a case on a machine."""

    case: Case
    machine: Machine
    outcome: Outcome


def form_of(seed: int) -> Form:
    """Return the form of a seed's network. Consecutive seeds cycle through all forms."""
    return FORMS[seed % len(FORMS)]


def drawn_case(seed: int, form: Form | None = None) -> Case:
    """Generate the random network of a seed, in its own form or in `form`.

    Inputs and outputs are arrays in the shapes of the network's inputs and outputs.

    Raises:
        NotDrawn: onnxruntime cannot quantise the network, or cannot run the result.
    """
    drawn, form = draw(seed), form or form_of(seed)
    model = convert_to_form(drawn.model, form, feeds_of(drawn.model, SAMPLES, seed), seed)
    feeds = feeds_of(model, INFERENCES, seed + 1_000_000)
    try:
        right = run_in_onnxruntime(model, feeds)
    except Exception as error:
        raise NotDrawn(f"onnxruntime cannot run it: {error}") from error
    return Case(str(seed), form, model, feeds, feeds_of(model, SAMPLES, seed), right)


def folder_cases(folder: Path) -> Iterator[Case]:
    """Yield a case for each ONNX file below a folder that has test vectors beside it.

    Test vectors are either files `test_data_set_*/input_<i>.pb` and `output_<i>.pb`, or an NPZ file
    with the name of the model. The NPZ file holds arrays by name, in the shapes of the inputs and,
    if expected outputs are included, of the outputs.
    """
    for path in sorted(folder.rglob("*.onnx")):
        model = onnx.load(path)
        names = [info.name for info in data_inputs(model)]
        feeds, right = _sets(path, model, names)
        if feeds:
            form = "quantised" if _is_quantised(model) else "float"
            title = str(path.relative_to(folder))
            yield Case(title, form, model, feeds, feeds, right or None)


def machines_of(seed: int, folder: Path) -> tuple[Machine, Machine]:
    """Return the stock machine and a random machine.

    The specification of the random machine is written to `folder`.
    """
    return Machine(STOCK, STOCK), drawn_machine(seed, folder)


def run_case(case: Case, machine: Machine) -> Outcome:
    """Build and check a case on a machine, with the inputs in their ONNX shapes."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_case(case, Path(folder))
        calibration = path.with_name("samples.npz")
        return check_model(
            path, machine.target, case.feeds, right=case.right,
            calibration=calibration if calibration.exists() else None,
        )  # fmt: skip


def write_case(case: Case, folder: Path) -> Path:
    """Write a model and its inputs to a folder, and return the path of the model.

    `input.npz` holds the inputs of the first inference. A float model also gets `samples.npz` for
    its calibration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(case.model, path)
    np.savez(folder / "input.npz", allow_pickle=False, **dict(case.feeds[0]))
    if case.samples and not _is_quantised(case.model):
        stacked = {
            name: np.stack([sample[name] for sample in case.samples]) for name in case.feeds[0]
        }
        np.savez(folder / "samples.npz", allow_pickle=False, **stacked)
    return path


def _is_quantised(model: onnx.ModelProto) -> bool:
    from tilewright.networks.quantisation import is_quantised

    return is_quantised(model)


def _sets(
    path: Path, model: onnx.ModelProto, names: Sequence[str]
) -> tuple[list[Arrays], list[Arrays]]:
    feeds: list[Arrays] = []
    right: list[Arrays] = []
    outputs = [info.name for info in model.graph.output]
    for place in sorted(path.parent.glob("test_data_set_*")):
        inputs = [place / f"input_{i}.pb" for i in range(len(names))]
        expected = [place / f"output_{i}.pb" for i in range(len(outputs))]
        if all(input_.exists() for input_ in (*inputs, *expected)):
            feeds.append(dict(zip(names, map(_read, inputs), strict=True)))
            right.append(dict(zip(outputs, map(_read, expected), strict=True)))
    beside = path.with_suffix(".npz")
    if not feeds and beside.exists():
        with np.load(beside, allow_pickle=False) as arrays:
            feeds.append({name: arrays[name] for name in names})
            if all(name in arrays for name in outputs):
                right.append({name: arrays[name] for name in outputs})
    return feeds, right


def _read(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = numpy_helper.to_array(
        onnx.TensorProto.FromString(path.read_bytes())
    )
    return array


STOCK = "vta-pynq"
_BATCHES = (0, 1, 2)
_BLOCKS = ((4, 4), (3, 5), (4, 5), (5, 4), (3, 3))
"""log2 of the number of input and output channels of a block."""


@dataclass(frozen=True)
class Machine:
    """A target as `--target` names it, with a title that describes it in tables."""

    title: str
    target: str


def drawn_machine(seed: int, folder: Path) -> Machine:
    """Return a random machine that differs from the stock one in its batch rows or its block size.

    Its specification is written to `folder`.
    """
    rng = np.random.default_rng([seed, 0x3A])
    batch, blocks = 0, _BLOCKS[0]
    while batch == 0 and blocks == _BLOCKS[0]:
        batch = int(rng.choice(_BATCHES))
        blocks = _BLOCKS[int(rng.integers(len(_BLOCKS)))]
    title = f"{1 << batch}x{1 << blocks[0]}x{1 << blocks[1]}"
    path = folder / f"{title}.json"
    keys = {
        "LOG_BATCH": batch, "LOG_BLOCK_IN": blocks[0], "LOG_BLOCK_OUT": blocks[1],
        # as many elements in each scratchpad as the stock machine has
        "LOG_INP_BUFF_SIZE": 11 + batch + blocks[0], "LOG_WGT_BUFF_SIZE": 10 + sum(blocks),
        "LOG_ACC_BUFF_SIZE": 13 + batch + blocks[1],
        "clock_mhz": 1e6,  # so fast that nothing is left to the CPU for being sooner there
    }  # fmt: skip
    path.write_text(json.dumps(keys))
    return Machine(title, str(path))
