"""Tests sweeps over networks and tuners: each run is made once, reported and ranked."""

from __future__ import annotations

import inspect
import io
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.trial_tables import tables
from tilewright.cli.app import app
from tilewright.cli.views.comparison import show_networks
from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.leaderboard import network_leaderboards
from tilewright.evaluation.compare.network_comparison import (
    ComparisonError,
    NetworkComparison,
    judge_networks,
)
from tilewright.evaluation.compare.network_plan import plan_networks
from tilewright.evaluation.compare.network_runs import (
    KeptNetworkRuns,
    NetworkRun,
    RunBegan,
)
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import ComparisonBegan
from tilewright.evaluation.compare.record import NETWORK_RECORD, RECORD
from tilewright.evaluation.row_cache import RUNS
from tilewright.flows.comparison import compare_networks
from tilewright.flows.forms import fill_form, flat
from tilewright.networks import zoo
from tilewright.reports.comparison_note import comparison_note, run_rows
from tilewright.reports.leaderboard import verdict
from tilewright.search import LocalRunner
from tilewright.search.events import Event
from tilewright.tuning.output_dir import SUMMARY

ASKED: dict[str, Any] = {
    "networks": ("digits_cnn",), "targets": ("vta-pynq", "huge"), "seeds": "0-1",
    "tuners": ("random", "ml2tuner-published:first=4"), "layers": ("conv2", "fc"),
    "trials": 8, "batch": 4,
}  # fmt: skip


def swept(folder: Path, **others: object) -> tuple[NetworkComparison, list[Event]]:
    heard: list[Event] = []
    options = CompareOptions.parse(**ASKED | {"out": str(folder)} | others)
    return compare_networks(LocalRunner(heard.append), options), heard


