"""Finds the fastest tile schedules of a neural network with few measurements.

    import tilewright

    tilewright.tune(model="resnet18", target="vta-pynq", trials=64, out="tuned/resnet18")
    tilewright.build("resnet18", "built/resnet18", schedules="tuned/resnet18")
    outputs, profile = tilewright.run("built/resnet18", {"input": image})

The names in `__all__`, and `tilewright.targets.vta.cycles`, `execute` and `classify`, are public:
they change with a release's major number only. All other modules are internal. Names are loaded
when they are first used: importing this package loads neither TVM nor Prefect.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.api import (
        build,
        codesign,
        compare,
        runs,
        sweep,
        trials,
        tune,
    )
    from tilewright.core.errors import TilewrightError
    from tilewright.evaluation.compare.network_comparison import NetworkComparison
    from tilewright.evaluation.compare.network_comparison import NetworkComparison as Sweep
    from tilewright.evaluation.compare.workload_comparison import Comparison
    from tilewright.hardware_search.results import CodesignOutcome
    from tilewright.inference import load, load_model, run
    from tilewright.networks.artifact import Profile
    from tilewright.networks.artifact.session import InferenceSession
    from tilewright.networks.network import Network
    from tilewright.search.explorer import BaseExplorer as Tuner
    from tilewright.search.registry import register as register_tuner
    from tilewright.targets.base import Lowered, Measurements, Space, Target
    from tilewright.targets.registry import make_target
    from tilewright.targets.workload import Workload
    from tilewright.tuning.build_artifact import BuiltArtifact
    from tilewright.tuning.outputs import Summary

    __version__: str

# onnxruntime sends its vendor events of every model it loads, unless this is set before it loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_MODULES = {
    "build": "tilewright.api:build",
    "codesign": "tilewright.api:codesign",
    "compare": "tilewright.api:compare",
    "load": "tilewright.inference:load",
    "load_model": "tilewright.inference:load_model",
    "run": "tilewright.inference:run",
    "runs": "tilewright.api:runs",
    "sweep": "tilewright.api:sweep",
    "trials": "tilewright.api:trials",
    "tune": "tilewright.api:tune",
    "make_target": "tilewright.targets.registry:make_target",
    "register_tuner": "tilewright.search.registry:register",
    "Tuner": "tilewright.search.explorer:BaseExplorer",
    "Target": "tilewright.targets.base:Target",
    "Space": "tilewright.targets.base:Space",
    "Lowered": "tilewright.targets.base:Lowered",
    "Measurements": "tilewright.targets.base:Measurements",
    "Workload": "tilewright.targets.workload:Workload",
    "Network": "tilewright.networks.network:Network",
    "Summary": "tilewright.tuning.outputs:Summary",
    "BuiltArtifact": "tilewright.tuning.build_artifact:BuiltArtifact",
    "Profile": "tilewright.networks.artifact:Profile",
    "InferenceSession": "tilewright.networks.artifact.session:InferenceSession",
    "Comparison": "tilewright.evaluation.compare.workload_comparison:Comparison",
    "NetworkComparison": "tilewright.evaluation.compare.network_comparison:NetworkComparison",
    "Sweep": "tilewright.evaluation.compare.network_comparison:NetworkComparison",
    "CodesignOutcome": "tilewright.hardware_search.results:CodesignOutcome",
    "TilewrightError": "tilewright.core.errors:TilewrightError",
}

__all__ = [
    "BuiltArtifact",
    "CodesignOutcome",
    "Comparison",
    "InferenceSession",
    "Lowered",
    "Measurements",
    "Network",
    "NetworkComparison",
    "Profile",
    "Space",
    "Summary",
    "Sweep",
    "Target",
    "TilewrightError",
    "Tuner",
    "Workload",
    "__version__",
    "build",
    "codesign",
    "compare",
    "load",
    "load_model",
    "make_target",
    "register_tuner",
    "run",
    "runs",
    "sweep",
    "trials",
    "tune",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("tilewright")
    if name not in _MODULES:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    module, _, attribute = _MODULES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
