"""Checks that each built network computes what onnxruntime computes, or is rejected with a reason.

    python -m benchmarks.artifacts.networks_agree --count 300 --seed 0 --json FILE
    python -m benchmarks.artifacts.networks_agree --only 17 --keep DIR  # one network, written down
    python -m benchmarks.artifacts.networks_agree --folder DIR          # your models, with vectors

Each seed gives a small random network in one of eight forms: float32, float16, and six ways in
which onnxruntime quantises. Each network is imported, built without trials, loaded and run, once
for `vta-pynq` and once for a random machine. These results are compared:

- the workloads that `inspect`, `tune` and `build` find;
- the outputs of the build with the outputs of onnxruntime;
- the outputs of the build with the outputs of other fusion choices: those of `tune --fusion` none,
  all and learned, and one that fuses every other pair of operators;
- the result of `verify` with these comparisons.

The error of a float network, relative to the norm of the output, may be twice the error that its
build reports, plus 2 %. The error of a quantised network may be one quantisation step of the
output, 2 % of the norm of the output, or four times the change that onnxruntime shows if 2 % of a
step is added to every quantised value.

In the table, *silent* counts networks with wrong outputs that no command rejected. *of them wrong*
counts rejected networks whose outputs the build itself found to be wrong. The exit status is 1 if a
network is silent, or if a command ends with a traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.artifacts.cases import (
    STOCK,
    Case,
    Result,
    drawn_case,
    folder_cases,
    machines_of,
    run_case,
    write_case,
)
from benchmarks.artifacts.forms import FORMS, NotDrawn


def main() -> None:
    """Check all cases, print a table with one row per form and machine, and print all failures.

    The exit status is 1 if a network is silent or a command ends with a traceback.
    """
    options = _options()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # onnxruntime's quantiser advises at length
    results: list[Result] = []
    missing: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, case in _cases(options, missing):
            for machine in machines_of(number, Path(folder)):
                if options.stock and machine.title != STOCK:
                    continue
                result = Result(case, machine, run_case(case, machine))
                results.append(result)
                _say(result)
                if options.keep is not None and _is_worth_keeping(result):
                    _keep(result, options.keep)
    show(results, missing)
    if options.json is not None:
        options.json.write_text(json.dumps([_row(result) for result in results], indent=1) + "\n")
    sys.exit(1 if any(result.outcome.is_defect for result in results) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="number of networks")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first network")
    parser.add_argument(
        "--only", type=int, metavar="SEED", help="check only the network with this seed"
    )
    parser.add_argument("--form", choices=FORMS, help="check all networks in this form only")
    parser.add_argument(
        "--folder", type=Path, help="check models with test vectors instead of random networks"
    )
    parser.add_argument("--stock", action="store_true", help=f"check only on {STOCK}")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="write the failing models to this folder"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes to this file")
    return parser.parse_args()


def _cases(options: argparse.Namespace, missing: Counter[str]) -> Iterator[tuple[int, Case]]:
    if options.folder is not None:
        yield from enumerate(folder_cases(options.folder))
        return
    first, count = (options.seed, options.count) if options.only is None else (options.only, 1)
    for seed in range(first, first + count):
        try:
            yield seed, drawn_case(seed, options.form)
        except NotDrawn as error:
            missing[str(error)[:160]] += 1


def show(results: Sequence[Result], missing: Counter[str]) -> None:
    """Print the table of outcomes, the reasons of rejections, and the failures."""
    console = Console(width=160)
    table = Table(title="networks on machines")
    columns = (
        "drawn", "refused", "of them wrong", "agreed", "disagreed", "tracebacks", "silent",
        "workloads differ",
    )  # fmt: skip
    for column in ("form", "machine", *columns):
        table.add_column(column, justify="left" if column in ("form", "machine") else "right")
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        machine = STOCK if result.machine.title == STOCK else "drawn"
        groups.setdefault((result.case.form, machine), []).append(result)
    for (form, machine), rows in groups.items():
        kinds = Counter(row.outcome.kind for row in rows)
        silent = sum(row.outcome.silent for row in rows)
        differ = sum(any("workloads" in w for w in row.outcome.wrong) for row in rows)
        caught = sum(row.outcome.refused_wrong_numbers for row in rows)
        counted = [kinds[kind] for kind in ("agreed", "disagreed", "traceback")]
        figures = (len(rows), kinds["refused"], caught, *counted, silent, differ)
        table.add_row(form, machine, *map(str, figures))
    console.print(table)
    for title, kind in (("refused", "refused"), ("ended by", "traceback")):
        reasons = Counter(e.outcome.reason for e in results if e.outcome.kind == kind)
        for reason, count in reasons.most_common():
            seeds = [e.case.title for e in results if e.outcome.reason == reason][:6]
            print(f"{title} {count} times: {reason} (such as {', '.join(dict.fromkeys(seeds))})")
    for reason, count in missing.most_common():
        print(f"not drawn {count} times: {reason}")


def _say(result: Result) -> None:
    """Print a line about a result that is not as expected."""
    out = result.outcome
    if out.kind == "agreed" or (
        out.kind == "refused" and not out.wrong and not out.refused_wrong_numbers
    ):
        return
    worst = max((output.relative for output in out.outputs), default=0.0)
    steps = max((output.steps or 0.0 for output in out.outputs), default=0.0)
    numbers = f" off by {worst:.2%}, {steps:.3g} steps" if out.outputs else ""
    stated = [f"{error:.1%}" for error in out.stated if error is not None]
    numbers += f" (stated {', '.join(stated)})" if stated else ""
    message = "; ".join((*([f"{out.stage}: {out.said}"] if out.said else []), *out.wrong))
    silent = "SILENT " if out.silent else ""
    where = f"{result.case.title} {result.case.form} {result.machine.title}"
    print(f"{where}: {silent}{out.kind}{numbers}: {message}"[:600], flush=True)


def _is_worth_keeping(result: Result) -> bool:
    return result.outcome.kind in ("traceback", "disagreed") or result.outcome.refused_wrong_numbers


def _keep(result: Result, folder: Path) -> None:
    """Write the model, an input, the machine and the outcome to a separate folder."""
    name = f"{Path(result.case.title).stem}-{result.case.form}-{result.machine.title}"
    write_case(result.case, folder / name)
    (folder / name / "outcome.json").write_text(json.dumps(_row(result), indent=1) + "\n")
    if result.machine.title != STOCK:
        (folder / name / "machine.json").write_text(Path(result.machine.target).read_text())


def _row(result: Result) -> dict[str, Any]:
    outcome: Any = result.outcome.to_json()
    return {
        "case": result.case.title, "form": result.case.form, "machine": result.machine.title,
        **outcome,
    }  # fmt: skip


if __name__ == "__main__":
    main()
