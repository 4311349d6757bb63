"""What a model that learned on other hardware saves on accelerators that it has not seen.

    python -m benchmarks.transfer --json built/transfer.json --quick    # one spec, network and seed
    python -m benchmarks.transfer --json built/transfer.json            # hours; goes on with FILE

Builds a dataset and trains models first, unless they lie below `--folder` already or are given. No
shipped preset is in a dataset, so presets are the hardware that is tuned for.

**accuracy**: every kind of model and split by `tilewright model train`'s own figures; how they grow
with rows; pruned beside all rows.

**tuning**: whole networks. What is to be reached is the latency of a tuner that has a board and no
model of it (`board`: no closed-form estimates, no compiles beyond its batches) after 64 trials a
layer. Every other tuner runs until its network is as fast; its trials are counted to the end of the
round, its seconds from before its model is loaded, as the loop of one process in which modules are
loaded. A layer without a valid trial counts as the untuned schedule does. `dealt` gives rounds by
expected gain, else all layers have as many. The rivals of a warm start are `blind` (it may compile
beyond its batches, too) and `default` (it has estimates, too).

**wrong**: layers, with a model that says the opposite and with one that learned shuffled labels,
beside none: trials until the layer is within 1 % of the best that any run found, and as fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.datasets.about import read_about
from evaluation.datasets.build import build
from evaluation.datasets.folder import digest_of, read_table
from evaluation.datasets.plan import BuildOptions
from evaluation.datasets.prune import pruned
from evaluation.datasets.splits import split
from evaluation.datasets.training import figures, fit, judge, keep, parse_training
from models import make_explorer
from models.transfer.kinds import load_model, make_model
from models.transfer.prior import prior_from
from models.transfer.table import Table
from search import Session
from search.gain import best_latency
from search.performers import Setting
from search.problem import Belief, Problem, TransferredPrior
from search.stages import problem_of
from targets.base import Configs
from targets.errors import TilewrightError
from targets.features import Features
from targets.files import write_atomically
from targets.registry import make_target
from targets.workload import Workload
from tuning.dealing import Rules, Standing, next_round
from tuning.network import Subgraph, extract_subgraphs, import_model
from tuning.options import TuningOptions
from tuning.proof import untuned
from tuning.study import study_of

TARGETS = ("vta-de10", "evta-zcu102", "large")
NETWORKS = ("resnet50", "mobilenet_v3", "inception_v3")
KINDS = ("xgboost", "lightgbm", "mlp", "attention")
SPLITS = ("by_target", "by_task", "within_task")
TRIALS = 64
WARM_BATCH = 4
NEAR = (1.01, 1.0)
RESAMPLES = 2000


@dataclass(frozen=True)
class Tuner:
    """A tuner with its options, trials a round, whether it has the model, and how rounds go."""

    name: str
    explorer: str
    options: tuple[tuple[str, float], ...] = ()
    batch: int = 8
    warm: bool = False
    dealt: bool = False


_ALONE = (("alpha", 0.0), ("first_alpha", 0.0))  # no compiles beyond a batch
BOARD = Tuner("board", "default-blind", _ALONE)
TUNERS = (
    BOARD,
    Tuner("board, dealt", "default-blind", _ALONE, dealt=True),
    Tuner("blind", "default-blind"),
    Tuner("blind, dealt", "default-blind", batch=WARM_BATCH, dealt=True),
    Tuner("default", "default"),
    Tuner("default, dealt", "default", batch=WARM_BATCH, dealt=True),
    Tuner("warm", "default-blind", batch=WARM_BATCH, warm=True),
    Tuner("warm, dealt", "default-blind", batch=WARM_BATCH, warm=True, dealt=True),
    Tuner("warm, no compiles", "default-blind", _ALONE, batch=WARM_BATCH, warm=True),
    Tuner("warm default, dealt", "default", batch=WARM_BATCH, warm=True, dealt=True),
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """A network, tuned once; `goal` is the latency at which it ends."""

    target: str
    network: str
    seed: int
    tuner: Tuner
    model: str
    subgraphs: tuple[dict[str, Any], ...]
    goal: float = 0.0

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes two units the same."""
        return self.target, self.network, self.seed, self.tuner.name


