"""Open models: ONNX, TensorFlow Lite and torch.export files, and built-in networks.

`Source` is the interface of an opened model. `OnnxSource` implements it for ONNX graphs. All other
formats are converted to ONNX first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import onnx

from tilewright.core.errors import UnknownName
from tilewright.networks import zoo
from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError, first_line
from tilewright.networks.fused_calls import NOTHING
from tilewright.networks.imported_model import Examined, Whole
from tilewright.networks.importing import (
    Imported,
    import_compiled,
    import_fixed,
    weightless_graph,
)
from tilewright.networks.macs import graph_macs
from tilewright.networks.model_runner import ModelRunner
from tilewright.networks.onnx.files import (
    has_undrawable_inputs,
    load_weights,
    lone_integers,
    read_model_file,
    weight_files,
    weights_as_inputs,
    without_weights,
)
from tilewright.networks.onnx.graph import NormalGraph, Shape, data_inputs, static_shape
from tilewright.networks.onnx.normalise import fixed_graph
from tilewright.networks.onnx.opset import raise_opset
from tilewright.networks.onnx.reference_model import (
    half_outputs,
    has_bfloat16_ends,
    reference_model,
)
from tilewright.networks.onnx.same_padding import make_dilated_same_explicit
from tilewright.networks.onnx.size_limits import check_sizes
from tilewright.networks.onnx.static_shapes import fixed_inputs
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.networks.partition.onnxruntime_check import check_known, has_branches, opens
from tilewright.networks.partition.region_models import LastRegions, RegionModel, region_model
from tilewright.networks.partition.regions import Region
from tilewright.networks.tflite.convert import convert, read_tflite
from tilewright.networks.tflite.file import read_graph as read_tflite_file
from tilewright.networks.torch_export import TORCH_SUFFIXES, convert_exported

InputShapes = Mapping[str, Sequence[int]]

TFLITE_SUFFIX = ".tflite"


class Source(Protocol):
    """Interface of an opened model: it can be analysed without its weights and compiled with them.

    Attributes:
        name: name of the model for messages.
    """

    name: str

    def prepare(self) -> None:
        """Read the weights and normalise the model with them.

        Commands that need the weights call this first, so that the model is normalised only once.

        Raises:
            UnsupportedOperatorError: an operator could not be converted to ONNX. Further errors are
                those of `examine`.
        """

    def weighted(self) -> onnx.ModelProto:
        """Return the model as an ONNX graph with its weights.

        Raises:
            ModelFileError: the weights cannot be read.
        """

    def fixed(self) -> NormalGraph:
        """Return the model with its weights and static shapes, as `fixed_graph` returns it.

        The result is shared between callers, which must not modify it. Raises the same errors as
        `examine`.
        """

    def examine(self) -> Examined:
        """Analyse the model. Operators that cannot be imported are part of the result.

        Raises:
            ModelFileError: the model is not valid.
            DynamicShapeError: an input shape is unknown or wrong.
            ImportFailedError: the model cannot be imported.
        """

    def split(self, *, without_layers: bool = False) -> tuple[Source | None, LastRegions | None]:
        """Split the model into its compiled part and the onnxruntime regions that run after it.

        Args:
            without_layers: also compile a model that has neither pools nor multiply-accumulates.

        Returns:
            The compiled part and the regions after it. Each is None if there is none.

        Raises:
            UnsupportedOperatorError: an operator could not be converted to ONNX. Further errors are
                those of `examine`.
        """

    def as_region(self, regions: Sequence[Region], macs: int) -> LastRegions:
        """Return the whole model as one onnxruntime region.

        Args:
            regions: the regions that the model was split into. Their reasons are kept.
            macs: multiply-accumulates of the whole model.

        Raises:
            UnsupportedOperatorError: an operator could not be converted to ONNX.
        """

    def refusing(self, operators: Mapping[str, str]) -> Source:
        """Return the same model, in which onnxruntime also runs the given operators.

        The file is not read again.

        Args:
            operators: the operators that are not to be compiled: name to reason.
        """

    def whole(self) -> Whole:
        """Import the whole model with its weights.

        Returns:
            The model, ready to be compiled, with a reference implementation.

        Raises:
            UnsupportedOperatorError: nothing can be compiled, or an operator could not be converted
                to ONNX. Further errors are those of `examine`.
        """


def read_source(path: Path, input_shapes: InputShapes, *, allow_code: bool = False) -> Source:
    """Read and check a model file in this process.

    Args:
        path: an ONNX, TensorFlow Lite or torch.export file. PyTorch converts torch.export files in
            a child process.
        input_shapes: shape for each dynamic input, by input name.
        allow_code: permit the code that a torch.export file may run when it is read.

    Returns:
        The opened model. The weights of an ONNX file are read on first use.

    Raises:
        ModelFileError: the file cannot be read or is not a valid model.
    """
    if path.suffix in TORCH_SUFFIXES:
        exported = convert_exported(path, allow_code=allow_code)
        check_sizes(exported)
        return OnnxSource(str(path), exported, lambda: exported, input_shapes)
    if path.suffix == TFLITE_SUFFIX:
        converted = convert(read_tflite_file(path))
        check_sizes(converted.model)
        return OnnxSource(
            str(path), converted.model, lambda: converted.model, input_shapes, converted.missing
        )
    model = read_model_file(path)
    check_sizes(model)
    return OnnxSource(str(path), model, lambda: load_weights(model, path.parent), input_shapes)


def external_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of the external weight files of an ONNX file; empty for other formats.

    Raises:
        ModelFileError: the file cannot be read.
    """
    if path.suffix in (*TORCH_SUFFIXES, TFLITE_SUFFIX):
        return ()
    return weight_files(path)


