"""A trained network: reports where its operators run, lists the workloads to tune, and runs it.

The operators of a network are split between an accelerator, code compiled for the CPU, and
onnxruntime.
"""

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
    """A network split into a compiled part and regions that run after it.

    A region is a part of the network that onnxruntime runs.

    Attributes:
        compiled: the compiled part, None if nothing is compiled.
        last: the regions that run after the compiled part, None if there are none.
    """

    compiled: Network | None
    last: LastRegions | None

    def samples(self, calibration: Path | None) -> Samples:
        """Return calibration samples for the inputs of the compiled part.

        Args:
            calibration: path of the samples of the whole network. If None, random samples are
                generated.

        Returns:
            The samples, restricted to the inputs of the compiled part.

        Raises:
            InputError: the samples do not fit the model.
        """
        assert self.compiled is not None
        if self.last is None:
            inputs = inputs_of(self.compiled.fixed)
            return samples_of(self.compiled.weighted, inputs, calibration)
        names = {info.name for info in self.compiled.weighted.graph.input}
        return samples_for(self.last.whole, calibration, {}).restrict_inputs(names)


class Network:
    """A network with static input shapes. It is imported into TVM once, on first use.

    Args:
        source: the opened model.
        input_shapes: shape for each dynamic input, by input name.
        calibration: path of the calibration samples, by default those of `samples_for`. They are
            used to quantise a float network, which shows which of its layers an int8 accelerator
            can run.
        foretold: predict the accelerator's layers from the operators' shapes instead of quantising
            the network. Built-in networks do this, because their weights are random.

    Attributes:
        name: name of the network.
        input_shapes: the given input shapes.
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
        """Analysis of the network after import, independent of any accelerator."""
        return self._source.examine()

    @cached_property
    def compiled(self) -> CompiledModule:
        """The whole network, compiled for this machine's CPU.

        It computes in float32, or with the network's own quantisation.
        """
        from tilewright.networks.relax.execute import CompiledModule

        whole = self.whole
        return CompiledModule(whole.flat.module, whole.inputs, whole.outputs, whole.regions)

    @cached_property
    def whole(self) -> Whole:
        """The whole network with its weights, ready to be compiled.

        Raises the same errors as `Source.whole`.
        """
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
        """Report where each operator runs on an accelerator with the given block sizes.

        The report assumes that the accelerator has no other limits, so every operator that it can
        run is offloaded.

        Args:
            block_in: input channels per block.
            block_out: output channels per block.
            batch: rows per block.
            epilogue: which operations the epilogues contain (`networks.epilogues`).
            max_waste: offload a layer only if at most this fraction of its multiplications are with
                padding zeros.

        Returns:
            The report, with one entry per operator and per workload.

        Raises:
            ModelFileError: the model file is invalid.
            DynamicShapeError: an input shape is unknown or wrong.
            ImportFailedError: the model cannot be imported.
        """
        return self.report_on(_accelerator(block_in, block_out, batch, epilogue, max_waste))

    def report_on(self, accelerator: Accelerator) -> ModelReport:
        """Report where each operator runs, and its cost on the accelerator and on the CPU.

        An operator that cannot be imported raises no error; the report lists it with the reason.

        Args:
            accelerator: the accelerator.

        Returns:
            The report, with one entry per operator and per workload.

        Raises:
            ModelFileError: the model file is invalid.
            DynamicShapeError: an input shape is unknown or wrong.
            ImportFailedError: the model cannot be imported.
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
        """Return the workloads to tune for an accelerator with the given block sizes.

        Like `report`, this assumes that the accelerator has no other limits.

        Args:
            block_in: input channels per block.
            block_out: output channels per block.
            batch: rows per block.
            epilogue: which operations the epilogues contain (`networks.epilogues`).
            max_waste: offload a layer only if at most this fraction of its multiplications are with
                padding zeros.

        Returns:
            One (workload, calls per inference, operator names) per workload, in the order of first
            use.

        Raises:
            UnsupportedOperatorError: an operator could not be converted to ONNX, so the network
                cannot run.
            ModelFileError: the model file is invalid.
            DynamicShapeError: an input shape is unknown or wrong.
            ImportFailedError: the model cannot be imported.
        """
        return self.workloads_on(_accelerator(block_in, block_out, batch, epilogue, max_waste))

    def workloads_on(self, accelerator: Accelerator) -> list[ExtractedWorkload]:
        """Return the workloads to tune for an accelerator.

        Args:
            accelerator: the accelerator.

        Returns:
            One (workload, calls per inference, operator names) per workload, in the order of first
            use.

        Raises:
            UnsupportedOperatorError: an operator could not be converted to ONNX, and the
                accelerator does not compute in float. Further errors are those of `report_on`.
        """
        return self.surveyed_on(accelerator)[0]

    def surveyed_on(self, accelerator: Accelerator) -> tuple[list[ExtractedWorkload], ModelReport]:
        """Return the results of `workloads_on` and `report_on`, computed together.

        Args:
            accelerator: the accelerator.

        Returns:
            The workloads to tune and the report.

        Raises:
            UnsupportedOperatorError: as for `workloads_on`. Further errors are those of
                `report_on`.
        """
        if not accelerator.computes_floats:  # what a processor cannot compile, onnxruntime runs
            refuse_unsupported(self.name, self.examined.unsupported)
        return self._surveyed_on(accelerator)

    def decisions_on(self, accelerator: Accelerator) -> list[OffloadDecision]:
        """Decide for each fused call whether it runs on an accelerator or on the CPU.

        A fused call is a set of operators that run as one layer. The decision compares its time on
        both devices.

        Args:
            accelerator: the accelerator.

        Returns:
            One decision per fused call, in execution order.
        """
        return decide_offloading(self.examined, accelerator)

    def _surveyed_on(self, accelerator: Accelerator) -> tuple[list[ExtractedWorkload], ModelReport]:
        decisions = self.decisions_on(accelerator)
        said = report.build_report(self.examined, accelerator, decisions)
        if not self._knows_layers(accelerator):
            return collect_workloads(decisions), said
        from tilewright.networks.integer_network import report_placement, with_nothing, workloads_of

        split = self.split()
        if split.compiled is None:
            return [], with_nothing(said, "no operator of the network is compiled")
        try:
            graph = self._graph_on(accelerator, decisions, split)
        except QuantisationError as error:  # nothing of it can be a layer
            return [], with_nothing(said, str(error))
        return workloads_of(graph), report_placement(said, graph)

    def _graph_on(
        self, accelerator: Accelerator, decisions: list[OffloadDecision], split: SplitNetwork
    ) -> IntegerGraph:
        """Build the graph of integer layers for an accelerator.

        Args:
            accelerator: the accelerator.
            decisions: the offloading decision for each call.
            split: the network, split into its compiled part and the onnxruntime regions after it.
        """
        from tilewright.networks.integer_network import in_integers

        assert split.compiled is not None
        return in_integers(
            split.compiled.fixed, accelerator, decisions, name=self.name,
            samples=split.samples(self._calibration), calls=self.examined.found.calls,
            per_channel=accelerator.epilogue == "per-channel", judged=False,
        ).graph  # fmt: skip

    def prepare(self) -> None:
        """Read the weights and normalise the model with them.

        Commands that need the weights call this first, so that the model is normalised only once.
        Raises the errors of `Source.prepare`.
        """
        self._source.prepare()

    @property
    def weighted(self) -> onnx.ModelProto:
        """The model with its weights, in the data types in which Tilewright computes."""
        return self._source.weighted()

    @property
    def fixed(self) -> NormalGraph:
        """The model with its weights and static shapes. Callers must not modify it."""
        return self._source.fixed()

    def _knows_layers(self, accelerator: Accelerator) -> bool:
        """Return whether the integer layers can be extracted before the build.

        This requires that

        - the accelerator computes in integers,
        - its epilogues contain the operations that the network needs (mode `plain` does not),
        - every operator of the model can be imported, and
        - the weights are real, unlike those of a built-in network.
        """
        ours = not accelerator.computes_floats and accelerator.epilogue != "plain"
        return ours and not self.examined.unsupported and not self._foretold

    def split(self, *, without_layers: bool = False) -> SplitNetwork:
        """Split the network into its compiled part and the onnxruntime regions that run after it.

        A region in the middle of the network belongs to the compiled part, which calls it.

        Args:
            without_layers: also compile a network that has neither pools nor multiply-accumulates.

        Returns:
            The two parts. Each is None if it is empty.
        """
        source, last = self._source.split(without_layers=without_layers)
        if source is None or source is self._source:
            return SplitNetwork(None if source is None else self, last)
        core = Network(source, calibration=self._calibration, foretold=self._foretold)
        return SplitNetwork(core, last)

    def as_region(self) -> LastRegions:
        """Return the whole network as one onnxruntime region.

        Raises:
            UnsupportedOperatorError: the network is not an ONNX graph.
        """
        total = sum((*self.examined.found.macs.values(), *self.examined.region_macs.values()))
        return self._source.as_region(self.examined.regions, total)

    def refusing(self, operators: Mapping[str, str]) -> Network:
        """Return the same network, in which onnxruntime also runs the given operators.

        Args:
            operators: the operators that a compiler rejected: name to reason.
        """
        source = self._source.refusing(operators)
        if source is self._source:
            return self
        return Network(
            source, self.input_shapes, calibration=self._calibration, foretold=self._foretold
        )

    def calibrated_by(self, samples: Path | None) -> Network:
        """Return a copy of the network that uses other calibration samples.

        The model is not read again.

        Args:
            samples: path of the samples; None for the samples that `samples_for` chooses.
        """
        other = copy(self)
        other._calibration = samples
        return other

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one inference on this machine's CPU, in compiled code and in onnxruntime.

        Args:
            inputs: arrays by input name.

        Returns:
            Arrays by output name.

        Raises:
            InputError: the arrays do not fit the network's inputs.
        """
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
            known |= RegionSession.for_region(region, threads=0).run(known)
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
    """Load a built-in network, or an ONNX, TensorFlow Lite or torch.export file.

    Args:
        source: name of a built-in network, or path of a model file.
        input_shapes: shape for each dynamic input, by input name.
        seed: seed for the random weights of a built-in network.
        sandbox: analyse the file in a child process with limits on memory and time
            (`networks.sandbox`). Use it for untrusted files. A build reads the file in this
            process, after the child process has analysed it without an error.
        calibration: path of the calibration samples, as `samples_for` reads them.
        allow_code: permit the code that a torch.export file may run when it is read.

    Returns:
        The network. It is imported into TVM on first use.

    Raises:
        UnknownName: `source` is neither a built-in network nor an existing file.
        ModelFileError: the file cannot be read or is not a valid model.
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
