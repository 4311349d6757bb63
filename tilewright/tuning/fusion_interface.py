"""Types that a tuning run exchanges with the package `fusion`, which decides what is fused.

This package does not import `fusion`. The module also reads the fusion decisions of a tuned folder.
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
    """Decision about one optional fusion of operators.

    Attributes:
        name: name of the fusion.
        kind: type of the fusion, such as `activation` (`networks.fusion.candidates`).
        fused: whether the operators are fused.
        cycles_saved: cycles that the fusion saves in the whole network, given all other decisions.
            Negative if the fusion costs cycles, None if one of the two alternatives has no
            schedule.
        dram_bytes_saved: DRAM bytes that the fusion saves, given all other decisions; None as for
            `cycles_saved`.
        estimated: whether the savings are estimates, because the other alternative was not tuned.
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
        decisions: decisions about all optional fusions.
        cycles: cycles of the whole network for each labelling (set of decisions) that was
            evaluated.
        dram_bytes: DRAM bytes of the whole network for each labelling that was evaluated.
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
"""Function that tunes further workloads with the options of the run, and returns the results."""


@dataclass(frozen=True)
class ToDecide:
    """Input of the decision about fusion: a run whose workloads have been tuned.

    Attributes:
        options: options of the run.
        target: the target.
        network: name of the network.
        tuned: the workloads that have been tuned so far.
        more: function that tunes additional workloads, which other fusions need.
        emit: receives events.
    """

    options: TuningOptions
    target: Target
    network: str
    tuned: Sequence[TunedWorkload]
    more: TuneMore
    emit: Listener


def labels_of(folder: Path) -> dict[str, bool] | None:
    """Read the fusion decisions of a tuned folder.

    Args:
        folder: output directory of the run.

    Returns:
        For each optional fusion, by name, whether it is made. None if the folder has no fusion
        decisions.

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
