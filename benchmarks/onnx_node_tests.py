"""Takes operators with their inputs from the node tests that the `onnx` package ships."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from onnx.backend.test.loader import load_model_tests

from benchmarks.drawn_forms import NEWEST_OPSET, Sketch
from tilewright.networks.onnx.graph import STANDARD_DOMAINS
from tilewright.networks.partition.supported_forms import CONSTANTS


def node_test_sketches(chosen: Collection[str]) -> Iterator[Sketch]:
    """Yield the single operators of the node tests, all or the chosen ones: as they are, and with
    those inputs constant that models usually have as constants."""
    for test in load_model_tests(kind="node"):
        node, *others = test.model.graph.node
        versions = [o.version for o in test.model.opset_import if o.domain in STANDARD_DOMAINS]
        opset = max(versions, default=1)
        arrays = test.data_sets[0][0] if test.data_sets else []
        plain = all(isinstance(each, np.ndarray | np.generic) for each in arrays)
        if others or not plain or opset > NEWEST_OPSET or (chosen and node.op_type not in chosen):
            continue
        names = [info.name for info in test.model.graph.input]
        known = dict(zip(names, map(np.asarray, arrays), strict=False))
        inputs = tuple(known.get(name) for name in node.input)
        places = frozenset(CONSTANTS.get(node.op_type, ()))
        for constant in {frozenset(), places - {0} if len(inputs) > 1 else frozenset()}:
            yield Sketch(
                node.op_type, node.domain, opset, tuple(node.attribute), inputs, constant,
                "".join(str(int(bool(name))) for name in node.output),
            )  # fmt: skip
