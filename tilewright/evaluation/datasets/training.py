"""Splits a dataset, trains or fine-tunes a cost model on one part, and evaluates it on the other.

The splits prevent information about the test rows from leaking into the training rows.
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
from tilewright.models.transfer.registry import continue_from, list_kinds, load_model, make_model
from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

METRICS = "metrics.json"
START = "start"
"""Key in a model's facts (its stored metadata): identity of the model that was fine-tuned."""
BEFORE = "before_fine_tuning"
"""Key in the metrics: pairwise accuracy of the model before fine-tuning, on the same rows."""
_EARLIER = "earlier_datasets"
_KNOWN = {"hardware": "learned_hardware", "workloads": "learned_workloads"}
"""Keys in a model's facts. The values are short IDs of the hardware and of the workloads that the
model was trained on, separated by spaces."""
_SHORT = 12  # characters of a short ID of a piece of hardware or a workload
Say = Callable[[str], None]


def check_training(options: TrainingOptions) -> TrainingOptions:
    """Check options of a training without reading the dataset, and complete them.

    If an existing model is fine-tuned, the new model gets the same kind. The default split is then
    `within_task`, because the rows for fine-tuning often come from a single target.

    Args:
        options: options of the training.

    Returns:
        The completed options.

    Raises:
        UnknownName: the kind of model or the split does not exist.
        TransferError: an option of the kind is invalid, or the model to fine-tune cannot be used.
    """
    if options.start:
        usual = {"kind": read_index(Path(options.start)).kind, "split": "within_task"}
        given = {name: getattr(options, name) for name in options.model_fields_set}
        options = options.model_copy(update=usual | given)
    if options.split not in KINDS:
        raise UnknownName("split", options.split, list(KINDS))
    if options.kind not in list_kinds():
        raise UnknownName("kind of model", options.kind, list_kinds())
    _make_model(options, _start_of(options))
    return options


def _start_of(options: TrainingOptions) -> Transferred | None:
    """Load the model that is to be fine-tuned. Return None if the options name none.

    Raises:
        TransferError: the model cannot be read, has another kind than the options, or would be
            overwritten.
    """
    if not options.start:
        return None
    model = load_model(Path(options.start))
    if model.kind != options.kind:
        raise TransferError(
            f"{options.start} is a model of kind {model.kind} and cannot be fine-tuned to "
            f"kind {options.kind}; leave --kind out, or train without --start"
        )
    if Path(options.start).resolve() == Path(options.out).resolve():
        raise TransferError(
            f"{options.start} would be overwritten; choose another folder with --out"
        )
    return model


def _make_model(options: TrainingOptions, start: Transferred | None) -> Transferred:
    """Create the model to train.

    Args:
        options: options of the training.
        start: the model to fine-tune; None to train a new model.

    Raises:
        UnknownName: the kind of model does not exist.
        TransferError: an option of the kind is invalid.
    """
    given = {"minutes": options.minutes, "threads": options.threads} | dict(options.options)
    if start is not None:
        return continue_from(start, options.seed, given)
    return make_model(options.kind, options.seed, given)


@dataclass(frozen=True)
class FittedCostModel:
    """A trained model and the rows that were held out from its training.

    Attributes:
        model: the model.
        training: statistics of the training.
        test: the held-out rows.
        start: the model that was fine-tuned; None for a model that was trained from scratch.
    """

    model: Transferred
    training: Training
    test: TrainingTable
    start: Transferred | None = None


def read_dataset(options: TrainingOptions) -> tuple[TrainingTable, str]:
    """Read the rows of the dataset in `options.dataset`, and the digest of the whole dataset.

    At most `options.rows` rows are returned, drawn at random.

    Args:
        options: options of the training.

    Returns:
        The rows and the digest.

    Raises:
        DatasetError: the dataset is missing, unfinished or damaged, or no rows were selected.
        UnsafeFile: a path is not a regular file.
        OSError: a file cannot be read.
    """
    folder = Path(options.dataset)
    return read_table(folder, rows=options.rows, seed=options.seed), digest_of(folder)


