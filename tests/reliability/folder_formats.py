"""Fuzzing inputs for output directories: schedules, fusion labels, co-design results, datasets."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

from tests.reliability.format_types import Draw, Format, Read, named, of_name
from tests.reliability.mutants import json_mutant, mutant

TUNING = "tilewright.tuning"


def _schedules(name: str) -> object:
    """Return the fuzzing of `schedules.json` or `fusion.json`, as `build` and `export` read it."""

    def make(folder: Path) -> tuple[Draw, Read]:
        from tests.board.graphs import small_cnn
        from tests.networks.small_artifacts import in_integers
        from tilewright.flows.build import choose_schedules
        from tilewright.networks.artifact import canonical_workloads
        from tilewright.networks.artifact.build import layer_graph
        from tilewright.search.events import ignore
        from tilewright.targets import make_target
        from tilewright.targets.capabilities import Builds, capability, specification_of
        from tilewright.targets.workload import parse_workload
        from tilewright.tuning.build_artifact import _labelled
        from tilewright.tuning.build_options import BuildOptions
        from tilewright.tuning.fusion_interface import labels_of
        from tilewright.tuning.schedule_lookup import pool_rule

        example, target = small_cnn(), make_target("vta-pynq")
        graph, picks = in_integers(example), example.random_picks(3)
        rows = [
            {"id": w.id, "names": ["a"], "workload": str(w), "epilogue": w.epilogue_text,
             "space": pick.space, "config": list(pick.config), "knobs": {"a": 1}}
            for w, pick in zip(canonical_workloads(graph), picks, strict=True)
        ]  # fmt: skip
        spec = {
            "name": "vta-pynq",
            "kind": "vta",
            "fingerprint": "",
            "spec": specification_of(target),
        }
        whole = {"version": 1, "network": "small", "target": spec, "schedules": rows}
        if name == "fusion.json":
            whole["labels"] = [{"name": "conv2 pool", "fused": False}]
        builds = capability(target, Builds)
        assert builds is not None
        conv, pool = (
            parse_workload("conv2d:c=16,h=12,w=12,o=32,k=3,p=1", "bias, >> 7, min 127, max 0"),
            parse_workload("max_pool:c=32,h=12,w=12,k=2,s=2"),
        )
        options = BuildOptions(model="digits_cnn", out=folder / "art", schedules=folder / "tuned")
        (folder / "tuned").mkdir()

        def read_it(data: bytes) -> object:
            (folder / "tuned" / name).write_bytes(data)
            if name == "schedules.json":
                pool_rule(folder / "tuned", target)(conv, pool)
            elif labels := labels_of(folder / "tuned"):
                _labelled(graph, labels, folder / "tuned" / name)
            schedules = choose_schedules(options, target, graph, ignore)
            return builds.build(layer_graph(graph), schedules)

        return lambda rng: json_mutant(whole, rng), read_it

    return make


def _results(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of the files of a finished run that other commands read."""
    from tests.tune_bare import tune_bare
    from tilewright.evaluation.diff import read_side
    from tilewright.tuning.export import export_schedules

    out, again = folder / "out", folder / "again"
    tune_bare(workload="conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1", tuner="random", trials=4,
              batch=4, space="template", out=str(out))  # fmt: skip
    whole = {name: (out / name).read_bytes() for name in ("summary.json", "schedules.json")}
    documents = {name: json.loads(data) for name, data in whole.items()}
    again.mkdir()

    def draw(rng: random.Random) -> bytes:
        name = rng.choice(sorted(documents))
        return named(name, json_mutant(documents[name], rng))

    def read_it(data: bytes) -> object:
        for other, before in whole.items():
            (again / other).write_bytes(before)
        name, text = of_name(data)
        (again / name).write_bytes(text)
        return read_side(again), export_schedules(again, "autotvm", 1.0)

    return draw, read_it


