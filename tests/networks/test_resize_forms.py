"""Checks that every form of Resize matches onnxruntime or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import session

from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.networks.errors import ImportFailedError
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.relax.importer import import_onnx
from tilewright.networks.relax.resizing import plan_resize
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.spec import CpuSpec

Form = tuple[Sequence[int], Mapping[str, Any], Sequence[float], Sequence[int]]
"""Image shape, node attributes, scales, and sizes. The sizes are used if the scales are empty."""
FACTORS = (2.0, 1.5, 0.5, 0.7)


def _forms() -> list[Form]:
    forms: list[Form] = []
    for coordinates in (
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric",
    ):  # fmt: skip
        for factor in FACTORS:
            scales = [1, 1, factor, factor]
            common = {"coordinate_transformation_mode": coordinates}
            forms.append(([1, 2, 7, 8], {"mode": "linear", **common}, scales, []))
            forms.append(([1, 2, 7, 8], {"mode": "cubic", **common}, scales, []))
            for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                rounded = {"mode": "nearest", "nearest_mode": rounding, **common}
                forms.append(([1, 2, 7, 8], rounded, scales, []))
        forms.append(([1, 2, 7, 5], {"mode": "linear", **common}, [], [1, 2, 10, 13]))
        forms.append(([1, 2, 7, 5], {"mode": "nearest", **common}, [], [1, 2, 10, 3]))
    cubic = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    return [
        *forms,
        ([1, 2, 6, 6], cubic, [1, 1, 2, 2], []),
        ([1, 4, 4, 3], {"mode": "linear"}, [1, 2, 2, 1], []),
        ([1, 2, 5], {"mode": "nearest"}, [1, 1, 2], []),
        ([1, 2, 3, 3, 3], {"mode": "linear"}, [1, 1, 2, 2, 2], []),
        ([2, 2, 3, 3], {"mode": "nearest"}, [2, 1, 1, 1], []),
        ([1, 2, 6, 6], {"mode": "linear", "antialias": 1}, [1, 1, 2, 2], []),
        ([1, 2, 6, 8], {"mode": "linear", "axes": [2, 3],
                        "keep_aspect_ratio_policy": "not_larger"}, [], [12, 9]),
        ([1, 2, 6, 8], {"mode": "nearest", "axes": [3]}, [1.5], []),
    ]  # fmt: skip


FORMS = _forms()


def model_of(form: Form) -> onnx.ModelProto:
    shape, attributes, scales, sizes = form
    given = {"scales": np.float32(scales)} if scales else {"sizes": np.array(sizes, np.int64)}
    inputs = ["x", "", "scales"] if scales else ["x", "", "", "sizes"]
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], name="resize", **attributes)], "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def image_of(form: Form) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(form[0]).astype(np.float32)


def theirs(form: Form) -> NDArray[np.float32]:
    (result,) = session(model_of(form), optimised=True).run(None, {"x": image_of(form)})
    resized: NDArray[np.float32] = result
    return resized


def computed(form: Form) -> NDArray[np.float64] | None:
    """Compute the resize from its taps in numpy. Return None for forms that are left to TVM."""
    shape, attributes, scales, sizes = form
    given = np.float32(scales) if scales else np.array(sizes)
    taps = plan_resize(shape, dict(attributes), given, by_size=not scales)
    if taps is None:
        return None
    image = image_of(form).astype(np.float64)
    for axis, tap in taps.items():
        image = np.moveaxis(image, axis, -1)
        image = (image[..., tap.places] * tap.weights).sum(axis=-1)
        image = np.moveaxis(image, -1, axis)
    return image


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_neighbours_and_weights_are_onnxruntimes(form: Form) -> None:
    result = computed(form)
    if result is not None:
        np.testing.assert_allclose(result, theirs(form), 1e-4, 1e-5)


def test_few_forms_are_left_to_tvm() -> None:
    left = [form for form in FORMS if computed(form) is None]
    assert 0 < len(left) < 20
    assert {form[1]["mode"] for form in left} == {"linear"}


@pytest.mark.slow(seconds=10)
def test_compiled_forms_are_onnxruntimes(tmp_path: Path) -> None:
    form: Form
    for number, form in enumerate((
        ([1, 2, 7, 8], {"mode": "nearest"}, [1, 1, 1.5, 0.5], []),
        ([1, 4, 4, 3], {"mode": "linear"}, [1, 2, 2, 1], []),
        ([1, 2, 5, 5], {"mode": "linear"}, [1, 1, 2, 2], []),
        ([1, 1, 8, 8], {"mode": "linear"}, [1, 1, 0.5, 0.5], []),
        ([1, 2, 7, 5], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [],
         [1, 2, 10, 13]),
    )):  # fmt: skip
        normal = normalise(model_of(form), {}).model
        module = import_onnx(normal, ["x"]).module
        content, weights = compiled_library(
            module, llvm_target(CpuSpec.parse("threads=1")), lowering(), module
        )
        path = tmp_path / f"{number}.so"
        path.write_bytes(content)
        (result,) = LoadedLibrary(path, weights)([image_of(form)])
        np.testing.assert_allclose(result, theirs(form), 1e-4, 1e-5, err_msg=str(form))


def test_what_nobody_computes_is_refused_by_name() -> None:
    smooth: Form = ([1, 2, 8, 8], {"mode": "linear", "antialias": 1}, [1, 1, 0.5, 0.5], [])
    model = normalise(model_of(smooth), {}).model
    with pytest.raises(ImportFailedError, match=r"'resize' \(Resize\).*antialias"):
        import_onnx(model, ["x"])
