"""Types that a run exchanges with the package `fusion`, which decides what is fused.

This package does not import `fusion`. The module also reads the fusion labels of a tuned folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tilewright.core import formats
from tilewright.core.files import Json, as_list, as_object, as_text, read_json_file
from tilewright.targets.base import Target
from tilewright.tuning.events import Listener
from tilewright.tuning.network import Subgraph
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.schedule_lookup import PickError


class FusionDecision(TypedDict):
    """One optional fusion, and whether it is made.

    Attributes:
        name: name of the fusion.
        kind: kind of the fusion.
        fused: whether it is made.
        cycles_saved: cycles that the fusion saves in the whole network, with all other decisions as
            made; negative if it costs cycles, None if one of the alternatives has no schedule.
        dram_bytes_saved: DRAM bytes saved, in the same way.
        estimated: whether the savings are estimates, because the alternative was not tuned.
    """

    name: str
    kind: str
    fused: bool
    cycles_saved: int | None
    dram_bytes_saved: int | None
    estimated: bool


class FusionSummary(TypedDict):
    """Entry about fusion in `summary.json`.

    Attributes:
        mode: the option `--fusion`.
        decisions: all optional fusions.
        cycles: cycles of the whole network by labelling that was evaluated.
        dram_bytes: DRAM bytes of the whole network by labelling that was evaluated.
        evaluations: number of labelled graphs that were simulated.
        tuned: number of workloads that were tuned in addition.
    """

    mode: str
    decisions: list[FusionDecision]
    cycles: dict[str, int]
    dram_bytes: dict[str, int]
    evaluations: int
    tuned: int


@dataclass(frozen=True)
class Decided:
    """Result of deciding which operators of a network are fused.

    Attributes:
        summary: entry in `summary.json`.
        file: contents of `fusion.json`, which `tilewright build` reads.
    """

    summary: FusionSummary
    file: dict[str, Json]


TuneMore = Callable[[Sequence[Subgraph]], list[TunedWorkload]]
"""Function that tunes further workloads in the same way as those of the network."""


@dataclass(frozen=True)
class ToDecide:
    """Input for deciding on fusion: a run whose workloads are tuned.

    Attributes:
        options: options of the run.
        target: the target.
        network: name of the network.
        tuned: the workloads that are tuned so far.
        more: function that tunes further workloads, which other fusions need.
        emit: receives events.
    """

    options: TuningOptions
    target: Target
    network: str
    tuned: Sequence[TunedWorkload]
    more: TuneMore
    emit: Listener


def labels_of(folder: Path) -> dict[str, bool] | None:
    """Read which optional fusions a tuned folder makes.

    Returns:
        Whether each fusion is made, by its name. None if the folder has no such file.

    Raises:
        PickError: the file is damaged or has an unsupported version.
    """
    path = folder / FUSION
    try:
        result = as_object(read_json_file(path))
        if refusal := formats.FUSION.refusal(path, formats.FUSION.version_in(result)):
            raise PickError(refusal)
        rows = [as_object(label) for label in as_list(result["labels"])]
        labels = {as_text(row["name"]): row["fused"] for row in rows}
        if not all(isinstance(label, bool) for label in labels.values()):
            raise ValueError("the field 'fused' of a label is neither true nor false")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PickError(
            f"cannot read {path}: {error.strerror}; check the file and its permissions"
        ) from None
    except (ValueError, KeyError):
        raise PickError(
            f"{path} does not contain the fusion decisions; tune again with 'tilewright tune "
            "--fusion'"
        ) from None
    return {name: label is True for name, label in labels.items()}