def model_with_weights(
    source: str | Path, seed: int = 0, *, allow_code: bool = False
) -> onnx.ModelProto:
    """Return a model as ONNX with all its weights.

    Args:
        source: name of a built-in network, or path of an ONNX, TensorFlow Lite or torch.export
            file.
        seed: seed for the random weights of a built-in network.
        allow_code: permit the code that a torch.export file may run when it is read.

    Raises:
        UnknownName: `source` is neither a built-in network nor an existing file.
        ModelFileError: the file cannot be read or is not a valid model.
        UnsupportedOperatorError: a TensorFlow Lite operator cannot be converted.
    """
    if str(source) in zoo.FAMILIES:
        return zoo.build(str(source), seed)
    path = Path(source)
    if not path.exists() and path.name == str(source) and not path.suffix:
        raise UnknownName("network", str(source), zoo.names())
    if path.suffix in TORCH_SUFFIXES:
        model = convert_exported(path, allow_code=allow_code)
    elif path.suffix == TFLITE_SUFFIX:
        model = read_tflite(path)
    else:
        model = read_model_file(path)
    check_sizes(model)
    return load_weights(model, path.parent)


REPLACE = "replace this operator before converting the model, or remove it"


class OnnxSource:
    """An opened model that is an ONNX graph.

    Args:
        name: name of the model for messages.
        model: the model. The data of large tensors may be missing.
        weighted: returns the model with all its data.
        input_shapes: shape for each dynamic input, by input name.
        missing: operators that could not be converted to ONNX: name to reason.
        refused: operators that a compiler rejected: name to reason.
        imported: the result of an earlier import, if there is one.
    """

    def __init__(
        self,
        name: str,
        model: onnx.ModelProto,
        weighted: Callable[[], onnx.ModelProto],
        input_shapes: Mapping[str, Sequence[int]],
        missing: Mapping[str, str] = MappingProxyType({}),
        refused: Mapping[str, str] = MappingProxyType({}),
        imported: Imported | None = None,
    ) -> None:
        self.name = name
        self._missing = {node: (reason, REPLACE) for node, reason in missing.items()}
        self._model = model
        self._read_weights = weighted
        self._input_shapes = input_shapes
        self._refused = dict(refused)
        self._imported = imported
        self._fixed: NormalGraph | None = None
        self._examined: Imported | None = None
        self._known = bool(missing)  # onnxruntime does not know what could not be converted
        self._accepted = False

    @cached_property
    def _whole_file(self) -> onnx.ModelProto:
        """The model with all its data, unchanged from its file."""
        return self._read_weights()

    @cached_property
    def _reference(self) -> onnx.ModelProto:
        return reference_model(self._whole_file)

    def prepare(self) -> None:
        """Read the weights and normalise the model with them."""
        self._check_missing()
        self._check_known()
        self._check_valid()
        self.fixed()

    def weighted(self) -> onnx.ModelProto:
        """Return the model with all its data, in the data types in which Tilewright computes."""
        return self._reference

    def fixed(self) -> NormalGraph:
        """Return the model with all of its data and static shapes."""
        if self._fixed is None:
            self._fixed = fixed_graph(to_qdq(self._reference), self._input_shapes)
        return self._fixed

    def refusing(self, operators: Mapping[str, str]) -> OnnxSource:
        """Return the same model with the given operators assigned to onnxruntime; see `Source`."""
        if operators.items() <= self._refused.items():
            return self
        other = copy(self)
        other._refused = {**self._refused, **operators}
        other._imported = other._examined = None
        return other

    def examine(self) -> Examined:
        """Import the model without weight data, partition it and return the analysis.

        Raises:
            ModelFileError: the model is not valid ONNX.
            DynamicShapeError: an input shape is unknown or wrong.
            ImportFailedError: the model cannot be imported.
        """
        try:
            return self._examine()
        except UnicodeDecodeError:
            raise ModelFileError(
                f"'{self.name}' contains names that are not valid text; the file is damaged, "
                "export it again"
            ) from None

    def _examine(self) -> Examined:
        self._check_known()
        from tilewright.networks.relax.partition import partition

        imported = self._imported
        if imported is None:
            self._check_valid()
            graph = (
                self._without_weights() if self._fixed is None else weightless_graph(self._fixed)
            )
            imported = import_compiled(graph, self._refused, weightless=True)
            self._refused = dict(imported.refused)
            self._examined = imported
        fixed, core = imported.fixed, imported.core
        normal = fixed if core is None else core.normal
        outside = {name for region in imported.regions for name in region.nodes}
        return Examined(
            name=self.name,
            inputs={info.name: static_shape(info) or () for info in data_inputs(fixed.model)},
            operators=normal.operators,
            absorbed={**fixed.absorbed, **normal.absorbed},
            unsupported=self._missing,
            readers=_readers(fixed) | _readers(normal),
            shapes=_shapes(fixed) | _shapes(normal),
            found=NOTHING if core is None else partition(core.flat).found,
            results=_results(fixed) | _results(normal),
            region_macs=graph_macs(fixed, outside),
            regions=tuple(imported.regions),
            notes=normal.notes,
            constant_outputs=_constant_outputs(fixed),
        )

    def _check_known(self) -> None:
        """Check, on the first call only, that onnxruntime knows all operators of the model."""
        if not self._known:
            self._accepted = check_known(self.name, without_weights(self._model))
            self._known = True

    def _check_valid(self) -> None:
        """Validate the model with ONNX's checker.

        A model that onnxruntime or the checker accepted before is not validated again.

        Raises:
            ModelFileError: the model is not valid ONNX.
        """
        if not self._accepted:
            _check(raise_opset(without_weights(to_qdq(self._model))))
            self._accepted = True

    def _without_weights(self) -> NormalGraph:
        """Return the model with static shapes but without the data of its weights."""
        return fixed_graph(without_weights(to_qdq(self._model)), self._input_shapes)

    def _check_missing(self) -> None:
        """Raise `UnsupportedOperatorError` if operators could not be converted to ONNX."""
        refuse_unsupported(self.name, self._missing)

    def split(
        self, *, without_layers: bool = False
    ) -> tuple[OnnxSource | None, LastRegions | None]:
        """Split the model into its compiled part and the onnxruntime regions that run after it.

        If `examine` was called before, the weights are loaded only if there are both a compiled
        part and regions after it.

        Args:
            without_layers: also compile a model that has neither pools nor multiply-accumulates.

        Returns:
            The compiled part, with the regions inside it, and the regions after it. Each is None if
            there is none.
        """
        self._check_missing()
        self._check_known()
        if (known := self._examined) is not None:
            if known.core is None or not (without_layers or known.has_layers):
                return None, None
            if not known.last:
                return self, None
        imported = self._imported or import_compiled(self.fixed(), self._refused)
        if not imported.last:  # what `examine` reads of the graph takes no weights
            self._imported = replace(imported, fixed=weightless_graph(imported.fixed))
        if imported.core is None or not (without_layers or imported.has_layers):
            return None, None
        if not imported.last:
            return self, None
        core = imported.core.model
        assert core is not None
        own = Imported(
            imported.core,
            weightless_graph(replace(imported.fixed, model=core)),
            [region for region in imported.regions if not region.last],
            imported.refused,
        )
        source = OnnxSource(
            self.name, core, lambda: core, {}, refused=imported.refused, imported=own
        )
        models = tuple(region_model(imported.fixed, region) for region in imported.last)
        whole = fixed_inputs(self._reference, self._input_shapes)
        return source, LastRegions(models, whole, half_outputs(self._whole_file))

    def as_region(self, regions: Sequence[Region], macs: int) -> LastRegions:
        """Return the whole model, unchanged from its file, as one onnxruntime region.

        A model with bfloat16 inputs or outputs is converted to float32 first.

        Args:
            regions: the regions that the model was split into. Their reasons are kept.
            macs: multiply-accumulates of the whole model.
        """
        self._check_missing()
        self._check_known()
        weighted = self._whole_file
        if has_bfloat16_ends(weighted):
            weighted = self._reference  # numpy has no bfloat16
        whole = fixed_inputs(weighted, self._input_shapes)
        make_dilated_same_explicit(whole)  # onnxruntime refuses these
        causes = tuple(cause for region in regions for cause in region.causes)
        operators = tuple(
            (node.name or f"{node.op_type}_{place}", node.op_type)
            for place, node in enumerate(whole.graph.node)
        )
        inputs = tuple(info.name for info in data_inputs(whole))
        outputs = tuple(info.name for info in whole.graph.output)
        own = whole
        if has_branches(whole) and not opens(whole, optimised=True):
            own = weighted  # static sizes contradict a branch that is never taken
        return LastRegions((RegionModel(own, inputs, outputs, operators, causes, macs),), whole)

    def whole(self) -> Whole:
        """Import the compiled part with the regions inside it. The reference is onnxruntime.

        Raises:
            UnsupportedOperatorError: nothing can be compiled, or an operator could not be converted
                to ONNX.
        """
        self._check_missing()
        core = None if self._imported is None else self._imported.core
        if core is None:
            core = import_fixed(self.name, self.fixed(), self._refused)
        outputs = tuple(info.name for info in core.normal.graph.output)
        return Whole(
            core.flat,
            tuple(info.name for info in data_inputs(core.normal.model)),
            outputs,
            ModelRunner(self._reference, outputs),
            "onnxruntime",
            core.regions,
            lone_integers(self._reference),
            half_outputs(self._whole_file),
            has_undrawable_inputs(self._reference),
        )


