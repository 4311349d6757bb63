"""Splits a dataset, trains a model on a part of it or continues training one, and judges the model.

A trained model is judged on rows it has not seen. Splits leave no leak between the two parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import UnknownName
from tilewright.core.files import Json, canonical, write_atomically
from tilewright.evaluation.datasets.folder import DatasetMetadata, digest_of, read_about, read_table
from tilewright.evaluation.datasets.metrics import Scores, score
from tilewright.evaluation.datasets.options import TrainingOptions
from tilewright.evaluation.datasets.plan import DatasetError
from tilewright.models.transfer.contract import Training, TransferError
from tilewright.models.transfer.files import identity_of, read_index
from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.registry import kinds, load_model, make_model, refined
from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

METRICS = "metrics.json"
START = "start"
"""A model's fact: `models.transfer.files.identity_of` the one that it fine-tunes."""
BEFORE = "before_fine_tuning"
"""A figure: the pairwise accuracy of that one on the same rows."""
_EARLIER = "earlier_datasets"
_KNOWN = {"hardware": "learned_hardware", "workloads": "learned_workloads"}
"""Facts: short ids of what a model has rows of, separated by spaces."""
_SHORT = 12  # characters of a fingerprint or a workload's id
Say = Callable[[str], None]


def check_training(options: TrainingOptions) -> TrainingOptions:
    """Check options without reading data, and complete them.

    A model to fine-tune determines the kind, and is judged within tasks unless another split is
    given, because its rows are often of one target.

    Raises:
        UnknownName: there is no such kind or split.
        TransferError: an option of the kind is wrong, or there is no model to start from.
    """
    if options.start:
        usual = {"kind": read_index(Path(options.start)).kind, "split": "within_task"}
        given = {name: getattr(options, name) for name in options.model_fields_set}
        options = options.model_copy(update=usual | given)
    if options.split not in KINDS:
        raise UnknownName("split", options.split, list(KINDS))
    if options.kind not in kinds():
        raise UnknownName("kind of model", options.kind, kinds())
    _make_model(options, _start_of(options))
    return options


def _start_of(options: TrainingOptions) -> Transferred | None:
    """Return the model to fine-tune, if there is one. Raises `TransferError`."""
    if not options.start:
        return None
    found = load_model(Path(options.start))
    if found.kind != options.kind:
        raise TransferError(
            f"{options.start} is a model of kind {found.kind}, which cannot become one of kind "
            f"{options.kind}; leave --kind out, or train again without --start"
        )
    if Path(options.start).resolve() == Path(options.out).resolve():
        raise TransferError(
            f"{options.start} would be written over; name another folder with --out"
        )
    return found


def _make_model(options: TrainingOptions, start: Transferred | None) -> Transferred:
    """Return the model to train, which fine-tunes `start`. Raises `UnknownName` and
    `TransferError`."""
    given = {"minutes": options.minutes, "threads": options.threads} | dict(options.options)
    if start is not None:
        return refined(start, options.seed, given)
    return make_model(options.kind, options.seed, given)


@dataclass(frozen=True)
class FittedCostModel:
    """A trained model, how the training went, the rows it is judged on, and the model that was
    fine-tuned."""

    model: Transferred
    training: Training
    test: TrainingTable
    start: Transferred | None = None


def read_dataset(options: TrainingOptions) -> tuple[TrainingTable, str]:
    """The rows of a dataset, and the digest of all of it. Raises `DatasetError`."""
    folder = Path(options.dataset)
    return read_table(folder, rows=options.rows, seed=options.seed), digest_of(folder)


def fit_model(
    options: TrainingOptions, table: TrainingTable, say: Say = lambda text: None
) -> FittedCostModel:
    """Train on the part of a table that the split leaves. Raises `DatasetError` if the table cannot
    be split so, `TransferError` if there is nothing to learn from, and `UnsafeFile`."""
    kind: Kind = next(each for each in KINDS if each == options.split)
    train, test = split(table, kind, options.seed, options.held_out)
    start = _start_of(options)
    model = _make_model(options, start)
    training = model.fit(table.rows(train), say=say, start=start)
    if start is not None:
        model.facts.update(_descent(options, start))
    about = read_about(Path(options.dataset))
    model.facts.update(_knows(about, table.rows(train), start))
    model.save(Path(options.out))  # it took minutes: it is kept, whatever comes
    return FittedCostModel(model, training, table.rows(test), start)