def main() -> None:
    """Measure what the file lacks, write it after each figure, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("built/transfer"))
    parser.add_argument("--dataset", type=Path, help="built below --folder if not given")
    parser.add_argument("--model", type=Path, help="trained below --folder if not given")
    parser.add_argument("--rows", type=int, help="of the dataset that is built")
    parser.add_argument("--minutes", type=float, help="a training takes at most")
    parser.add_argument("--parts", default="", help="of accuracy,tuning,wrong")
    parser.add_argument("--targets", default="", help="names, separated by commas")
    parser.add_argument("--networks", default="", help="names, separated by commas")
    parser.add_argument("--tuners", default="", help="names, separated by semicolons")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=2, help="networks that are tuned at a time")
    options = parser.parse_args()
    quick = options.quick
    options.rows = options.rows or (60_000 if quick else 2_000_000)
    options.minutes = options.minutes or (1.5 if quick else 30.0)
    options.seeds = options.seeds or (1 if quick else 10)
    options.dataset = options.dataset or _dataset(options.folder, options.rows)
    parts = options.parts.split(",") if options.parts else ["tuning", "wrong", "accuracy"]
    found = _Found(options.json)
    if set(parts) & {"tuning", "wrong"}:
        options.model = options.model or _model(options)
    if "tuning" in parts:
        _tuning(options, found)
        print(tuning_summary(found.rows["tuning"]), flush=True)
    if "wrong" in parts:
        _wrong(options, found)
        print(wrong_summary(found.rows["wrong"]), flush=True)
    if "accuracy" in parts:
        _accuracy(options, found)
        print(accuracy_summary(found.rows["accuracy"]), flush=True)


class _Found:
    """The rows of each part, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, list[dict[str, Any]]] = {"accuracy": [], "tuning": [], "wrong": []}
        if path.exists():
            self.rows |= json.loads(path.read_text())

    def keep(self, part: str, row: dict[str, Any]) -> None:
        self.rows[part].append(row)
        write_atomically(self.path, (json.dumps(self.rows, indent=1) + "\n").encode())

    def has(self, part: str, **key: object) -> bool:
        return any(
            all(row.get(name) == value for name, value in key.items()) for row in self.rows[part]
        )


# -- what is learned from -------------------------------------------------------------------------


def _dataset(folder: Path, rows: int) -> Path:
    path = folder / f"dataset-{rows}"
    build(path, BuildOptions(rows, 0))  # what is there already is not made again
    return path


def _model(options: argparse.Namespace) -> Path:
    path: Path = options.folder / f"mlp-{digest_of(options.dataset)[:8]}-{options.minutes:g}"
    if not path.exists():
        _train(options.dataset, "mlp", "by_target", options.minutes, path)
    return path


def _train(dataset: Path, kind: str, by: str, minutes: float, out: Path) -> dict[str, Any]:
    """As `tilewright model train`; returns the metrics."""
    training = parse_training(
        dataset=str(dataset), out=str(out), kind=kind, split=by, minutes=minutes
    )
    fitted = fit(training, read_table(dataset))
    metrics = judge(training, fitted, digest_of(dataset))
    keep(training, fitted, metrics)
    return dict(metrics)


def _unseen(dataset: Path, name: str) -> None:
    seen = {each.fingerprint for each in read_about(dataset).hardware}
    if make_target(name).fingerprint in seen:
        raise TilewrightError(f"{name} is in {dataset}: nothing would be shown by tuning for it")


# -- accuracy -------------------------------------------------------------------------------------


def _accuracy(options: argparse.Namespace, found: _Found) -> None:
    """Every kind and split; by_target of fewer rows, and of pruned ones."""
    kinds = ("xgboost", "mlp") if options.quick else KINDS
    whole: Table | None = None
    for kind in kinds:
        for by in SPLITS[:1] if options.quick else SPLITS:
            for share, prune in [(1.0, False), (0.1, False), (0.01, False), (1.0, True)]:
                if by != SPLITS[0] and (share < 1 or prune):
                    continue
                key = {"kind": kind, "split": by, "share": share, "pruned": prune}
                if found.has("accuracy", **key):
                    continue
                whole = read_table(options.dataset) if whole is None else whole
                found.keep("accuracy", key | _judged(whole, kind, by, share, prune, options))


