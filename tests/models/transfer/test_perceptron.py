"""Checks that an MLP trained with JAX gives the same predictions in NumPy, without JAX."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.transfer.tables import small_table
from tilewright.models.transfer import numpy_mlp
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.jax_networks import Perceptron, init_weights
from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.registry import continue_from, load_model, make_model


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize(
    ("columns", "layers", "rows", "alike"), [(40, 3, 1100, 0.5), (12, 4, 513, 1.0), (5, 1, 3, 0.0)]
)
def test_it_computes_what_the_network_does(
    columns: int, layers: int, rows: int, alike: float
) -> None:
    seed, units = columns, 24
    rng = np.random.default_rng(seed)
    network = Perceptron(columns, units, layers)
    weights = {
        name: (item + rng.normal(0, 0.3, item.shape)).astype(np.float32)
        for name, item in init_weights(network, seed).items()
    }
    x = rng.normal(0, 2, (rows, columns)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    same = rng.random(columns) < alike  # columns of the hardware are often constant
    x[:, same] = x[0, same]
    expected = np.asarray(network({k: jnp.asarray(v) for k, v in weights.items()}, jnp.asarray(x)))
    result = numpy_mlp.ask(weights, layers, x)
    np.testing.assert_allclose(result, expected, atol=1e-4, rtol=1e-4)


def _saved(folder: Path) -> Transferred:
    model = make_model("mlp", 0, {"epochs": 1, "units": 8, "threads": 1})
    model.fit(small_table())
    model.save(folder)
    return model


@pytest.mark.nightly(seconds=6)
def test_it_is_asked_without_jax_and_goes_on_learning_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _saved(tmp_path / "model")
    asked = (
        "import sys, numpy as np; from pathlib import Path; sys.modules['jax'] = None\n"
        "from tilewright.models.transfer.registry import load_model\n"
        "from tests.models.transfer.tables import small_table\n"
        "found = load_model(Path(sys.argv[1])).predict(small_table().features).log_latency\n"
        "print(found.sum())"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", asked, str(tmp_path / "model")],
        capture_output=True, text=True, cwd=root, check=True,
    )  # fmt: skip
    said = model.predict(small_table().features).log_latency.sum()
    assert float(done.stdout) == pytest.approx(said)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "jax" else find(name, *a)
    )
    with pytest.raises(TransferError, match=r"tilewright\[neural\]"):
        continue_from(load_model(tmp_path / "model"))