def _descent(options: TrainingOptions, start: Transferred) -> dict[str, str]:
    """Which model another comes from, and the digests of all that was learned from before."""
    before = (str(start.facts.get(name, "")) for name in (_EARLIER, "dataset"))
    return {START: identity_of(Path(options.start)), _EARLIER: " ".join(filter(None, before))}


def _knows(
    about: DatasetMetadata, table: TrainingTable, start: Transferred | None
) -> dict[str, str]:
    """Which hardware and workloads a model has rows of, those it started from among them."""
    found = {}
    for of, ids in _ids(about, table).items():
        before = "" if start is None else str(start.facts.get(_KNOWN[of], ""))
        found[_KNOWN[of]] = " ".join(sorted({*before.split(), *ids}))
    return found


def _ids(about: DatasetMetadata, table: TrainingTable) -> dict[str, set[str]]:
    """Short ids of the hardware and the workloads that a table of this dataset has rows of."""
    hardware = {about.hardware[k].fingerprint[:_SHORT] for k in np.unique(table.hardware)}
    workloads = {
        Workload.from_json(about.workloads[k]).id[:_SHORT] for k in np.unique(table.workload)
    }
    return {"hardware": hardware, "workloads": workloads}


def judge_model(options: TrainingOptions, fitted: FittedCostModel, digest: str) -> dict[str, Json]:
    """What `metrics.json` holds: figures of programs that were compiled, below `visible` those of
    the same before they are, and how the training went. Raises `DatasetError`."""
    trained = fitted.training
    found = figures(fitted.model, fitted.test, fitted.start) | {
        "rows": trained.rows,
        "seconds": round(trained.seconds, 3),
        "kind": options.kind,
        "split": options.split,
        "seed": options.seed,
        "epochs": trained.epochs,
        "stopped": trained.stopped,
        "all_epochs_seconds": round(trained.full_seconds, 1),
        "dataset": digest,
    }
    if fitted.start is not None:
        found[START] = fitted.model.facts[START]
    fitted.model.facts.update(
        {name: value for name, value in found.items() if isinstance(value, int | float | str)}
    )
    return found


def store_model(options: TrainingOptions, fitted: FittedCostModel) -> Path:
    """Write the model's folder, and return it. Raises `OSError`."""
    folder = Path(options.out)
    fitted.model.save(folder)
    return folder


def judge_elsewhere(
    folder: Path, dataset: Path, rows: int | None = None, seed: int = 0
) -> dict[str, Json]:
    """Figures of the model in `folder` on a dataset, all of its rows or some drawn by `seed`.
    Raises `TransferError` and `DatasetError`."""
    model = load_model(folder)
    table = read_table(dataset, rows=rows, seed=seed)
    begun, digest = time.monotonic(), digest_of(dataset)
    found = figures(model, table)
    learned = f"{model.facts.get('dataset', '')} {model.facts.get(_EARLIER, '')}"
    return found | {
        "rows": len(table), "seconds": round(time.monotonic() - begun, 3), "kind": model.kind,
        "dataset": digest, "seen": digest in learned.split(),
        **_seen(model, _ids(read_about(dataset), table)),
    }  # fmt: skip


def _seen(model: Transferred, ids: Mapping[str, set[str]]) -> dict[str, Json]:
    """How many pieces of hardware and workloads are judged on, and of how many the model has
    learned rows; null where it does not say."""
    found: dict[str, Json] = {}
    for of, these in ids.items():
        known = model.facts.get(_KNOWN[of])
        seen = None if known is None else len(these & set(str(known).split()))
        found |= {of: len(these), f"{of}_seen": seen}
    return found


def figures(
    model: Transferred, table: TrainingTable, start: Transferred | None = None
) -> dict[str, Json]:
    """How well a model orders the rows of a table, compiled and before that; beside it how well the
    one does that was fine-tuned. Raises `DatasetError`."""
    seen = visible(table.features)
    after = score(table, model.predict(table.features).log_latency)
    compiled, early = _row(after), _row(score(table, model.predict(seen).log_latency))
    if start is not None:
        for row, features in ((compiled, table.features), (early, seen)):
            row[BEFORE] = score(table, start.predict(features).log_latency).pairwise_accuracy
    return {**compiled, "tasks": after.tasks, "tested": after.rows, "visible": early}


def visible(features: Features) -> Features:
    """The columns that are known before a program is compiled."""
    names = [not name.startswith("program ") for name in features.names]
    kept: NDArray[np.bool_] = np.array(names, dtype=np.bool_)
    columns = tuple(c for c, stays in zip(features.columns, kept, strict=True) if stays)
    return Features(features.matrix[:, kept], columns)