def refuse_unsupported(name: str, unsupported: Mapping[str, tuple[str, str]]) -> None:
    """Raise `UnsupportedOperatorError` if any operators cannot be imported.

    Args:
        name: name of the model for messages.
        unsupported: operator name to (reason, next step). The message shows the first three.
    """
    if unsupported:
        shown = "; ".join(
            f"'{node}': {why} ({step})" for node, (why, step) in list(unsupported.items())[:3]
        )
        more = f" and {len(unsupported) - 3} more" if len(unsupported) > 3 else ""
        raise UnsupportedOperatorError(
            f"'{name}' cannot be imported completely: {shown}{more}; `tilewright inspect "
            f"{name}` lists every operator and what to do"
        )


def _check(model: onnx.ModelProto) -> None:
    """Validate a model with ONNX's own checker, which is stricter than onnxruntime.

    Raises:
        ModelFileError: the model is not valid ONNX.
    """
    try:
        onnx.checker.check_model(weights_as_inputs(model))
    except onnx.checker.ValidationError as error:
        reason = first_line(error)
        raise ModelFileError(f"the model is not valid ONNX: {reason}; export it again") from error


def _readers(normal: NormalGraph) -> dict[str, tuple[str, ...]]:
    by_input: dict[str, list[str]] = {}
    for node in normal.graph.node:
        for name in node.input:
            by_input.setdefault(name, []).append(node.name)
    return {
        node.name: tuple(reader for output in node.output for reader in by_input.get(output, []))
        for node in normal.graph.node
    }


def _constant_outputs(normal: NormalGraph) -> tuple[str, ...]:
    varies = {info.name for info in data_inputs(normal.model)}
    inside = any(a.HasField("g") or a.graphs for n in normal.graph.node for a in n.attribute)
    for node in normal.graph.node:
        if inside or not varies.isdisjoint(node.input):  # a subgraph may read any tensor
            varies.update(node.output)
    return tuple(output.name for output in normal.graph.output if output.name not in varies)


def _results(normal: NormalGraph) -> frozenset[str]:
    outputs = {info.name for info in normal.graph.output}
    return frozenset(node.name for node in normal.graph.node if outputs & set(node.output))


def _shapes(normal: NormalGraph) -> dict[str, Shape]:
    shapes = normal.shapes()
    return {
        operator.name: shapes[operator.outputs[0]]
        for operator in normal.operators
        if operator.outputs and operator.outputs[0] in shapes
    }
