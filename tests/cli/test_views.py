"""Tests printed tables: they fit 80 columns, cut off no name, and give cycles and milliseconds."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.noisy import NoisyTarget, registered
from tests.trial_tables import rows
from tests.tune_bare import tune_options
from tilewright import tuning
from tilewright.cli.app import app
from tilewright.cli.views import terminal
from tilewright.cli.views.terminal import Bars, latency_text, show_working
from tilewright.cli.views.tuning_progress import READING, STARTING, LineDisplay, tuned_line
from tilewright.cli.views.tuning_results import show_results
from tilewright.networks import zoo_names
from tilewright.reports.markdown import markdown_table
from tilewright.reports.number_format import count_text, milliseconds
from tilewright.reports.run_pictures import convergence, network_convergence
from tilewright.reports.run_results import outcome_line, results_rows, sure_gain, sure_time
from tilewright.search import registered_tuners
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import layer, shape
from tilewright.targets.registry import target_kinds
from tilewright.targets.workload import parse_workload
from tilewright.tuning.events import Event, StageBegan, WorkloadTuned
from tilewright.tuning.gains import four_figures, totals
from tilewright.tuning.outputs import Summary, trials_of

PIPE = 0


def command(*arguments: str, width: int = 80) -> str:
    """Return the output of a command on a terminal of the given width, or in a pipe if it is 0."""
    terminal = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "LINES": "50"}
    environment = {"COLUMNS": str(width or 40)} | (terminal if width else {})
    done = CliRunner(env=environment).invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def lines_that_fit(text: str, width: int = 80) -> list[str]:
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.replace("[,FILE…]", "")
    return lines


class Ran:
    """A finished run of two layers of ResNet-18, and its events."""

    def __init__(self, out: Path, **others: object) -> None:
        self.out = out
        self.heard: list[Event] = []
        options = tuning.TuningOptions.parse(
            **{
                "model": "resnet18", "layers": ["layer1.0.conv1", "layer4.1.conv2"],
                "tuner": "tps", "trials": 8, "batch": 8, "out": str(out), "epilogue": "plain",
            } | others,
        )  # fmt: skip
        self.summary = tune_options(options, self.heard.append)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("views") / "out")


def shown(summary: Summary, folder: Path, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_results(summary, folder, 0, {}, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("width", [60, 80, 99, 100, 104, 120, 200])
def test_no_figure_of_the_results_is_cut(ran: Ran, width: int) -> None:
    lines = shown(ran.summary, ran.out, width).splitlines()
    table = lines[: next(k for k, line in enumerate(lines) if line.startswith("resnet18 on"))]
    assert max(map(len, table)) <= width
    assert "…" not in "".join(table)
    for row in ran.summary["workloads"]:
        assert any(milliseconds(row["tuned_seconds"]) in line.split() for line in table)
        assert any(line.startswith(row["names"][0]) for line in table)
    assert ("rule" in table[0], "roofline" in table[0]) == (width > 60, width == 200)
    if width >= 100:
        assert any(line.startswith("layer4.0.conv2 +2 · 3×3/1") for line in table)  # in one line


@pytest.mark.parametrize("width", [60, 80, PIPE])
@pytest.mark.parametrize("listed", [("zoo",), ("targets",), ("target", "show", "vta-pynq")])
def test_no_figure_of_a_list_is_cut(listed: tuple[str, ...], width: int) -> None:
    text, whole = command(*listed, width=width), command(*listed, width=PIPE)
    tables = [line for line in text.splitlines() if not line.startswith("'tilewright")]
    lines_that_fit("\n".join(tables), width or 200)
    if listed != ("targets",):  # `targets` drops columns if there is no room
        shown, known = (set(re.findall(r"\d+(?:,\d{3})+", item)) for item in (text, whole))
        assert shown == known
    if width == PIPE:
        assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_pipe_has_all_columns_whatever_the_variable_says(ran: Ran) -> None:
    lines = command("trials", str(ran.out), width=PIPE).splitlines()
    assert any(len(line) > 80 and "tile_h=" in line for line in lines)
    assert "operators" in command("zoo", width=PIPE)


def test_targets_have_a_head_and_the_figures_that_matter() -> None:
    lines = lines_that_fit(command("targets"))
    head, of_gemmini = [line for line in lines if line.startswith("preset")]
    assert of_gemmini.split() == ["preset", "array", "scratchpad", "accumulator", "memory", "clock"]
    assert all(name in head for name in ("block", "uop/inp/wgt/acc KiB", "bus", "clock", "area"))
    (pynq,) = [line for line in lines if line.startswith("vta-pynq ")]
    assert all(part in pynq for part in ("1×16×16", "8/32/256/128", "64 bit", "100 MHz"))
    assert all(f"{name}: {kind.summary}" in lines for name, kind in target_kinds().items())
    assert all(name == kind.name for name, kind in target_kinds().items())


@pytest.mark.parametrize("name", target_kinds()["vta"].presets())
def test_a_target_is_shown_whole_and_as_json(name: str) -> None:
    shown = command("target", "show", name)
    document = json.loads(command("target", "show", name, "--json"))
    assert (document["name"], document["kind"]) == (name, "vta")
    assert max(map(len, shown.splitlines())) <= 80
    for item in document["properties"]:
        assert item["name"] in shown
        assert item["meaning"]


def test_networks_have_figures() -> None:
    lines = lines_that_fit(command("zoo"))
    assert [line.split()[0] for line in lines[2:]] == zoo_names()
    (resnet,) = [line.split() for line in lines if line.startswith("resnet18")]
    assert resnet == ["resnet18", "1×3×224×224", "69", "1,814.1", "11,689,512"]
    assert json.loads(command("zoo", "--json")) == zoo_names()


def test_every_tuner_says_what_it_is_and_no_two_the_same() -> None:
    shown = command("tuners")
    assert max(map(len, shown.splitlines())) <= 80
    summaries = [entry.summary for entry in registered_tuners().values()]
    assert len({summary for summary in summaries if summary}) == len(registered_tuners())
    assert "p+a: use_v=False" in shown
    words = " ".join(shown.split())
    for name, entry in registered_tuners().items():
        assert f"{name} {entry.summary}" in words
        assert all(f"{option}=" in shown for option in entry.options.model_fields)


@pytest.mark.slow(seconds=3)
def test_trials_show_knob_values_best_first_below_the_layers_names(ran: Ran) -> None:
    lines = lines_that_fit(command("trials", str(ran.out)))
    assert any(line.startswith("layer1.0.conv1, layer1.0.conv2") for line in lines)
    assert any(line.endswith("p=1; >> 8, min 127, max 0") for line in lines)
    frame = pd.read_parquet(ran.out / "trials.parquet")
    first = frame[frame["workload"] == frame["workload"].iloc[0]]
    valid = first[first["status"] == "valid"].sort_values("cycles", kind="stable")
    cycles = [f"{value:,}" for value in valid["cycles"]]
    places = [next(k for k, line in enumerate(lines) if text in line) for text in cycles]
    assert places == sorted(places)
    for name, value in json.loads(valid["knobs"].iloc[0]).items():
        assert f"{name}={value}" in " ".join(lines)
    best = lines_that_fit(command("trials", str(ran.out), "--best", "1"))
    assert sum("tile_h=" in line for line in best) == 2
    assert "[" in command("trials", str(ran.out), "--csv")  # configs as indices


@pytest.mark.parametrize("width", [80, 160])
def test_results_show_cycles_and_milliseconds(ran: Ran, width: int) -> None:
    text = shown(ran.summary, ran.out, width)
    table = text.split("resnet18 on")[0].splitlines()
    assert max(map(len, table)) <= width
    assert "…" not in text
    for row in ran.summary["workloads"]:
        (cells,) = [line.split() for line in table if line.startswith(row["names"][0])]
        assert {f"{row['rule_cycles']:,}", f"{row['tuned_cycles']:,}"} <= set(cells)
        times = {milliseconds(row["rule_seconds"]), milliseconds(row["tuned_seconds"])}
        assert times <= set(cells) if width == 160 else milliseconds(row["tuned_seconds"]) in cells
    assert "roofline" not in text
    assert "only part of the network: 2 of its 12 workloads" in text
    figures = four_figures(ran.summary["total"])
    message = " ".join(text.split())
    assert f"tuned {latency_text(figures.tuned)}: " in message
    assert f" as fast as the rule, {latency_text(figures.rule)}; " in message
    assert (
        f" as fast as the stock compiler's fallback, {latency_text(figures.fallback)}; " in message
    )


def test_the_results_say_for_which_workloads_the_rule_is_published(ran: Ran) -> None:
    assert {row["rule_source"] for row in ran.summary["workloads"]} == {"tophub"}
    published = "the rule schedule is the stock compiler's published schedule for"
    assert f"{published} 2 of 2 workloads" in " ".join(shown(ran.summary, ran.out, 80).split())
    tuned = [event.outcome for event in ran.heard if isinstance(event, WorkloadTuned)]
    said = [tuned_line(outcome) for outcome in tuned]
    assert all(": rule " in line and " ms)" in line for line in said)
    mixed = json.loads(json.dumps(ran.summary))
    mixed["workloads"][0]["rule_source"] = "estimate"
    mixed["total"] = totals(mixed["workloads"])
    text = shown(mixed, ran.out, 200)
    row = mixed["workloads"][0]
    assert f"{row['fallback_cycles']:,}" in text
    assert f"{row['fallback_cycles'] / row['tuned_cycles']:.2f}×" in text
    assert f"{published} 1 of 2 workloads" in text
    assert "default" not in text


def test_without_cycles_there_is_time_alone(ran: Ran) -> None:
    summary = json.loads(json.dumps(ran.summary))
    for row in summary["workloads"]:
        row |= {"rule_cycles": None, "tuned_cycles": None, "roofline_cycles": None}
        row |= {"rule_seconds": None, "bound_cycles": None, "fallback_cycles": None}
        row |= {"fallback_seconds": None}
    summary["total"] = totals(summary["workloads"])
    text = shown(summary, ran.out, 80)
    words = text.split()
    assert "cycles" not in text
    assert "ms" in words
    assert "over" not in text.splitlines()[0]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Yield a run of the same two layers on a noisy target without verification."""
    with registered(NoisyTarget(noise=0.02, shared=0.02)) as name:
        yield Ran(tmp_path_factory.mktemp("noisy") / "out", target=name, tuner="random", trials=16)