def begun(heard: list[Event]) -> list[str]:
    return [event.title for event in heard if isinstance(event, RunBegan)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> NetworkComparison:
    return swept(tmp_path_factory.mktemp("sweep"))[0]


@pytest.mark.slow(seconds=5)
def test_every_run_is_a_whole_run_of_its_own(done: NetworkComparison) -> None:
    folder = done.plan.folder
    assert [(run.target, run.seed, run.tuner) for run in done.runs] == [
        (target, seed, tuner) for target in ("vta-pynq", "huge") for seed in (0, 1)
        for tuner in ("random", "ml2tuner-published:first=4")
    ]  # fmt: skip
    document = json.loads((folder / RECORD).read_text())
    assert document == json.loads(json.dumps(done.to_json()))
    assert list(document) == ["version", "trials", "runs", "leaderboards"]
    assert (folder / NETWORK_RECORD).read_bytes() == (folder / RECORD).read_bytes()
    for row in document["runs"]:
        summary = json.loads((folder / row["place"] / SUMMARY).read_text())
        total = summary["total"]
        assert (summary["seed"], row["trials"]) == (row["seed"], 2 * 8)
        assert row["tuner"].startswith(summary["tuner"])
        assert (row["tuned_cycles"], row["bound_cycles"]) == (
            total["tuned_cycles"], total["bound_cycles"],
        )  # fmt: skip
        for name in ("fallback_cycles", "rule_cycles"):
            assert row[name] == total[name]
        assert row["gain"] == row["rule_cycles"] / row["tuned_cycles"]


@pytest.mark.slow(seconds=3)
def test_a_second_call_repeats_nothing_and_a_further_seed_runs_alone(
    done: NetworkComparison,
) -> None:
    folder = done.plan.folder
    again, heard = swept(folder)
    assert not begun(heard)
    assert ComparisonBegan(8, 8) in heard
    assert again.to_json() == done.to_json()
    more, heard = swept(folder, seeds="0-2", targets=("huge",), tuners=("random",))
    assert begun(heard) == ["digits_cnn on huge, random, seed 2"]
    assert [run for run in more.runs if run.seed < 2] == [
        run for run in done.runs if (run.target, run.tuner) == ("huge", "random")
    ]


@pytest.mark.slow(seconds=5)
def test_what_was_not_kept_or_is_no_longer_there_is_made_again(
    done: NetworkComparison, tmp_path: Path
) -> None:
    options = {"targets": ("huge",), "tuners": ("random",), "seeds": "0-2"}
    first, _ = swept(tmp_path, **options)
    lines = (tmp_path / RUNS).read_bytes().splitlines(keepends=True)
    (tmp_path / RUNS).write_bytes(b"".join(lines[:-1]) + lines[-1][:50])  # cut off by a crash
    (tmp_path / first.runs[0].place / SUMMARY).unlink()
    trials = tables(tmp_path / first.runs[2].place)
    again, heard = swept(tmp_path, **options)
    assert begun(heard) == [f"digits_cnn on huge, random, seed {seed}" for seed in (0, 2)]
    assert tables(tmp_path / first.runs[2].place) == trials  # measured once
    costs = [[run.tuned_cycles for run in item.runs] for item in (first, again)]
    assert costs[0] == costs[1]
    # The folder is continued with more trials, so it no longer holds the shorter run.
    _, heard = swept(tmp_path, **options, trials=12)
    assert len(begun(heard)) == 3
    back, heard = swept(tmp_path, **options)
    assert len(begun(heard)) == 3
    assert [run.tuned_cycles for run in back.runs] == costs[0]
    _, heard = swept(tmp_path, **options, fresh=True)
    assert len(begun(heard)) == 3


@pytest.mark.slow(seconds=4)
def test_a_run_that_vanishes_before_the_end_is_said_and_not_left_out(
    done: NetworkComparison, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(done.plan.folder, tmp_path / "sweep"))
    plan = plan_networks(CompareOptions.parse(**ASKED | {"out": str(folder)}))
    kept = KeptNetworkRuns(plan)
    assert judge_networks(plan, kept).runs == done.runs
    (folder / done.runs[3].place / SUMMARY).unlink()
    with pytest.raises(
        ComparisonError, match=re.escape(f"the results of {done.runs[3].title} were removed")
    ):
        judge_networks(plan, kept)


@pytest.mark.slow(seconds=4)
def test_another_model_under_the_same_path_is_another_run(tmp_path: Path) -> None:
    model, asked = tmp_path / "mine.onnx", ASKED | {"out": str(tmp_path / "out"), "layers": ()}
    network = zoo.build("digits_cnn")
    model.write_bytes(network.SerializeToString())
    options = CompareOptions.parse(**asked | {"networks": (str(model),)})
    before = plan_networks(options).jobs[0]
    assert plan_networks(options).jobs[0] == before
    network.doc_string = "trained again"
    model.write_bytes(network.SerializeToString())
    after = plan_networks(options).jobs[0]
    assert before.key != after.key
    assert before.place != after.place


def test_each_option_that_changes_results_changes_the_key(tmp_path: Path) -> None:
    def key(**others: object) -> str:
        return (
            plan_networks(CompareOptions.parse(**ASKED | {"out": str(tmp_path)} | others))
            .jobs[0]
            .key
        )

    keys = [key()] + [
        key(**other)
        for other in (
            {"trials": 9}, {"batch": 2}, {"epilogue": "plain"}, {"layers": ("fc",)},
            {"space": "template"}, {"stop_gain": 0.1}, {"targets": ("huge",)}, {"seeds": "1"},
            {"tuners": ("random", "grid")[1:]}, {"max_waste": 0.5},
        )
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key(jobs=2, fresh=True) == key(space="extended") == keys[0]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"networks": ("digits_cnn", "")}, "NETWORK contains an empty name"),
        ({"networks": ("digits_cnn", "digits_cnn")}, "NETWORK names digits_cnn twice"),
        ({"targets": ("huge", "vta-pinq")}, "did you mean vta-pynq?"),
        ({"tuners": ("random", "ranndom")}, "did you mean random?"),
        ({"tuners": ("random", "")}, "--tuners contains an empty name"),
        ({"seeds": "3-1"}, "write 1-3"),
        ({"epilogue": ">> 3"}, "for a network, choose 'network'"),
        ({"layers": ("conv9",)}, "did you mean conv"),
        ({"trials": 0}, "--trials 0"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(
    tmp_path: Path, wrong: dict[str, Any], hint: str
) -> None:
    with pytest.raises(TilewrightError) as caught:
        swept(tmp_path / "out", **wrong)
    assert hint in str(caught.value)
    assert not list(tmp_path.rglob(SUMMARY))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--tuners", "default,,random"], "--tuners 'default,,random' contains an empty name"),
        (["--tuners", "default,default"], "--tuners 'default,default' names default twice"),
        (["--targets", "huge,"], "--target 'huge,' contains an empty name"),
        (["--layers", "fc,fc"], "--layers 'fc,fc' names fc twice"),
    ],
)
def test_lists_with_empty_or_equal_names_are_refused(arguments: list[str], hint: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        CliRunner().invoke(app, ["compare", "digits_cnn", *arguments], catch_exceptions=False)
    assert hint in str(caught.value)


def test_the_old_name_of_the_command_still_works_and_says_what_to_write() -> None:
    done = CliRunner().invoke(app, ["sweep", "digits_cnn", "--seeds", "3-1"])
    assert "'tilewright sweep' is deprecated" in done.stderr
    assert "write 1-3" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["digits_cnn", "--live"], "--live only applies to single workloads"),
        (["digits_cnn", "--network", "resnet18"], "--network only applies to single workloads"),
        (["--network", "digits_cnn", "--layers", "fc"], "--layers only applies to whole networks"),
        (["--network", "digits_cnn", "--targets", "huge,vta-pynq"], "on one --target"),
    ],
)
def test_options_of_the_other_kind_of_comparison_are_refused(
    arguments: list[str], hint: str
) -> None:
    with pytest.raises(TilewrightError, match=hint):
        CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False)


