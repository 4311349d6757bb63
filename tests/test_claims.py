"""Checks that numbers in the README and on the page of claims agree with their raw data."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.codesign import energy as codesign_energy
from benchmarks.codesign import single_layers as codesign_layers
from benchmarks.codesign.methods import read_runs, summary
from benchmarks.codesign.truth_store import read_truth
from benchmarks.cpu import headroom as cpu_headroom
from benchmarks.cpu import schedules as cpu_schedules
from benchmarks.gemmini import dataflows as gemmini_dataflows
from benchmarks.gemmini import trials as gemmini_trials
from benchmarks.gemmini import vendor_rule as gemmini_layers
from benchmarks.intervals import Interval
from benchmarks.layers import GEMMINI_JUDGED
from benchmarks.transfer import families as transfer_held_out
from benchmarks.tuners.sample_efficiency import relative_figures
from tests.documents import ROOT

CLAIMS = (ROOT / "docs" / "evidence" / "claims.md").read_text()
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
"""Pattern of a number that is not part of a word such as int8."""
DATED = re.compile(r"\d{4}-\d\d-\d\d|\b0\.2\.0\b")


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, without links, code and names of networks."""
    prose = re.sub(r"\]\([^)]*\)|`[^`]*`|\b[A-Z]\w*-\d+", "", text)
    return set(NUMBER.findall(prose))