def _identities(folder: Path) -> tuple[Draw, Read]:
    from tilewright.tuning.output_dir import identity, identity_file

    document = {"id": "0" * 32, "place": str(folder / "elsewhere")}
    (folder / "elsewhere").mkdir()

    def read_it(data: bytes) -> object:
        identity_file(folder).write_bytes(data)
        return identity(folder)

    return lambda rng: json_mutant(document, rng), read_it


def _codesigns(folder: Path) -> tuple[Draw, Read]:
    from tilewright.hardware_search.options import CodesignOptions
    from tilewright.hardware_search.output_folder import begin_folder, check_own_run, forget_specs

    options = CodesignOptions.parse(
        networks=("digits_cnn",), budget=1.0, trials=4, out=str(folder / "o")
    )
    begin_folder(options)
    run = json.loads((folder / "o" / "run.json").read_bytes())
    front = [{"name": "machine-1", "area": 1.0}, {"name": "../../x", "area": 2.0}]

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return named("front.json", json_mutant(front, rng))
        return named("run.json", json_mutant(run, rng))

    def read_it(data: bytes) -> object:
        (folder / "o" / "run.json").write_text(json.dumps(run))
        name, text = of_name(data)
        (folder / "o" / name).write_bytes(text)
        forget_specs(folder / "o")
        check_own_run(options)
        return begin_folder(options)

    return draw, read_it


def _datasets(folder: Path) -> tuple[Draw, Read]:
    from tests.evaluation.datasets.plans import OPTIONS, Steps, build
    from tilewright.core.files import digest
    from tilewright.evaluation.datasets.build import finished_files, kept_part, kept_plan, kept_rows
    from tilewright.evaluation.datasets.folder import digest_of, read_table

    good, out = folder / "good", folder / "out"
    build(good, OPTIONS, Steps())
    about = json.loads((good / "dataset.json").read_bytes())
    plan = json.loads((good / "plan.json").read_bytes())
    first = about["files"][0]
    rows = (good / first["path"]).read_bytes()

    def draw(rng: random.Random) -> bytes:
        action = rng.random()
        if action < 0.4:
            return named("dataset.json", json_mutant(about, rng))
        if action < 0.6:
            return named("plan.json", json_mutant(plan, rng))
        return named("rows", mutant(rows, rng))

    def read_it(data: bytes) -> object:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(good, out)
        name, content = of_name(data)
        if name == "rows":
            (out / first["path"]).write_bytes(content)
            said = first | {"bytes": len(content), "sha256": digest(content)}
            (out / "dataset.json").write_text(
                json.dumps(about | {"files": [said, *about["files"][1:]]})
            )
        else:
            (out / name).write_bytes(content)
        with suppress(ValueError):
            kept_rows(out)
        held, finished = kept_plan(out, OPTIONS), finished_files(out)
        if held is not None:
            [kept_part(out, held, part, finished) for part in held.parts]
        return digest_of(out), read_table(out, rows=50)

    return draw, read_it


_DATA = "tilewright.evaluation.datasets"
_HARDWARE = "tilewright.hardware_search.output_folder"
FORMATS = {
    "schedules.json": Format(_schedules("schedules.json"), (f"{TUNING}.schedule_lookup:_read",)),  # type: ignore[arg-type]
    "fusion.json": Format(
        _schedules("fusion.json"),  # type: ignore[arg-type]
        (f"{TUNING}.fusion_interface:labels_of", f"{TUNING}.schedule_lookup:_read"),
    ),
    "results": Format(_results, (f"{TUNING}.read_run:read_written",)),
    "identities": Format(_identities, (f"{TUNING}.output_dir:_identity",)),
    "co-design runs": Format(_codesigns, (f"{_HARDWARE}:_read_run_file", f"{_HARDWARE}:_machines")),
    "datasets": Format(
        _datasets,
        tuple(f"{_DATA}.{name}" for name in (
            "build:kept_part", "build:kept_plan", "build:kept_rows", "folder:_reader",
            "folder:read_about",
        )),
        share=0.5,
    ),
}  # fmt: skip