def test_defaults_depend_on_what_is_compared() -> None:
    networks, workloads = CompareOptions(networks=("digits_cnn",)), CompareOptions(network="x")
    assert (networks.trials, networks.seeds, networks.out) == (64, "0-4", "swept")
    assert (workloads.trials, workloads.seeds, workloads.out) == (128, "0-9", "compared")
    some = CompareOptions(networks=("x",), targets="vta-pynq,cpu:threads=1,isa=avx2, my.json")
    assert some.targets == ("vta-pynq", "cpu:threads=1,isa=avx2", "my.json")
    assert CompareOptions(network="x", target="replay:a.csv,b.csv.gz").target.endswith("b.csv.gz")
    assert CompareOptions(networks=("a.csv", "b.csv.gz")).replay == ("a.csv", "b.csv.gz")
    form = inspect.signature(flat(CompareOptions)(lambda options: options))
    asked = {name: parameter.default for name, parameter in form.parameters.items()} | {
        "network": "x"
    }
    assert fill_form(CompareOptions, asked) == workloads
    assert fill_form(CompareOptions, asked | {"trials": 64, "seeds": "0-4"}).trials == 64
    assert CompareOptions(network="x", trials=64).command_line("compare") == (
        "tilewright compare --network x --trials 64"
    )


# -- winners -----------------------------------------------------------------------------------

ONE = NetworkRun(
    network="net", target="vta", tuner="good", seed=0, trials=8, invalid_trials=0,
    fallback_cycles=9000, fallback_seconds=9e-5, rule_cycles=1000, rule_seconds=1e-5,
    tuned_cycles=500, tuned_seconds=5e-6, gain=2.0, bound_cycles=400, bound_seconds=4e-6,
    wall_seconds=1.0, place="net/vta/good/seed-0", run_key="",
)  # fmt: skip


def of(tuner: str, seed: int, cycles: int | None, **others: Any) -> NetworkRun:
    seconds = None if cycles is None else cycles * 1e-8
    gain = None if cycles is None else 1000 / cycles
    return replace(
        ONE, tuner=tuner, seed=seed, tuned_cycles=cycles, tuned_seconds=seconds, gain=gain, **others
    )