@pytest.mark.parametrize("width", [80, 140])
def test_where_measuring_does_not_repeat_there_are_intervals(noisy: Ran, width: int) -> None:
    text = shown(noisy.summary, noisy.out, width)
    lines = text.splitlines()
    own = ("validation measurements", "the speedup of the whole network", "every schedule timed")
    said = [line for line in lines if any(part in line for part in own)]
    assert len(said) == 3
    table = text[: text.index("resnet18 on noisy")].splitlines()
    assert max(map(len, [*table, *said])) <= width
    assert "cycles" not in text
    assert "bit for bit" not in text
    assert "every schedule timed again, none verified: the target cannot run data" in text
    assert "102 validation measurements (" in text
    for row in noisy.summary["workloads"]:
        (line,) = [line for line in lines if line.startswith(row["names"][0])]
        assert sure_time(row) in line
        assert (sure_gain(row) in line) == (width > 80)
        low, high = map(float, sure_time(row).split("–"))
        assert low <= float(milliseconds(row["tuned_seconds"])) <= high
    total = noisy.summary["total"]
    assert f"the speedup of the whole network is {sure_gain(total)} with 95 % confidence" in text
    assert sure_time(total) in text


def test_what_is_said_of_a_noisy_run_elsewhere_has_intervals_too(noisy: Ran) -> None:
    row, total = noisy.summary["workloads"][0], noisy.summary["total"]
    tuned = next(event.outcome for event in noisy.heard if isinstance(event, WorkloadTuned))
    assert f"({sure_time(row)})" in tuned_line(tuned)
    line = outcome_line(total)
    assert line.startswith(f"Tuned {milliseconds(total['tuned_seconds'])} ms ({sure_time(total)})")
    assert f"({sure_gain(total)}) as fast as the rule, " in line
    page = markdown_table(results_rows(noisy.summary))
    assert "over rule, 95 %" in page
    assert sure_gain(row) in page
    assert "tuned ms, 95 %" in page


