"""Checks that reports, batches and plots of timed programs agree with each other."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.cycle_streams import Streams
from tilewright.core.errors import TilewrightError
from tilewright.reports.timeline import (
    KIND_COLOURS,
    STALL_COLOURS,
    STALL_LABELS,
    draw_timeline,
    write_plot,
)
from tilewright.targets.vta.cycle_breakdown import instruction_kinds, stalls
from tilewright.targets.vta.instruction_format import MODULE_NAMES, QUEUE_NAMES
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import CycleError, CycleReport, simulate_batch, simulate_program

PYNQ = VtaSpec.load("vta-pynq")


def programs(count: int) -> list[NDArray[np.uint64]]:
    """Return random streams, some of which never finish."""
    streams = Streams(random.Random(7), PYNQ)
    return [streams.stream(60) for _ in range(count)]


def reports() -> list[CycleReport]:
    reports = []
    for insns in programs(30):
        try:
            reports.append(simulate_program(insns, PYNQ))
        except CycleError:
            continue
    assert len(reports) > 15
    return reports


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_equals_its_programs_one_by_one(threads: int) -> None:
    insns = programs(200)
    offsets = np.cumsum([0, *map(len, insns)])
    addresses = np.arange(200) * 8
    batch = simulate_batch(np.concatenate(insns), offsets, PYNQ, addresses, True, threads)
    assert batch.breakdown is not None
    for p, program in enumerate(insns):
        try:
            report = simulate_program(program, PYNQ, int(addresses[p]))
        except CycleError:
            assert batch.cycles[p] < 0
            continue
        assert batch.cycles[p] == report.total
        np.testing.assert_array_equal(batch.breakdown[p], report.breakdown)
        assert batch.read_beats[p] == report.read_beats
        assert batch.read_bursts[p] == report.read_bursts
        assert batch.write_beats[p] == report.write_beats
        assert batch.write_bursts[p] == report.write_bursts
    assert (batch.cycles < 0).any()


def test_an_empty_batch_has_no_rows() -> None:
    batch = simulate_batch(np.zeros((0, 2), np.uint64), np.zeros(1, np.int64), PYNQ)
    assert batch.cycles.shape == (0,)


def test_times_of_a_report_are_in_order() -> None:
    for report in reports():
        ran = report.starts >= 0
        assert (report.visible[ran] < report.starts[ran]).all()
        assert (report.starts[ran] < report.ends[ran]).all()
        for module in range(3):
            mine = ran & (report.modules == module)
            assert (report.starts[mine][1:] > report.ends[mine][:-1]).all()


def test_the_cycles_of_a_unit_sum_up_and_busy_ones_are_its_instructions() -> None:
    for report in reports():
        for module, unit in enumerate(MODULE_NAMES):
            spent = report.spent(unit)
            assert sum(spent.values()) == report.total
            mine = (report.modules == module) & (report.starts >= 0)
            ends = np.minimum(report.ends[mine], report.total)
            starts = np.minimum(report.starts[mine], report.total)
            assert report.busy(unit) == (ends - starts).sum()


def test_drawn_stalls_are_the_waits_of_the_breakdown() -> None:
    checked = 0
    for report in reports():
        if (report.starts > report.total).any():
            continue  # instructions behind FINISH are drawn but not accounted
        result = stalls(report)
        for unit in MODULE_NAMES:
            spent = report.spent(unit)
            for reason in ("instruction", *QUEUE_NAMES):
                spans = result.get((unit, reason))
                drawn = 0 if spans is None else int((spans.ends - spans.begins).sum())
                if unit != "compute":  # if compute waits for two tokens, only one is named
                    assert drawn == spent.get(reason, 0)
                checked += drawn
    assert checked > 0


def test_every_instruction_has_a_colour() -> None:
    seen = {kind for report in reports() for kind in instruction_kinds(report).tolist()}
    assert seen <= set(KIND_COLOURS)
    assert {"LOAD INP", "GEMM", "STORE", "no-op", "FINISH"} <= seen


def test_a_timeline_is_drawn_to_every_format(tmp_path: Path) -> None:
    report = reports()[0]
    write_plot(tmp_path / "t.png", report, "a & b", 100.0)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    write_plot(tmp_path / "t.html", report, "a & </script>", 100.0)
    page = (tmp_path / "t.html").read_text()
    data = json.loads(re.findall(r"const data = (.*);\n", page)[0])
    assert data["title"] == "a & </script>"
    assert data["total"] == report.total
    assert len(data["rows"]) == (report.ends >= 0).sum()
    assert {row[2] for row in data["rows"]} <= set(data["colours"]) == set(KIND_COLOURS)
    spans = stalls(report)
    drawn = sorted((MODULE_NAMES[unit], reason, b, e) for unit, reason, b, e in data["waits"])
    assert drawn == sorted(
        (*key, int(b), int(e))
        for key, span in spans.items()
        for b, e in zip(span.begins, span.ends, strict=True)
    )
    legend = dict(re.findall(r'background:(#\w+)"></i>([^<]+)</span>', page))
    expected = {
        KIND_COLOURS[kind]: kind for kind in instruction_kinds(report)[report.ends >= 0].tolist()
    }
    expected |= {STALL_COLOURS[reason]: STALL_LABELS[reason] for _, reason in spans}
    assert legend == expected
    assert len(expected) > 4
    assert page.count("</script>") == 1
    with pytest.raises(TilewrightError, match=r"\.png"):
        write_plot(tmp_path / "t.pdf", report, "", 100)


def test_a_window_outside_the_program_is_refused() -> None:
    report = reports()[0]
    assert draw_timeline(report, 0, report.total // 2).axes
    with pytest.raises(TilewrightError, match="window"):
        draw_timeline(report, report.total, report.total + 5)


def test_importing_the_simulator_draws_nothing_in() -> None:
    heavy = "matplotlib", "pandas", "tvm", "prefect", "mlflow", "sklearn"
    code = (
        "import sys, tilewright.targets.vta.timing\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