def test_the_readme_quotes_no_number_that_the_claims_do_not_have() -> None:
    reached = section((ROOT / "README.md").read_text(), "What it reaches")
    assert len(numbers(reached)) > 5
    assert numbers(reached) <= numbers(CLAIMS)
    assert "docs/evidence/claims.md" in reached


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(CLAIMS, title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize("row", rows("Holds"), ids=lambda row: row[0][:40])
def test_a_claim_has_a_figure_a_control_a_command_and_a_date(row: list[str]) -> None:
    claim, figure, sampled, control, command, measured = row
    assert claim
    assert control
    assert numbers(figure)
    assert re.search(r"\d %? ?\(|no interval|drawn|shapes", f"{figure} {sampled}")
    assert DATED.search(measured)
    if command != "the same":
        words = shlex.split(re.findall(r"`([^`]+)`", command)[0])
        assert words[:2] == ["python", "-m"]
        assert find_spec(words[2]) is not None


@cache
def known(path: str) -> dict[str, dict[str, Interval | str]]:
    return relative_figures(pd.read_parquet(ROOT / "benchmarks" / "rows" / path))


def quoted(path: str, tuner: str, figure: str) -> str:
    value, low, high = known(path)[tuner][figure]
    digits = 1 if figure == "real seconds" else 0
    low_, high_ = (f"{100 * float(item):.{digits}f}" for item in (low, high))
    return f"{100 * float(value):.{digits}f} % ({low_}–{high_})"


@pytest.mark.parametrize(
    ("path", "tuner", "figure"),
    [
        ("tuners-extended.parquet", "default", "trials, plan 16"),
        ("tuners-extended.parquet", "estimate", "trials, plan 16"),
        ("tuners-extended.parquet", "ml2tuner", "trials, plan 16"),
        ("tuners-extended.parquet", "ml2tuner", "trials"),
        ("tuners-extended.parquet", "ml2tuner-published", "trials, plan 16"),
        ("tuners-extended.parquet", "ml2tuner-published", "trials"),
        ("tuners-extended.parquet", "ml2tuner-published", "a trial"),
        ("tuners-extended.parquet", "autotvm:plan=16", "a trial"),
        ("tuners-tables.parquet", "ml2tuner-published", "trials, plan 16"),
        ("gemmini-trials.parquet", "default", "trials, plan 16"),
        ("gemmini-trials.parquet", "ml2tuner", "trials"),
        ("gemmini-trials.parquet", "ml2tuner", "trials, plan 16"),
        ("gemmini-trials.parquet", "estimate", "trials, plan 16"),
        ("gemmini-trials.parquet", "ml2tuner-published", "trials, plan 16"),
        ("gemmini-trials.parquet", "random", "trials, plan 16"),
        ("tuners-tables.parquet", "default", "real seconds"),
        ("tuners-tables.parquet", "estimate", "real seconds"),
    ],
)
def test_a_figure_is_what_its_raw_rows_give(path: str, tuner: str, figure: str) -> None:
    assert quoted(path, tuner, figure) in CLAIMS


@pytest.mark.parametrize(
    ("name", "entries", "where", "against"),
    [
        ("digits", 11, "codesign", "autotvm"),
        ("alexnet", 8, "codesign", "autotvm"),
        ("dcoc", 10, "codesign-methods", "dcoc"),
    ],
)
def test_the_share_of_each_co_design_method_is_what_its_raw_rows_give(
    name: str, entries: int, where: str, against: str
) -> None:
    runs = read_runs(ROOT / "benchmarks" / "rows" / f"codesign-{name}.parquet")
    truth = read_truth(ROOT / "tests" / "data" / "codesign" / "truth")
    page = (ROOT / "docs" / "evidence" / f"{where}.md").read_text()
    lines = summary(runs, truth, against).partition("relative to")[0].splitlines()[1:]
    assert len(lines) == len({run["entry"] for run in runs}) == entries
    for line in lines:
        match = re.search(r"hypervolume ([\d.]+)% \(([\d.]+)%-([\d.]+)%\)", line)
        assert match is not None
        assert "{} % ({}–{})".format(*match.groups()) in page


def test_the_table_of_energy_as_the_objective_is_what_its_rows_give() -> None:
    runs = pd.read_parquet(ROOT / "benchmarks" / "rows" / "codesign-energy.parquet")
    page = (ROOT / "docs" / "evidence" / "codesign.md").read_text()
    assert codesign_energy.table(runs) in page
    ratios = codesign_energy.ratios(runs)
    for figure in codesign_energy.FIGURES:
        each = ratios["digits_cnn", "ours", "energy", figure]
        assert f"{each.value:.3f} ({each.low:.3f}–{each.high:.3f}) times" in CLAIMS


def test_trials_for_gemmini_are_what_their_rows_give() -> None:
    runs = pd.read_parquet(ROOT / "benchmarks" / "rows" / "gemmini-trials.parquet")
    page = (ROOT / "docs" / "evidence" / "gemmini.md").read_text()
    assert set(runs["layer"]) == set(GEMMINI_JUDGED)
    assert gemmini_trials.gains_table(runs) in page
    for tuner, group in runs.groupby("tuner"):
        columns = ("trials", "trials, plan 16")
        ratios = [quoted("gemmini-trials.parquet", str(tuner), column) for column in columns]
        cells = []
        for layer in runs["layer"].unique():
            each = group[group["layer"] == layer]
            few = "" if each["reached"].all() else f", {each['reached'].sum()} of {len(each)} runs"
            cells.append(f"{each['trials'].median():.0f}{few}")
        assert f"| `{tuner}` | {' | '.join([*ratios, *cells])} |" in page


def test_fastest_schedules_in_the_papers_form_are_what_their_rows_give() -> None:
    rows = pd.read_parquet(ROOT / "benchmarks" / "rows" / "codesign-layers-1000.parquet")
    page = (ROOT / "docs" / "evidence" / "codesign.md").read_text()
    table = rows.pivot(index="layer", columns="entry", values="seconds") * 1e3
    for layer, own in table.iterrows():
        cells = [f"{own[name]:.3f}" for name in ("autotvm", "dcoc", "chameleon", "random")]
        assert f"| `{layer}` | {' | '.join(cells)} |" in page
    assert len(table) == 8
    assert (rows["measured"] == 1000).all()
    for line in codesign_layers.summary(rows).splitlines():
        match = re.search(r"([\d.]+) \(([\d.]+)-([\d.]+)\) x AutoTVM", line)
        assert match is not None
        assert line.startswith("autotvm") or "{} ({}–{})".format(*match.groups()) in page


def test_the_table_of_estimates_of_a_cpu_is_what_its_rows_give() -> None:
    rows = pd.read_parquet(ROOT / "benchmarks" / "rows" / "cpu-schedules.parquet")
    table = cpu_schedules.table_of(rows)
    assert table in (ROOT / "docs" / "evidence" / "cpu-estimates.md").read_text()
    assert table.split("|")[-2].strip() in CLAIMS


def test_the_table_of_what_a_cpus_layers_can_gain_is_what_its_rows_give() -> None:
    rows = pd.read_parquet(ROOT / "benchmarks" / "rows" / "cpu-headroom.parquet")
    table = cpu_headroom.table_of(rows)
    assert table in (ROOT / "docs" / "evidence" / "cpu.md").read_text()


def test_the_table_of_families_held_out_is_what_its_rows_give() -> None:
    rows = pd.read_parquet(ROOT / "benchmarks" / "rows" / "transfer-held-out.parquet")
    page = (ROOT / "docs" / "evidence" / "transfer.md").read_text()
    assert transfer_held_out.table_of(rows) in page
    for family, model in (("cpu", "without formula"), ("cpu", "with formula")):
        cells = next(
            line.split(" | ")
            for line in transfer_held_out.table_of(rows).splitlines()
            if line.startswith(f"| {family} | the other families | all |")
        )
        shown = re.findall(r"\.(\d\d)(\d)", cells[3 + transfer_held_out.MODELS.index(model)])
        value, low, high = (f"{whole}.{tenth}" for whole, tenth in shown)
        assert f"{value} % ({low}–{high})" in CLAIMS


def test_the_table_of_gemminis_convolutions_is_what_its_rows_give() -> None:
    rows = json.loads((ROOT / "benchmarks" / "rows" / "gemmini-convolutions.json").read_text())
    *lines, _, _ = gemmini_layers.table(rows).splitlines()
    assert "\n".join(lines) in (ROOT / "docs" / "evidence" / "gemmini.md").read_text()


def test_the_table_of_gemminis_data_flows_is_what_its_rows_give() -> None:
    rows = json.loads((ROOT / "benchmarks" / "rows" / "gemmini-dataflows.json").read_text())
    page = (ROOT / "docs" / "evidence" / "gemmini.md").read_text()
    assert gemmini_dataflows.table(rows) in page


def test_the_table_of_gemminis_products_is_what_its_rows_give() -> None:
    rows = json.loads((ROOT / "benchmarks" / "rows" / "gemmini-products.json").read_text())
    page = (ROOT / "docs" / "evidence" / "gemmini.md").read_text()
    assert len(rows) == 42
    assert all(row["tuned"] <= row["vendor"] for row in rows)
    assert gemmini_layers.table(rows) in page
    shares = [
        gemmini_layers.saved_fraction([r for r in rows if r["latency"] == n]) for n in (20, 60, 100)
    ]
    assert ", ".join(f"{100 * share:.2f} %" for share in shares[:2]) in page
    assert f"and {100 * shares[2]:.2f} %" in page


EVIDENCE = sorted((ROOT / "docs" / "evidence").glob("*.md"))


@pytest.mark.parametrize("page", EVIDENCE, ids=lambda path: path.stem)
def test_a_page_with_a_table_says_how_intervals_were_drawn_or_that_there_are_none(
    page: Path,
) -> None:
    text = page.read_text()
    if re.search(r"^\|[-: |]+\|$", text, re.MULTILINE):
        assert re.search(r"\binterval", text)