def test_a_run_whose_measurements_repeat_has_no_intervals(ran: Ran) -> None:
    assert "95 %" not in shown(ran.summary, ran.out, 140)
    assert "bit for bit" in shown(ran.summary, ran.out, 140)
    assert "95 %" not in markdown_table(results_rows(ran.summary))
    assert not {"validation", "verified"} & {*ran.summary, *ran.summary["total"]}
    assert all("validation" not in row for row in ran.summary["workloads"])
    assert rows(ran.out, "select * from trial_validations") == []


def test_trials_in_seconds_have_no_empty_cycles(noisy: Ran) -> None:
    lines = lines_that_fit(command("trials", str(noisy.out), "--best", "2"))
    (head, *_) = [line for line in lines if line.startswith("trial ")]
    assert head.split()[:3] == ["trial", "round", "ms"]


def test_pictures_of_a_noisy_run_name_what_they_are_held_against(noisy: Ran) -> None:
    outcomes = [event.outcome for event in noisy.heard if isinstance(event, WorkloadTuned)]
    trials = trials_of(noisy.out, outcomes)
    assert convergence(outcomes[0], trials).startswith(b"\x89PNG")
    assert network_convergence("resnet18", outcomes, trials).startswith(b"\x89PNG")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report progress after 0.05 s instead of the usual delay."""
    monkeypatch.setattr(terminal, "FIRST_WORD", 0.05)
    monkeypatch.setattr(terminal, "QUIET", 0.05)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("bars", [True, False])
def test_any_command_says_what_it_works_on_where_there_is_no_terminal(
    bars: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    message = ""
    with Bars(terminal.Terminal()) if bars else show_working("reading deep.onnx") as shown:
        if isinstance(shown, Bars):
            shown.update(shown.add_task("reading deep.onnx", total=10), completed=3)
        deadline = time.monotonic() + 60
        while message.count("… reading deep.onnx") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            message += capfd.readouterr().err
    assert ("3 of 10, for 0 s so far" in message) == bars
    capfd.readouterr()
    time.sleep(0.2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("hasty")
def test_bars_without_a_task_say_that_work_begins(capfd: pytest.CaptureFixture[str]) -> None:
    message = ""
    with Bars(terminal.Terminal()):
        deadline = time.monotonic() + 60
        while "\n" not in message:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            message += capfd.readouterr().err
    assert message.startswith("… beginning\n")


def test_a_table_without_rows_is_empty() -> None:
    assert terminal.columns_of([]) == {}
    assert terminal.fitted_table({"layer": [], "ms": []}, ("ms",), 80).row_count == 0


@pytest.mark.usefixtures("hasty")
def test_a_run_that_waits_says_so_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    assert isinstance(console.file, io.StringIO)
    with LineDisplay(console) as display:
        display(StageBegan("import_model"))
        deadline = time.monotonic() + 60
        while console.file.getvalue().count("importing the model") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    said = console.file.getvalue()
    assert "… importing the model\n" in said
    assert "for 0 s so far" not in said
    time.sleep(0.2)
    assert console.file.getvalue() == said  # nothing after the end


@pytest.mark.parametrize(("bare", "first"), [(["--bare"], READING), ([], STARTING)])
def test_a_bare_run_starts_no_servers_and_does_not_say_so(
    bare: list[str], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def display(console: Console, trials: int, first: str) -> LineDisplay:
        said.append(first)
        raise KeyboardInterrupt  # before any work

    monkeypatch.setattr("tilewright.cli.views.tuning_progress.make_display", display)
    asked = ["tune", "digits_cnn", "--out", str(tmp_path / "out"), *bare]
    CliRunner().invoke(app, asked)
    assert said == [first]


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1 trial"), (0, "0 trials"), (1234, "1,234 trials")]
)
def test_what_is_counted_once_is_said_in_the_singular(number: int, said: str) -> None:
    assert count_text(number, "trial") == said


@pytest.mark.slow(seconds=2)
def test_a_run_of_one_trial_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("tune", "--workload", "dense:n=1,c=16,o=16", "--trials", "1", "--bare", "--out")
    first = command(*asked, str(out), width=PIPE)
    assert "1 workload\n" in first
    assert "; 1 trial, 0 invalid" in first
    assert "reused 1 of 1 trial; " in command(*asked, str(out), width=PIPE)
    assert "1 trial of 1 workload; the run is complete" in command("trials", str(out))


def test_layers_of_equal_shape_differ_by_their_names_and_post_operations() -> None:
    conv = "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1"
    plain, added, leaky = (
        parse_workload(conv, f"bias, {step}>> 8, min 127, max 0")
        for step in ("", "residual 8, ", "leaky 3, ")
    )
    assert layer(["layer1.0.conv1", "layer1.1.conv1"], plain) == (
        "layer1.0.conv1 +1 · 3×3/1 64→64 @56"
    )
    assert layer(["layer1.0.conv2"], added) == "layer1.0.conv2 · 3×3/1 64→64 @56 residual"
    assert shape(leaky).endswith("@56 leaky")


def test_latencies_read_as_people_write_them() -> None:
    assert latency_text(Latency(0.0732, 7_320_000)) == "7,320,000 cycles (73.2 ms)"
    assert latency_text(Latency(8.5e-4)) == "0.850 ms"
    assert latency_text(None) == ""
    assert [milliseconds(s) for s in (1.371, 0.0999, 4.08e-6, None, float("nan"))] == [
        "1,371", "99.9", "0.00408", "", "",
    ]  # fmt: skip


def test_the_commands_help_is_not_cut() -> None:
    assert "..." not in command("--help").partition("Commands:")[2]
