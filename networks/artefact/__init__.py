"""A network in one folder: built from layers and schedules, loaded without its model, run, checked.

from networks.artefact import build, load

build(graph, schedules, target, Path("art"))       # networks.integer makes the graph
artefact = load(Path("art"))
outputs, profile = artefact.run({"image": array})
"""

from networks.artefact.accuracy import Accuracy, Check, check_of
from networks.artefact.build import build, canonical_workloads, check_possible, in_the_way
from networks.artefact.compiled import CompiledArtefact
from networks.artefact.errors import ArtefactError
from networks.artefact.load import Artefact, load
from networks.artefact.run import LayerTime, Profile

__all__ = [
    "Accuracy",
    "Artefact",
    "ArtefactError",
    "Check",
    "CompiledArtefact",
    "LayerTime",
    "Profile",
    "build",
    "canonical_workloads",
    "check_of",
    "check_possible",
    "in_the_way",
    "load",
]  # fmt: skip