def fit_model(
    options: TrainingOptions, table: TrainingTable, say: Say = lambda text: None
) -> FittedCostModel:
    """Train a model on the training part of a table, and save it in the folder `options.out`.

    Args:
        options: options of the training.
        table: the rows, which this function splits into a training part and a test part.
        say: function that is called with progress messages.

    Returns:
        The model and the test part.

    Raises:
        DatasetError: the table cannot be split, or the metadata of the dataset cannot be read.
        TransferError: there is nothing to learn from, or the model that is to be fine-tuned cannot
            be read, has another kind, or would be overwritten.
        UnsafeFile: a path is not a regular file.
        OSError: a file cannot be read or written.
    """
    kind: Kind = next(kind for kind in KINDS if kind == options.split)
    train, test = split(table, kind, options.seed, options.held_out)
    start = _start_of(options)
    model = _make_model(options, start)
    training = model.fit(table.rows(train), say=say, start=start)
    if start is not None:
        model.facts.update(_descent(options, start))
    about = read_about(Path(options.dataset))
    model.facts.update(_knows(about, table.rows(train), start))
    model.save(Path(options.out))  # before the evaluation, which can fail
    return FittedCostModel(model, training, table.rows(test), start)


def _descent(options: TrainingOptions, start: Transferred) -> dict[str, str]:
    """Return facts about the origin of a fine-tuned model, which are stored in the model's file.

    The facts are the identity of the model that was fine-tuned, and the digests of the datasets on
    which that model and its predecessors were trained.

    Args:
        options: options of the training.
        start: the model that was fine-tuned.
    """
    before = (str(start.facts.get(name, "")) for name in (_EARLIER, "dataset"))
    return {START: identity_of(Path(options.start)), _EARLIER: " ".join(filter(None, before))}


def _knows(
    about: DatasetMetadata, table: TrainingTable, start: Transferred | None
) -> dict[str, str]:
    """Return the IDs of the hardware and workloads that a model was trained on.

    They are stored in the model's file. For a fine-tuned model, the IDs of the original model are
    included.

    Args:
        about: metadata of the dataset.
        table: the training rows.
        start: the model that was fine-tuned; None for a model that was trained from scratch.

    Returns:
        IDs separated by spaces, one text for the hardware and one for the workloads, by the key in
        the model's file.
    """
    result = {}
    for of, ids in _ids(about, table).items():
        before = "" if start is None else str(start.facts.get(_KNOWN[of], ""))
        result[_KNOWN[of]] = " ".join(sorted({*before.split(), *ids}))
    return result


def _ids(about: DatasetMetadata, table: TrainingTable) -> dict[str, set[str]]:
    """Return shortened IDs of the hardware and workloads of a table's rows.

    Args:
        about: metadata of the dataset.
        table: rows of the dataset.

    Returns:
        The IDs under the keys "hardware" and "workloads".
    """
    hardware = {about.hardware[k].fingerprint[:_SHORT] for k in np.unique(table.hardware)}
    workloads = {
        Workload.from_json(about.workloads[k]).id[:_SHORT] for k in np.unique(table.workload)
    }
    return {"hardware": hardware, "workloads": workloads}


