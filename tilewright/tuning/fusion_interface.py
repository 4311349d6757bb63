"""Defines what a summary says of fusion, and what a run gives to the code that decides it
(`fusion`, which this package does not import). Reads what a tuned folder says is fused.
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
    """One thing that may be fused, and whether it is. What the network saves by it, all else as it
    was decided: negative where it costs. `estimated` where the other way was not tuned: then by the
    schedules that are estimated best for both ways. Null where no schedule runs one of them."""

    name: str
    kind: str
    fused: bool
    cycles_saved: int | None
    dram_bytes_saved: int | None
    estimated: bool


class FusionSummary(TypedDict):
    """What `summary.json` says of fusion. `cycles` and `dram_bytes` are those of whole networks, by
    the names of labellings that were evaluated; `evaluations` counts the labelled graphs that were
    simulated until it was decided, `tuned` the workloads that were tuned for it beside the usual
    ones."""

    mode: str
    decisions: list[FusionDecision]
    cycles: dict[str, int]
    dram_bytes: dict[str, int]
    evaluations: int
    tuned: int


@dataclass(frozen=True)
class Decided:
    """What was decided: what the summary says, and the file that `tilewright build` reads."""

    summary: FusionSummary
    file: dict[str, Json]


TuneMore = Callable[[Sequence[Subgraph]], list[TunedWorkload]]
"""Tunes further workloads as those of the network were."""


@dataclass(frozen=True)
class ToDecide:
    """A run whose workloads are tuned; `more` tunes what else it takes."""

    options: TuningOptions
    target: Target
    network: str
    tuned: Sequence[TunedWorkload]
    more: TuneMore
    emit: Listener


def labels_of(folder: Path) -> dict[str, bool] | None:
    """Whether each thing that may be fused is, by its name, where a tuned folder says so; None
    where it does not. Raises `PickError` for a file of another version, and for one that holds no
    such labels."""
    path = folder / FUSION
    try:
        found = as_object(read_json_file(path))
        if refusal := formats.FUSION.refusal(path, formats.FUSION.version_in(found)):
            raise PickError(refusal)
        rows = [as_object(each) for each in as_list(found["labels"])]
        labels = {as_text(row["name"]): row["fused"] for row in rows}
        if not all(isinstance(label, bool) for label in labels.values()):
            raise ValueError("a label is not true or false")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PickError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError):
        raise PickError(
            f"{path} does not say what is fused; tune again with 'tilewright tune --fusion'"
        ) from None
    return {name: label is True for name, label in labels.items()}
