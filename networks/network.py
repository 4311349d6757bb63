"""A trained network: what of it can be offloaded, and how it runs on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from networks import report, zoo
from networks.accelerator import MAX_WASTE, Accelerator, EpilogueMode
from networks.examined import Examined
from networks.extract import Decision, ExtractedWorkload, collect
from networks.offload import decide
from networks.onnx_source import OnnxSource, refuse_unsupported
from networks.report import ModelReport
from networks.sandbox import SandboxedSource
from networks.sources import InputShapes, Source, read_source
from targets.capabilities import Blocks
from targets.errors import UnknownName

if TYPE_CHECKING:
    from networks.relax.execute import CompiledModule
    from networks.whole import Whole


class Network:
    """A network with static input shapes. TVM imports it on first use, once."""

    def __init__(self, source: Source, input_shapes: InputShapes | None = None) -> None:
        self._source = source
        self.name = source.name
        self.input_shapes = dict(input_shapes or {})

    @cached_property
    def examined(self) -> Examined:
        """What the importer found, independent of any accelerator."""
        return self._source.examine()

    @cached_property
    def compiled(self) -> CompiledModule:
        """The whole network built for this machine's CPU, in float or as quantised."""
        return self._source.compile()

    @cached_property
    def whole(self) -> Whole:
        """All of it with its weights, to be compiled. Raises as `Source.compile`."""
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
        refuse_unsupported(self.name, self.examined.unsupported)
        return self._surveyed_on(accelerator)

    def decisions_on(self, accelerator: Accelerator) -> list[Decision]:
        """What becomes of each fused call, by what it would take there and on the CPU."""
        return decide(self.examined, accelerator)

    def _surveyed_on(self, accelerator: Accelerator) -> tuple[list[ExtractedWorkload], ModelReport]:
        decisions = self.decisions_on(accelerator)
        said = report.build(self.examined, accelerator, decisions)
        if not self._has_graph(accelerator):
            return collect(decisions), said
        from networks.integer.network import quantised_graph, reported, workloads_of

        model = self._source.weighted()
        assert model is not None
        graph = quantised_graph(
            model, accelerator, decisions, name=self.name, input_shapes=self.input_shapes
        )
        return workloads_of(graph), reported(said, graph)

    def _has_graph(self, accelerator: Accelerator) -> bool:
        """Whether its layers are those of its own scales: it is quantised, and the accelerator
        computes in integers as the network needs it."""
        quantised = any(call.data_quantisation for call in self.examined.found.calls)
        ours = not accelerator.computes_floats and accelerator.epilogue != "plain"
        whole = not self.examined.unsupported and self._source.has_graph
        return quantised and ours and whole

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One inference on this machine's CPU: arrays by input name in, by output name out."""
        return self.compiled(inputs)


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
) -> Network:
    """A built-in network by name (`seed` draws its weights), or an ONNX, TensorFlow Lite or
    torch.export file.

    `input_shapes` fixes the sizes of inputs that are dynamic. Reads the file and checks it; raises
    `UnknownName` and as `networks.sources.read_source`. `sandbox`, for files of strangers, leaves
    reading to a child process with limits, once the network is examined (`networks.sandbox`).
    """
    shapes = dict(input_shapes or {})
    if str(source) in zoo.FAMILIES:
        name = str(source)
        weightless = zoo.build(name, seed, weights=False)
        return Network(OnnxSource(name, weightless, lambda: zoo.build(name, seed), shapes), shapes)
    path = Path(source)
    if not path.exists() and path.name == str(source) and not path.suffix:
        raise UnknownName("network", str(source), zoo.names())
    if sandbox:
        return Network(SandboxedSource(path, shapes), shapes)
    return Network(read_source(path, shapes), shapes)