def judge_model(options: TrainingOptions, fitted: FittedCostModel, digest: str) -> dict[str, Json]:
    """Evaluate a trained model on its held-out rows.

    Numbers and texts of the results are also stored in `facts`, the information in the model's own
    file.

    Args:
        options: options of the training.
        fitted: the trained model; its `facts` are changed in place.
        digest: digest of the dataset.

    Returns:
        The content of `metrics.json`. The metrics at the top level are of predictions from all
        features. The metrics under `visible` are of predictions without the features of the
        compiled program.

    Raises:
        DatasetError: the rows cannot be evaluated.
    """
    trained = fitted.training
    result = evaluate_model(fitted.model, fitted.test, fitted.start) | {
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
        result[START] = fitted.model.facts[START]
    fitted.model.facts.update(
        {name: value for name, value in result.items() if isinstance(value, int | float | str)}
    )
    return result


def store_model(options: TrainingOptions, fitted: FittedCostModel) -> Path:
    """Write a trained model to its output folder.

    Args:
        options: options of the training.
        fitted: the trained model.

    Returns:
        The folder.

    Raises:
        OSError: a file cannot be written.
    """
    folder = Path(options.out)
    fitted.model.save(folder)
    return folder


def judge_elsewhere(
    folder: Path, dataset: Path, rows: int | None = None, seed: int = 0
) -> dict[str, Json]:
    """Evaluate a stored model on a dataset, for example on a dataset that it was not trained on.

    Args:
        folder: folder of the model.
        dataset: folder of the dataset.
        rows: maximum number of rows, which are drawn at random; None for all.
        seed: seed for drawing rows.

    Returns:
        The metrics, as in `metrics.json`. In addition, `seen` is True if the model was trained on
        this dataset, and further numbers say how many of the dataset's pieces of hardware and
        workloads the model was trained on.

    Raises:
        TransferError: the model cannot be read.
        DatasetError: the dataset cannot be read or evaluated.
    """
    model = load_model(folder)
    table = read_table(dataset, rows=rows, seed=seed)
    begun, digest = time.monotonic(), digest_of(dataset)
    result = evaluate_model(model, table)
    learned = f"{model.facts.get('dataset', '')} {model.facts.get(_EARLIER, '')}"
    return result | {
        "rows": len(table), "seconds": round(time.monotonic() - begun, 3), "kind": model.kind,
        "dataset": digest, "seen": digest in learned.split(),
        **_count_seen(model, _ids(read_about(dataset), table)),
    }  # fmt: skip


def _count_seen(model: Transferred, ids: Mapping[str, set[str]]) -> dict[str, Json]:
    """Count the hardware and workloads in a table, and how many of them the model was trained on.

    Args:
        model: the model.
        ids: IDs of the hardware and workloads in the table, from `_ids`.

    Returns:
        The counts, for example `hardware` and `hardware_seen`. The second count is None if the
        model does not record what it was trained on.
    """
    result: dict[str, Json] = {}
    for of, these in ids.items():
        known = model.facts.get(_KNOWN[of])
        seen = None if known is None else len(these & set(str(known).split()))
        result |= {of: len(these), f"{of}_seen": seen}
    return result


def evaluate_model(
    model: Transferred, table: TrainingTable, start: Transferred | None = None
) -> dict[str, Json]:
    """Evaluate how well a model ranks rows, with and without features of the compiled program.

    Args:
        model: the model.
        table: the rows.
        start: the model before fine-tuning, whose accuracy is added for comparison; None to add
            none.

    Returns:
        The metrics of predictions from all features, and under `visible` the metrics of predictions
        from the features that are known before compilation.

    Raises:
        DatasetError: the rows cannot be evaluated.
    """
    seen = visible(table.features)
    after = score(table, model.predict(table.features).log_latency)
    compiled, early = _row(after), _row(score(table, model.predict(seen).log_latency))
    if start is not None:
        for row, features in ((compiled, table.features), (early, seen)):
            row[BEFORE] = score(table, start.predict(features).log_latency).pairwise_accuracy
    return {**compiled, "tasks": after.tasks, "tested": after.rows, "visible": early}


def visible(features: Features) -> Features:
    """Return features without the columns about the compiled program.

    Those columns (`program …`) are known only after compilation.

    Args:
        features: features of n rows.
    """
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
    """Write the evaluation of a model to `metrics.json` in the folder of the model.

    Args:
        options: options of the training.
        folder: folder of the model.
        metrics: the evaluation.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(folder / METRICS, canonical(dict(metrics)) + b"\n")


Kind = Literal["within_task", "by_task", "by_target"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Mask = NDArray[np.bool_]

_BLOCKS = {
    "workload batch": "hardware batch",
    "workload in_channels": "hardware block_in",
    "workload out_channels": "hardware block_out",
}
"""Sizes of a workload that hardware pads to whole blocks, each with the feature for the size of a
block. Both are features in log2."""
_WORK = "workload macs"


def split(table: TrainingTable, kind: Kind, seed: int, held_out: float = 0.2) -> tuple[Mask, Mask]:
    """Split the rows of a table into a training part and a test part.

    Args:
        table: the rows.
        kind: what is held out. `within_task` holds out some rows of every task that has at least
            two rows. `by_task` holds out workloads with all their rows, on all hardware; workloads
            that the hardware pads to the same shape stay together. `by_target` holds out pieces of
            hardware with all their rows.
        seed: seed of the split.
        held_out: fraction of the rows, workloads or pieces of hardware to hold out. At least one of
            them is held out, and at least one remains for training.

    Returns:
        Masks of the training rows and of the test rows, bool arrays of shape (rows,). Each row is
        in exactly one part.

    Raises:
        DatasetError: there are too few rows or groups, or `held_out` is not between 0 and 1.
    """
    if not 0.0 < held_out < 1.0:
        raise DatasetError(f"the fraction of held-out rows, {held_out:g}, must be between 0 and 1")
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "within_task":
        test = _hold_out_rows(table.task, rng, held_out)
    else:
        test = _whole_groups(table, kind, rng, held_out)
    if not test.any() or test.all():
        raise DatasetError(
            f"{len(table)} rows are too few for the split {kind}; read more rows of the dataset"
        )
    return ~test, test


def _hold_out_rows(task: NDArray[np.int64], rng: np.random.Generator, held_out: float) -> Mask:
    """Draw rows within each task to hold out, and return their mask, shape (rows,).

    Args:
        task: task ID of each row, int array of shape (rows,).
        rng: random generator.
        held_out: fraction of each task's rows to hold out.
    """
    order = np.lexsort((rng.random(len(task)), task))
    _, first, counts = np.unique(task[order], return_index=True, return_counts=True)
    place = np.arange(len(task)) - np.repeat(first, counts)
    test = np.empty(len(task), np.bool_)
    test[order] = place < np.repeat(_share(counts, held_out), counts)
    return test


def _whole_groups(
    table: TrainingTable, kind: Kind, rng: np.random.Generator, held_out: float
) -> Mask:
    """Draw whole groups of rows to hold out, and return the mask of their rows, shape (rows,).

    Args:
        table: the rows.
        kind: type of the groups: `by_task` for workloads, `by_target` for pieces of hardware.
        rng: random generator.
        held_out: fraction of the groups to hold out. At least one is held out and one is left.

    Raises:
        DatasetError: there is only one group.
    """
    groups, what = (
        (padded_workloads(table), "workload")
        if kind == "by_task"
        else (table.hardware, "piece of hardware")
    )
    known = np.unique(groups)
    if len(known) < 2:
        raise DatasetError(
            f"the rows contain only {len(known)} {what}, but one must be held out and one is "
            "needed for training; read more of the dataset, or use the split within_task"
        )
    count = int(_share(np.array(len(known)), held_out))
    return np.asarray(np.isin(groups, rng.permutation(known)[:count]), np.bool_)


def padded_workloads(table: TrainingTable) -> NDArray[np.int64]:
    """Return one group ID per row, int array of shape (rows,).

    Workloads that are identical after padding to the largest hardware block share an ID. A split by
    these IDs cannot leak between such workloads. If the table has no features of workloads, its own
    workload IDs are returned.

    Args:
        table: the rows.
    """
    names = table.features.names
    told = [k for k, name in enumerate(names) if name.startswith("workload ")]
    if not told:
        return table.workload
    shapes = np.nan_to_num(table.features.matrix[:, told], nan=-1.0)
    for k, column in enumerate(told):
        if (block := _BLOCKS.get(names[column])) in names:
            known = table.features.matrix[:, names.index(str(block))]
            # Sizes and blocks are logarithms. Sizes that pad to as many blocks get the same number.
            largest = np.exp2(np.nanmax(known)) if np.isfinite(known).any() else 1.0
            blocks = np.ceil(np.exp2(shapes[:, k]) / largest - 1e-6)
            shapes[:, k] = np.where(shapes[:, k] < 0, -1.0, blocks)
        elif names[column] == _WORK:
            shapes[:, k] = 0.0  # follows from the sizes and would reveal the unpadded ones
    return np.asarray(np.unique(shapes, axis=0, return_inverse=True)[1].ravel(), np.int64)


def _share(counts: NDArray[np.int64], held_out: float) -> NDArray[np.int64]:
    """Return how many items of each group to hold out: at least one, but never all.

    Args:
        counts: number of items per group, int array of any shape. Nothing is held out of a group
            with one item.
        held_out: fraction to hold out.
    """
    shares = np.minimum(np.maximum(np.rint(counts * held_out), 1), counts - 1)
    return np.asarray(shares, np.int64)
