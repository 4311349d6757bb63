"""Represents a trained network: what of it can be offloaded, and how it runs on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.core.errors import UnknownName
from tilewright.networks import zoo
from tilewright.networks.epilogues import EpilogueMode
from tilewright.networks.errors import InputError, QuantisationError
from tilewright.networks.imported_model import Examined
from tilewright.networks.model_source import (
    InputShapes,
    OnnxSource,
    Source,
    read_source,
    refuse_unsupported,
)
from tilewright.networks.offloading import report
from tilewright.networks.offloading.accelerator import MAX_WASTE, Accelerator
from tilewright.networks.offloading.decisions import decide_offloading
from tilewright.networks.offloading.report import ModelReport
from tilewright.networks.offloading.workloads import (
    ExtractedWorkload,
    OffloadDecision,
    collect_workloads,
)
from tilewright.networks.partition.region_session import RegionSession
from tilewright.networks.quantisation import samples_for, samples_of
from tilewright.networks.quantisation.samples import inputs_of
from tilewright.networks.sandbox import SandboxedSource
from tilewright.networks.torch_export import TORCH_SUFFIXES
from tilewright.targets.capabilities import Blocks

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.imported_model import Whole
    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.networks.onnx.graph import NormalGraph
    from tilewright.networks.partition.region_models import LastRegions
    from tilewright.networks.quantisation.samples import Samples
    from tilewright.networks.relax.execute import CompiledModule


@dataclass(frozen=True, eq=False)
class SplitNetwork:
    """What is compiled of a network, None if nothing is, and what onnxruntime runs behind it."""

    compiled: Network | None
    last: LastRegions | None

    def samples(self, calibration: Path | None) -> Samples:
        """Samples of the inputs of the compiled part, in `calibration` or drawn. Raises as
        `samples_for`."""
        assert self.compiled is not None
        if self.last is None:
            inputs = inputs_of(self.compiled.fixed)
            return samples_of(self.compiled.weighted, inputs, calibration)
        names = {info.name for info in self.compiled.weighted.graph.input}
        return samples_for(self.last.whole, calibration, {}).restricted(names)


class Network:
    """A network with static input shapes. TVM imports it on first use, once.

    What an int8 accelerator is tuned for are the layers that are built: a float network is
    quantised by the samples in `calibration` (by default those of `samples_for`). Those of a
    built-in network are `foretold` from its shapes: its weights are drawn, and change none.
    """

    def __init__(
        self,
        source: Source,
        input_shapes: InputShapes | None = None,
        *,
        calibration: Path | None = None,
        foretold: bool = False,
    ) -> None:
        self._source = source
        self._calibration = calibration
        self._foretold = foretold
        self.name = source.name
        self.input_shapes = dict(input_shapes or {})
        self._split_to_run: SplitNetwork | None = None

    @cached_property
    def examined(self) -> Examined:
        """What the importer found, independent of any accelerator."""
        return self._source.examine()

    @cached_property
    def compiled(self) -> CompiledModule:
        """The whole network built for this machine's CPU, in float or as quantised."""
        from tilewright.networks.relax.execute import CompiledModule

        whole = self.whole
        return CompiledModule(whole.flat.module, whole.inputs, whole.outputs, whole.regions)

    @cached_property
    def whole(self) -> Whole:
        """All of it with its weights, to be compiled. Raises as `Source.whole`."""
        return self._source.whole()

    def report(
        self,
        block_in: int,
        block_out: int,
        batch: int = 1,
        *,
        epilogue: EpilogueMode = "full",
        max_waste: float = MAX_WASTE,
    ) -> ModelReport:
        """What becomes of every operator on an accelerator with these blocks (elements) and nothing
        else known: it gets all that it can run. Raises as `report_on`."""
        return self.report_on(_accelerator(block_in, block_out, batch, epilogue, max_waste))

    def report_on(self, accelerator: Accelerator) -> ModelReport:
        """What becomes of every operator on an accelerator, and what it costs there and on the CPU.

        Raises `ModelFileError`, `DynamicShapeError` or `ImportFailedError`; an operator that cannot
        be imported is part of the report.
        """
        return self._surveyed_on(accelerator)[1]

    def workloads(
        self,
        block_in: int,
        block_out: int,
        batch: int = 1,
        *,
        epilogue: EpilogueMode = "full",
        max_waste: float = MAX_WASTE,
    ) -> list[ExtractedWorkload]:
        """The workloads to tune as (workload, calls an inference, operator names), by first use, of
        an accelerator as in `report`. Raises as `workloads_on`."""
        return self.workloads_on(_accelerator(block_in, block_out, batch, epilogue, max_waste))

    def workloads_on(self, accelerator: Accelerator) -> list[ExtractedWorkload]:
        """The workloads to tune as (workload, calls an inference, operator names), by first use.

        Raises as `report_on`, and `UnsupportedOperatorError` where part of the network cannot run.
        """
        return self.surveyed_on(accelerator)[0]

    def surveyed_on(self, accelerator: Accelerator) -> tuple[list[ExtractedWorkload], ModelReport]:
        """`workloads_on` and `report_on` at once. Raises as they do."""
        if not accelerator.computes_floats:  # what a processor cannot compile, onnxruntime runs
            refuse_unsupported(self.name, self.examined.unsupported)
        return self._surveyed_on(accelerator)

    def decisions_on(self, accelerator: Accelerator) -> list[OffloadDecision]:
        """What becomes of each fused call, by what it would take there and on the CPU."""
        return decide_offloading(self.examined, accelerator)

    def _surveyed_on(self, accelerator: Accelerator) -> tuple[list[ExtractedWorkload], ModelReport]:
        decisions = self.decisions_on(accelerator)
        said = report.build_report(self.examined, accelerator, decisions)
        if not self._knows_layers(accelerator):
            return collect_workloads(decisions), said
        from tilewright.networks.integer_network import reported, with_nothing, workloads_of

        split = self.split()
        if split.compiled is None:
            return [], with_nothing(said, "nothing of the network is compiled")
        try:
            graph = self._graph_on(accelerator, decisions, split)
        except QuantisationError as error:  # nothing of it can be a layer
            return [], with_nothing(said, str(error))
        return workloads_of(graph), reported(said, graph)

    def _graph_on(
        self, accelerator: Accelerator, decisions: list[OffloadDecision], split: SplitNetwork
    ) -> IntegerGraph:
        """The layers that are built of the compiled part. Raises as `in_integers`."""
        from tilewright.networks.integer_network import in_integers

        assert split.compiled is not None
        return in_integers(
            split.compiled.fixed, accelerator, decisions, name=self.name,
            samples=split.samples(self._calibration), calls=self.examined.found.calls,
            per_channel=accelerator.epilogue == "per-channel", judged=False,
        ).graph  # fmt: skip

    def prepare(self) -> None:
        """Read the weights and normalise the model with them, for a command that needs them: what
        follows starts from that. Raises as `Source.prepare`."""
        self._source.prepare()

    @property
    def weighted(self) -> onnx.ModelProto:
        """The model with its weights, in the types that are computed here."""
        return self._source.weighted()

    @property
    def fixed(self) -> NormalGraph:
        """The model with its weights and static shapes, which must not be changed."""
        return self._source.fixed()

    def _knows_layers(self, accelerator: Accelerator) -> bool:
        """Whether the layers that are built can be known: the accelerator computes in integers as
        the network needs it, and the model can be imported whole."""
        ours = not accelerator.computes_floats and accelerator.epilogue != "plain"
        return ours and not self.examined.unsupported and not self._foretold

    def split(self, *, without_layers: bool = False) -> SplitNetwork:
        """What is compiled of the network, with the regions inside it, and the regions that
        onnxruntime runs behind that. What neither multiplies nor pools is compiled if it is wanted
        `without_layers`."""
        source, last = self._source.split(without_layers=without_layers)
        if source is None or source is self._source:
            return SplitNetwork(None if source is None else self, last)
        core = Network(source, calibration=self._calibration, foretold=self._foretold)
        return SplitNetwork(core, last)

    def as_region(self) -> LastRegions:
        """The whole network as one region of onnxruntime. Raises `UnsupportedOperatorError` for one
        that is no ONNX graph."""
        total = sum((*self.examined.found.macs.values(), *self.examined.region_macs.values()))
        return self._source.as_region(self.examined.regions, total)

    def refusing(self, operators: Mapping[str, str]) -> Network:
        """Return the same network, of which operators that a compiler refused are left to
        onnxruntime, by name with the reason."""
        source = self._source.refusing(operators)
        if source is self._source:
            return self
        return Network(
            source, self.input_shapes, calibration=self._calibration, foretold=self._foretold
        )

    def calibrated_by(self, samples: Path | None) -> Network:
        """Return the same network, read once, that these samples quantise, by default those of
        `samples_for`."""
        other = copy(self)
        other._calibration = samples
        return other

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One inference on this machine's CPU, in compiled code and in onnxruntime: arrays by input
        name in, by output name out. Raises `InputError`."""
        if self._split_to_run is None:
            self._split_to_run = self.split(without_layers=True)
        compiled = self._split_to_run.compiled
        if compiled is not None and self._split_to_run.last is None:
            return compiled.compiled(inputs)
        last = self.as_region() if compiled is None else self._split_to_run.last
        assert last is not None
        names = {info.name for info in last.inputs}
        if set(inputs) != names:
            raise InputError(
                f"the network's inputs are {', '.join(sorted(names))}, not {', '.join(inputs)}; "
                "give one array for each"
            )
        known: dict[str, NDArray[Any]] = dict(inputs)
        if compiled is not None:
            known |= compiled.compiled({n: inputs[n] for n in compiled.compiled.inputs})
        for region in last.regions:
            known |= RegionSession.of(region, threads=0).run(known)
        return {info.name: known[info.name] for info in last.whole.graph.output}


def _accelerator(
    block_in: int, block_out: int, batch: int, epilogue: EpilogueMode, max_waste: float
) -> Accelerator:
    return Accelerator(Blocks(batch, block_in, block_out), epilogue, max_waste)


def load(
    source: str | Path,
    input_shapes: InputShapes | None = None,
    seed: int = 0,
    *,
    sandbox: bool = False,
    calibration: Path | None = None,
    allow_code: bool = False,
) -> Network:
    """A built-in network by name (`seed` draws its weights), or an ONNX, TensorFlow Lite or
    torch.export file.

    `input_shapes` fixes the sizes of inputs that are dynamic; `calibration` names samples as
    `samples_for` reads them. Reads the file and checks it; raises `UnknownName` and as
    `networks.model_source.read_source`. `sandbox`, for files of strangers, leaves reading to a
    child process with limits, once the network is examined (`networks.sandbox`). `allow_code`
    permits the code that a torch.export file may run when it is read.
    """
    shapes = dict(input_shapes or {})
    if str(source) in zoo.FAMILIES:
        name = str(source)
        weightless = zoo.build(name, seed, weights=False)
        of = OnnxSource(name, weightless, lambda: zoo.build(name, seed), shapes)
        return Network(of, shapes, foretold=True)
    path = Path(source)
    if not path.exists() and path.name == str(source) and not path.suffix:
        raise UnknownName("network", str(source), zoo.names())
    if sandbox and path.suffix not in TORCH_SUFFIXES:
        return Network(SandboxedSource(path, shapes), shapes, calibration=calibration)
    opened = read_source(path, shapes, allow_code=allow_code)
    return Network(opened, shapes, calibration=calibration)
