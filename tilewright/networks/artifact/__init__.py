"""Artifacts: build a network into a folder, load the folder without the model, and run it.

An artifact is a folder with everything that an inference needs:

    from tilewright.networks.artifact import build, load

    build(graph, schedules, target, "vta", Path("art"))       # networks.integer makes the graph
    artifact = load(Path("art"))
    outputs, profile = artifact.run({"image": array})
"""

from tilewright.networks.artifact.accuracy import Check, NetworkAccuracy, check_of
from tilewright.networks.artifact.build import (
    build,
    canonical_workloads,
    check_possible,
    in_the_way,
)
from tilewright.networks.artifact.library import CompiledArtifact
from tilewright.networks.artifact.load import AnyArtifact, Artifact, code_of, load
from tilewright.networks.artifact.run import LayerTime, Profile
from tilewright.networks.artifact.sized_library import SizedLibrary
from tilewright.networks.errors import ArtifactError

__all__ = [
    "AnyArtifact", "Artifact", "ArtifactError", "Check", "CompiledArtifact", "LayerTime",
    "NetworkAccuracy", "Profile", "SizedLibrary", "build", "canonical_workloads", "check_of",
    "check_possible", "code_of", "in_the_way", "load",
]  # fmt: skip