def test_the_least_median_wins_and_seeds_are_counted() -> None:
    runs = [
        of("good", 0, 500), of("poor", 0, 400), of("good", 1, 400), of("poor", 1, 800),
        of("good", 2, 400), of("poor", 2, 500),
    ]  # fmt: skip
    (result,) = network_leaderboards(runs)
    first, second = result.tuners
    assert (first.tuner, first.tuned_cycles, first.gain) == ("good", 400, 2.5)
    assert (first.fastest_on, second.fastest_on, first.seeds) == (2, 1, 3)
    assert (second.tuner, second.tuned_cycles, second.gain) == ("poor", 500, 2.0)
    assert result.winners == ("good",)
    assert (
        verdict(result)
        == "net on vta: good wins, median gain 2.50× over the rule, fastest on 2 of 3 seeds"
    )


def test_equal_tuners_share_the_first_place_and_none_wins_without_a_valid_schedule() -> None:
    (even,) = network_leaderboards([of("a", 0, 500), of("b", 0, 500)])
    assert even.winners == ("a", "b")
    assert [tuner.fastest_on for tuner in even.tuners] == [1, 1]
    assert verdict(even) == "net on vta: a and b are equal, median gain 2.00× over the rule"
    (nothing,) = network_leaderboards([of("a", 0, None), of("b", 0, None)])
    assert nothing.winners == ()
    assert [tuner.fastest_on for tuner in nothing.tuners] == [0, 0]
    assert "no tuner found a valid schedule" in verdict(nothing)
    (half,) = network_leaderboards(
        [of("a", 0, None), of("a", 1, 300), of("b", 0, 900), of("b", 1, 900)]
    )
    assert half.winners == ("b",)  # tuner a found nothing with one seed
    assert half.tuners[1].gain is None


def test_networks_and_targets_are_judged_apart() -> None:
    leaderboards = network_leaderboards([of("a", 0, 500), of("a", 0, 300, target="cpu")])
    assert [(item.target, item.baseline) for item in leaderboards] == [
        ("vta", "rule"), ("cpu", "rule"),
    ]  # fmt: skip
    assert verdict(leaderboards[1]).endswith("median gain 3.33× over the rule")


# -- printed reports ---------------------------------------------------------------------------


def test_a_run_has_the_promised_columns() -> None:
    (row,) = run_rows([ONE])
    assert list(row) == [
        "network", "target", "tuner", "seed", "trials", "fallback cycles",
        "fallback ms", "rule cycles", "rule ms",
        "tuned cycles", "tuned ms", "gain", "bound cycles", "bound ms", "above bound",
    ]  # fmt: skip
    assert (row["gain"], row["tuned cycles"], row["above bound"]) == ("2.00×", "500", "25\xa0%")
    (row,) = run_rows([replace(ONE, bound_cycles=None, bound_seconds=None)])
    assert (row["gain"], row["rule cycles"]) == ("2.00×", "1,000")
    assert "bound cycles" not in row


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_whatever_the_width(done: NetworkComparison, width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    show_networks(done, done.plan.folder, {}, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    tables = text[: text.index("digits_cnn on vta-pynq: ")].splitlines()
    assert max(map(len, tables)) <= width
    assert "…" not in text
    for run in done.runs:
        assert any(row["tuned ms"] in line for row in run_rows([run]) for line in tables)
    assert ("rule" in tables[0]) == (width == 200)


def test_the_note_repeats_the_command_and_holds_the_results(done: NetworkComparison) -> None:
    options = done.plan.options.model_copy(update={"out": "swept"})
    note = comparison_note(options, 8, {"Prefect": "http://p"}, done.leaderboards, done.runs)
    assert (
        "tilewright compare digits_cnn --tuners random,ml2tuner-published:first=4 "
        "--seeds 0-1 --target vta-pynq,huge --trials 8 --batch 4 --layers conv2,fc\n"
    ) in note
    assert "| digits\\_cnn" in note or "| digits_cnn" in note
    assert "8 runs, 8 trials per workload" in note
    assert asdict(done.runs[0])["place"] == "digits_cnn/vta-pynq/random/seed-0"