def _judged(
    whole: Table, kind: str, by: Any, share: float, prune: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Figures of a model of a part of the rows, on the same rows whatever the part."""
    train, test = split(whole, by, 0)
    rows = np.flatnonzero(train)
    table = whole.rows(
        np.sort(np.random.default_rng(0).permutation(rows)[: int(share * len(rows))])
    )
    if prune:
        table = table.rows(pruned(table))
    model = make_model(kind, 0, {"minutes": options.minutes})
    trained = model.fit(table)
    return figures(model, whole.rows(test)) | {
        "rows": trained.rows, "seconds": trained.seconds, "epochs": trained.epochs,
        "stopped": trained.stopped, "all_epochs_seconds": trained.full_seconds,
        "dataset": digest_of(options.dataset),
    }  # fmt: skip


def accuracy_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a model."""
    return "\n".join(
        f"{row['kind']:10} {row['split']:12} {row['rows']:>9,} rows"
        f"{' pruned' if row['pruned'] else '       '} {row['seconds']:6.0f} s  "
        f"{row['pairwise_accuracy']:.4f} ({row['interval'][0]:.4f}-{row['interval'][1]:.4f}), "
        f"before compiling {row['visible']['pairwise_accuracy']:.4f}"
        for row in rows
    )


# -- tuning ---------------------------------------------------------------------------------------


def _tuning(options: argparse.Namespace, found: _Found) -> None:
    """The board's runs first: they say where the others end."""
    targets = (
        options.targets.split(",") if options.targets else TARGETS[: 1 if options.quick else 3]
    )
    networks = (
        options.networks.split(",") if options.networks else NETWORKS[: 1 if options.quick else 3]
    )
    names = options.tuners.split(";") if options.tuners else [each.name for each in TUNERS]
    for name in targets:
        _unseen(options.dataset, name)
    first, second = [], []
    for seed in range(options.seeds):
        for target in targets:
            for network in networks:
                layers = _layers(target, network)
                unit = partial(Unit, target, network, seed, model=str(options.model))
                first.append(unit(BOARD, subgraphs=layers))
                second += [
                    unit(each, subgraphs=layers)
                    for each in TUNERS
                    if each.name in names and each is not BOARD
                ]
    known = {_key(row): row for row in found.rows["tuning"]}
    for row in _performed([each for each in first if each.key not in known], options.jobs):
        found.keep("tuning", row)
    known = {_key(row): row for row in found.rows["tuning"]}
    left = [
        replace(each, goal=known[(*each.key[:3], BOARD.name)]["cycles"])
        for each in second
        if each.key not in known
    ]
    for row in _performed(left, options.jobs):
        found.keep("tuning", row)


def _key(row: Mapping[str, Any]) -> tuple[str, str, int, str]:
    return row["target"], row["network"], row["seed"], row["tuner"]


def _layers(target: str, network: str) -> tuple[dict[str, Any], ...]:
    here = make_target(target)
    options = TuningOptions(model=network, target=target)
    found = extract_subgraphs(
        import_model(network, {}), here, options.epilogue_mode, options.max_waste, {}
    )
    return tuple(each.to_json() for each in found.subgraphs)


def _performed(units: Sequence[Unit], jobs: int) -> Iterator[dict[str, Any]]:
    """Each in a process of its own, so that what one loads is not free for the next."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        yield from pool.map(perform, units)


def perform(unit: Unit) -> dict[str, Any]:
    """Tune a network until it is as fast as the goal, or the trials are spent."""
    target = make_target(unit.target)
    layers = [Subgraph.from_json(each) for each in unit.subgraphs]
    begin = time.perf_counter()
    model = load_model(Path(unit.model)) if unit.tuner.warm else None
    asked = (lambda problem: prior_from(model, problem)) if model is not None else None
    sessions = [_session(unit, target, each.workload, asked) for each in layers]
    rules = Rules(TRIALS, unit.tuner.batch, 0.0)
    at: dict[str, float | None] = {}
    compiled = trials = 0
    paused = time.perf_counter()
    # what a network without a valid trial of a layer runs there
    spare = [_untuned(unit, each.workload) for each in layers]
    total = np.inf
    begin += time.perf_counter() - paused
    for place, n in (_dealt if unit.tuner.dealt else _in_turn)(sessions, layers, rules):
        done = sessions[place].advance(n)
        if done is None:
            continue
        compiled += done.lowered
        trials += len(done.configs)
        total = sum(
            each.count * (best_latency(session.history) or other)
            for each, session, other in zip(layers, sessions, spare, strict=True)
        )
        for mean in (1, 2, 4, 8, 16, 32):
            if trials >= mean * len(layers) and str(mean) not in at:
                at[str(mean)] = total if np.isfinite(total) else None
        if total <= unit.goal:
            break
    return {
        **dict(zip(("target", "network", "seed", "tuner"), unit.key, strict=True)),
        "workloads": len(layers), "trials": trials, "cycles": float(total), "goal": unit.goal,
        "seconds": time.perf_counter() - begin, "compiled": compiled, "cycles_at": at,
        "options": asdict(unit.tuner), "model": unit.model if unit.tuner.warm else "",
    }  # fmt: skip


def _untuned(unit: Unit, workload: Workload) -> float:
    study = study_of(TuningOptions(model=unit.network, target=unit.target), workload)
    found = untuned(study)
    known = [found.fallback, None if found.default is None else found.default.latency]
    return min((float(each.cycles) for each in known if each is not None), default=np.inf)


def _session(
    unit: Unit, target: Any, workload: Workload, asked: Callable[[Problem], TransferredPrior] | None
) -> Session:
    problem = problem_of(target, workload, unit.seed)
    if asked is not None:
        problem = replace(problem, transferred=asked(problem))
    explorer = make_explorer(unit.tuner.explorer, dict(unit.tuner.options))
    return Session(Setting(target, explorer, problem))


def _in_turn(
    sessions: Sequence[Session], layers: Sequence[Subgraph], rules: Rules
) -> Iterator[tuple[int, int]]:
    """A round of each layer, then the next of each."""
    for done in range(0, rules.trials, rules.batch):
        for place in range(len(sessions)):
            yield place, min(rules.batch, rules.trials - done)


def _dealt(
    sessions: Sequence[Session], layers: Sequence[Subgraph], rules: Rules
) -> Iterator[tuple[int, int]]:
    """As `tilewright tune --stop-gain 0` deals rounds."""
    exhausted: set[int] = set()
    while True:
        standings = [
            Standing(each.count, each.macs, session.history, place not in exhausted)
            for place, (each, session) in enumerate(zip(layers, sessions, strict=True))
        ]
        found = next_round(standings, rules)
        if found is None:
            return
        before = len(sessions[found[0]].history)
        yield found
        if len(sessions[found[0]].history) == before:
            exhausted.add(found[0])


def tuning_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a tuner: its share of the board's trials and seconds, means over runs with 95 %
    bootstrap intervals over them, and in how many it came there."""
    boards = {_key(row)[:3]: row for row in rows if row["tuner"] == BOARD.name}
    lines = []
    for name in dict.fromkeys(row["tuner"] for row in rows):
        pairs = [(row, boards[_key(row)[:3]]) for row in rows if row["tuner"] == name]
        if name == BOARD.name or not pairs:
            continue
        trials = np.array([row["trials"] / board["trials"] for row, board in pairs])
        seconds = np.array([row["seconds"] / board["seconds"] for row, board in pairs])
        came = sum(row["cycles"] <= board["cycles"] for row, board in pairs)
        lines.append(
            f"{name:22} {_mean(trials)} of the trials, {_mean(seconds)} of the seconds; "
            f"{came} of {len(pairs)} came there"
        )
        for target in dict.fromkeys(row["target"] for row, _ in pairs):
            for network in dict.fromkeys(row["network"] for row, _ in pairs):
                some = np.array(
                    [(row["target"], row["network"]) == (target, network) for row, _ in pairs]
                )
                if some.any():
                    lines.append(
                        f"    {target:12} {network:14} {_mean(trials[some])}, "
                        f"{_mean(seconds[some])} seconds"
                    )
    return "\n".join(lines)


def _mean(values: NDArray[np.float64]) -> str:
    rng = np.random.default_rng(0)
    drawn = rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{values.mean():.1%} ({low:.1%}-{high:.1%})"


# -- wrong models ---------------------------------------------------------------------------------


def _wrong(options: argparse.Namespace, found: _Found) -> None:
    """Layers of the first target, drawn from all networks."""
    target = (options.targets.split(",") if options.targets else TARGETS)[0]
    shuffled = _shuffled(options)
    every = [
        Subgraph.from_json(each).workload for name in NETWORKS for each in _layers(target, name)
    ]
    drawn = np.random.default_rng(0).permutation(len(every))[: 3 if options.quick else 12]
    for place in drawn:
        for seed in range(options.seeds):
            key = {"target": target, "layer": str(every[place]), "seed": seed}
            if not found.has("wrong", **key):
                runs = _wrong_runs(target, every[place], seed, options.model, shuffled)
                found.keep("wrong", key | runs)


def _shuffled(options: argparse.Namespace) -> Path:
    """An XGBoost model that learned from latencies shuffled within their tasks."""
    path: Path = options.folder / f"shuffled-{digest_of(options.dataset)[:8]}"
    if not path.exists():
        table = read_table(options.dataset, rows=100_000)
        rng, latency = np.random.default_rng(0), table.log_latency.copy()
        order = np.lexsort((rng.random(len(table)), ~table.valid, table.task))
        plain = np.lexsort((~table.valid, table.task))
        latency[plain] = table.log_latency[order]
        model = make_model("xgboost", 0, {"minutes": 3.0})
        model.fit(replace(table, log_latency=latency))
        model.save(path)
    return path


def _wrong_runs(
    target: str, workload: Workload, seed: int, right: Path, shuffled: Path
) -> dict[str, Any]:
    """The best latency after each trial, without a model and with wrong ones."""
    here = make_target(target)
    found: dict[str, Any] = {}
    for name in ("none", "opposite", "shuffled"):
        problem = problem_of(here, workload, seed)
        if name != "none":
            ask = prior_from(load_model(shuffled if name == "shuffled" else right), problem)
            problem = replace(problem, transferred=_opposite(ask) if name == "opposite" else ask)
        session = Session(Setting(here, make_explorer("default-blind", {}), problem))
        while len(session.history) < TRIALS and session.advance(8) is not None:
            pass
        latency = np.nan_to_num(session.history.latency, nan=np.inf)
        found[name] = [
            None if np.isinf(best) else float(best) for best in np.minimum.accumulate(latency)
        ]
    return found


def _opposite(ask: TransferredPrior) -> TransferredPrior:
    def said(configs: Configs, hidden: Features | None) -> Belief:
        belief = ask(configs, hidden)
        return replace(belief, log_latency=-belief.log_latency)

    return said


def wrong_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Trials with a wrong model, of how many without, by sums over layers and seeds, until a layer
    is within 1 % of the best that any run found, and until it is as fast; a run that does not come
    there counts all its trials."""
    names = ("none", "opposite", "shuffled")
    best: dict[str, float] = {}
    for row in rows:
        known = [row[name][-1] for name in names if row[name][-1] is not None]
        best[row["layer"]] = min([best.get(row["layer"], np.inf), *known])
    lines = []
    drawn = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    for near in NEAR:
        counts = {
            name: np.array([_reached(row[name], near * best[row["layer"]]) for row in rows])
            for name in names
        }
        for name in names[1:]:
            ratio = counts[name].sum() / counts["none"].sum()
            low, high = np.percentile(
                counts[name][drawn].sum(axis=1) / counts["none"][drawn].sum(axis=1), [2.5, 97.5]
            )
            means = f"{counts[name].mean():.1f} and {counts['none'].mean():.1f} of {TRIALS}"
            lines.append(
                f"{name:10} to within {near - 1:.0%}: {ratio:.2f} x ({low:.2f}-{high:.2f}) the "
                f"trials without a model ({means})"
            )
    return "\n".join(lines)


def _reached(best: Iterable[float | None], goal: float) -> int:
    found = list(best)
    hits = [k for k, each in enumerate(found) if each is not None and each <= goal]
    return hits[0] + 1 if hits else len(found)


if __name__ == "__main__":
    main()