def _row(scores: Scores) -> dict[str, Json]:
    return {
        "pairwise_accuracy": scores.pairwise_accuracy,
        "interval": list(scores.interval),
        "top1_regret": scores.top1_regret,
        "top8_regret": scores.top8_regret,
    }


def log_model(options: TrainingOptions, folder: Path, metrics: Mapping[str, Json]) -> None:
    """Write `metrics.json` beside the model. Raises `OSError`."""
    write_atomically(folder / METRICS, canonical(dict(metrics)) + b"\n")


Kind = Literal["within_task", "by_task", "by_target"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Mask = NDArray[np.bool_]

_BLOCKS = {
    "workload batch": "hardware batch",
    "workload in_channels": "hardware block_in",
    "workload out_channels": "hardware block_out",
}
"""Columns, in log2, that hardware pads to whole blocks, and the columns that say how large these
are."""
_WORK = "workload macs"


def split(table: TrainingTable, kind: Kind, seed: int, held_out: float = 0.2) -> tuple[Mask, Mask]:
    """The rows to train on and the rows to test on, two masks of shape (rows,): no row in both,
    each in one.

    `within_task` holds out that share of every task's rows, at least one of each task with two;
    `by_task` that share of the workloads, whichever hardware they ran on, where workloads that one
    piece of hardware pads to the same shape count as one; `by_target` that share of
    the hardware, whatever ran there: at least one group is held out and one is left. Raises
    `DatasetError` where there are too few groups, and for a share outside (0, 1).
    """
    if not 0.0 < held_out < 1.0:
        raise DatasetError(f"a share of {held_out:g} cannot be held out; give one between 0 and 1")
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "within_task":
        test = _within(table.task, rng, held_out)
    else:
        test = _whole_groups(table, kind, rng, held_out)
    if not test.any() or test.all():
        raise DatasetError(
            f"{len(table)} rows are too few to split {kind}; read more rows of the dataset"
        )
    return ~test, test


def _within(task: NDArray[np.int64], rng: np.random.Generator, held_out: float) -> Mask:
    """By each row's place in its task, shuffled."""
    order = np.lexsort((rng.random(len(task)), task))
    _, first, counts = np.unique(task[order], return_index=True, return_counts=True)
    place = np.arange(len(task)) - np.repeat(first, counts)
    test = np.empty(len(task), np.bool_)
    test[order] = place < np.repeat(_share(counts, held_out), counts)
    return test


def _whole_groups(
    table: TrainingTable, kind: Kind, rng: np.random.Generator, held_out: float
) -> Mask:
    groups, what = (
        (padded_workloads(table), "workload")
        if kind == "by_task"
        else (table.hardware, "piece of hardware")
    )
    known = np.unique(groups)
    if len(known) < 2:
        raise DatasetError(
            f"the rows are of {len(known)} {what}: to hold one out takes two; read more of the "
            "dataset, or split within_task"
        )
    count = int(_share(np.array(len(known)), held_out))
    return np.asarray(np.isin(groups, rng.permutation(known)[:count]), np.bool_)


def padded_workloads(table: TrainingTable) -> NDArray[np.int64]:
    """A number a row, shape (rows,), equal for workloads that are one and the same once the
    hardware with the largest blocks has padded them: what is learned of one is known of both."""
    names = table.features.names
    told = [k for k, name in enumerate(names) if name.startswith("workload ")]
    if not told:
        return table.workload
    shapes = np.nan_to_num(table.features.matrix[:, told], nan=-1.0)
    for k, column in enumerate(told):
        if (block := _BLOCKS.get(names[column])) in names:
            known = table.features.matrix[:, names.index(str(block))]
            # Both are logarithms; a shape is padded to whole blocks.
            largest = np.exp2(np.nanmax(known)) if np.isfinite(known).any() else 1.0
            blocks = np.ceil(np.exp2(shapes[:, k]) / largest - 1e-6)
            shapes[:, k] = np.where(shapes[:, k] < 0, -1.0, blocks)
        elif names[column] == _WORK:
            shapes[:, k] = 0.0  # follows from the others, but for the padding
    return np.asarray(np.unique(shapes, axis=0, return_inverse=True)[1].ravel(), np.int64)


def _share(counts: NDArray[np.int64], held_out: float) -> NDArray[np.int64]:
    """So many of each count, at least one and not all; of one, none."""
    shares = np.minimum(np.maximum(np.rint(counts * held_out), 1), counts - 1)
    return np.asarray(shares, np.int64)
