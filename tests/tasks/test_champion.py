"""Checks that models of every kind are registered and loaded without a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.evaluation.compare.benchmark_suite import enumerated_test_bed, recorded_test_bed
from tilewright.evaluation.compare.job_runner import run_jobs
from tilewright.evaluation.compare.leaderboard import results_of, workload_leaderboard
from tilewright.evaluation.compare.plan import ComparisonPlan, parse_tuner_configs, plan
from tilewright.evaluation.compare.workload_comparison import optimum_of
from tilewright.evaluation.compare.workload_runs import ordered
from tilewright.flows.tuning import tune
from tilewright.search import ExplorerState, problem_of
from tilewright.targets.base import Target
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.slow(seconds=4)

LAYER = "conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1"
TABLE = Path(__file__).parents[1] / "data" / "tvm-vta" / "C10.csv.gz"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import mlflow

    folder, before = tmp_path_factory.mktemp("home"), mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(folder))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        yield folder
        mlflow.set_tracking_uri(before)  # also sets the variable, which the patch restores


@pytest.mark.parametrize(
    ("tuner", "trials"),
    [
        ("default-blind", 32),
        pytest.param(
            "ml2tuner-published:learner=lightgbm:first=8", 40, marks=pytest.mark.nightly(seconds=8)
        ),
    ],
)
def test_a_champion_predicts_as_the_run_that_won(registry: Path, tuner: str, trials: int) -> None:
    from tilewright.tasks import champion_registry, register_champion
    from tilewright.tasks.log_comparison import log_workload_runs

    what = _plan(f"random,{tuner}", trials)
    runs = ordered(what, list(run_jobs(what, what.jobs)))
    results = results_of(runs, {name: best.cost for name, best in optimum_of(what).items()}, trials)
    logged = log_workload_runs(_parent(), what, results, runs)
    rows = sorted(
        workload_leaderboard(results, "vta").tuners, key=lambda row: row.tuner == "random"
    )
    registered = register_champion.register_champion(what, results, rows, logged)
    assert {element.role for element in registered} >= {"P", "V"}

    target, name = what.test_bed.open("C10"), what.tuner_configs[1].tuner
    workload = dict(what.test_bed.workloads)["C10"]
    state = champion_registry.load_champion(target, "template", workload, name)
    assert state is not None
    seed = register_champion._best_seed(results, tuner, "C10")
    job = next(j for j in what.jobs if j.tuner_config.label == tuner and j.seed == seed)
    learned = register_champion._learned_models_of(what, job)
    assert set(state.models) == {element.role for element in registered}
    for role, model in state.models.items():
        assert model.kind == learned[role].model.kind
        asked = learned[role].features
        expected = learned[role].model.predict(asked)
        np.testing.assert_array_equal(model.predict(asked), expected)
    _proposes(what, target, state)

    with pytest.raises(
        champion_registry.ChampionError, match="and 'p' cannot use its models; add --tuner"
    ):
        champion_registry.load_champion(target, "template", workload, "p")
    for item in registered:
        _refuses_changed_files(item.name, lambda: champion_registry.load_champion(
            target, "template", workload, name
        ))  # fmt: skip
    assert champion_registry.load_champion(target, "extended", workload, name) is None


def test_a_champion_that_saw_programs_goes_on_from_what_it_knew(registry: Path) -> None:
    """Model A's draft formula is stored with the champion."""
    from tilewright.tasks.champion_registry import load_champion
    from tilewright.tasks.log_comparison import log_workload_runs
    from tilewright.tasks.register_champion import register_champion

    layer = parse_workload(LAYER)
    test_bed, _ = enumerated_test_bed("vta-pynq", "template", [layer], registry / "spaces")
    what = plan(test_bed, parse_tuner_configs("random,default-blind"), (0,), 24, 8)
    runs = ordered(what, list(run_jobs(what, what.jobs)))
    results = results_of(runs, {name: best.cost for name, best in optimum_of(what).items()}, 24)
    rows = sorted(
        workload_leaderboard(results, "vta").tuners, key=lambda row: row.tuner == "random"
    )
    registered = register_champion(
        what, results, rows, log_workload_runs(_parent(), what, results, runs)
    )
    assert {item.role for item in registered} == {"P", "V", "A", "draft"}
    target = test_bed.open(test_bed.workloads[0][0])
    state = load_champion(target, "template", layer, "default-blind")
    assert state is not None
    explorer = what.tuner_configs[1].explorer
    cold, warm = (
        [done.best_cycles for done in tune(target, layer, explorer, trials=16, state=start)]
        for start in (None, state)
    )
    assert len(warm) == len(cold)
    assert warm[0] is not None
    assert cold[0] is not None
    assert warm[0] <= cold[0]


def test_a_comparison_of_tuners_that_learn_nothing_has_no_champion(registry: Path) -> None:
    from tilewright.tasks.log_comparison import log_workload_runs
    from tilewright.tasks.register_champion import register_champion

    what = _plan("random,grid", 8)
    runs = ordered(what, list(run_jobs(what, what.jobs)))
    results = results_of(runs, {name: best.cost for name, best in optimum_of(what).items()}, 8)
    logged = log_workload_runs(_parent(), what, results, runs)
    assert len(logged) == 4
    rows = workload_leaderboard(results, "vta").tuners
    assert register_champion(what, results, rows, logged) == []


def _parent() -> str:
    from tilewright.tasks import tracking

    return tracking.open_run("a comparison", tracking.run_key({}), params={}, tags={})


def _refuses_changed_files(model: str, load: Callable[[], object]) -> None:
    """Check that a damaged file is detected by its digest and gives one message."""
    from mlflow.artifacts import download_artifacts
    from mlflow.tracking import MlflowClient

    from tilewright.tasks.champion_registry import ALIAS, ChampionError, champion_file

    client = MlflowClient()
    version = client.get_model_version_by_alias(model, ALIAS)
    folder = Path(download_artifacts(f"models:/{model}/{version.version}"))
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    place = logged.artifact_location.removeprefix("file://")
    about, _ = champion_file(folder)
    for file in (Path(place) / about.file, Path(place) / "MLmodel"):
        whole = file.read_bytes()
        said = f"features: {about.features}".encode()
        middle = whole.index(said) + 12 if said in whole else len(whole) // 2
        file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(ChampionError, match=r"damaged .*repeat 'tilewright compare'"):
            load()
        file.write_bytes(whole)
    assert load() is not None


def _plan(tuners: str, trials: int) -> ComparisonPlan:
    return plan(recorded_test_bed([TABLE]), parse_tuner_configs(tuners), (0, 1), trials, 8)


def _proposes(what: ComparisonPlan, target: Target, state: ExplorerState) -> None:
    """Check that a tuner accepts the loaded state as its own."""
    from tilewright.search import History

    workload = dict(what.test_bed.workloads)["C10"]
    problem, explorer = problem_of(target, workload, 9), what.tuner_configs[1].explorer
    history = History.empty(problem.space)
    named = explorer.generate(problem, state, history, 8)
    # The first round of ml2tuner has four trials where compiling is expensive.
    assert len(explorer.veto(problem, state, history, named, 8)) >= 4
