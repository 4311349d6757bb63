"""The commands `tilewright build`, `run`, `verify`, `benchmark` and `cpu`.

They make a folder from a network, and compute its outputs and latency.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import OfferedFields, ReadCode, with_options
from tilewright.cli.signals import run_interruptible
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed
from tilewright.evaluation.engines.options import BenchmarkOptions
from tilewright.tuning.build_options import BuildOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.core.files import Json
    from tilewright.networks.artifact import AnyArtifact, Artifact, CompiledArtifact
    from tilewright.networks.artifact.run import Array
    from tilewright.networks.artifact.sized_library import Fit


Folder = Annotated[Path, typer.Argument(metavar="ART", help="What 'tilewright build' wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run the machine code that ART holds, with your rights. Without this, an artifact "
        "with code is refused unless you built it yourself in this workspace.",
    ),
]
BUILD_OPTIONS = tuple(
    name for name in BuildOptions.model_fields if name not in ("seed", "allow_code")
)
MOST_INPUT_BYTES = 1 << 30
MOST_IMAGES = 100_000


@with_options
def build(
    options: Annotated[BuildOptions, OfferedFields(*BUILD_OPTIONS)],
    as_json: AsJson = False,
    allow_code: ReadCode = False,
) -> None:
    """Build one folder from a network and its schedules.

    It holds programs and weights for a board or, for the target cpu, a library of the float
    network.
    """
    from tilewright.cli.views.artifact import Building, show_built
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.build import build_artifact
    from tilewright.search import LocalRunner

    if options.schedules is not None and "trials" in options.model_fields_set:
        raise TilewrightError("give either --schedules or --trials: both say what is built")
    options = options.model_copy(update={"allow_code": allow_code})
    console = Terminal()
    with Building(Terminal(stderr=True)) as shown:
        made = build_artifact(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if unsigned := made.manifest.get("unsigned"):
        message = f"note: run and verify will ask for --allow-code, because this build {unsigned}"
        typer.echo(as_typed(message), err=True)
    if as_json:
        typer.echo(json.dumps(made.manifest, indent=2, ensure_ascii=False))
    else:
        show_built(made.manifest, options.out, console)
        if made.manifest.get("kind") == "library":
            _show_time_shares(options.out, console)


def _show_time_shares(out: Path, console: Console) -> None:
    from tilewright.cli.views.library import show_time_shares
    from tilewright.networks.artifact import CompiledArtifact, load

    artifact = load(out, allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    show_time_shares(artifact, console)


def run(
    folder: Folder,
    inputs: Annotated[
        Path, typer.Option("--input", metavar="FILE.npz", help="An array by input's name.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE.npz", help="Where the outputs go, by name.")
    ],
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time goes, layer by layer.")
    ] = False,
    as_json: AsJson = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Picture of the units' work: .png or .html."),
    ] = None,
    allow_code: AllowCode = False,
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline", help="Run successive images, the CPU on one while the accelerator has "
            "another: FILE.npz has them along the first axis of each input. Show images/s.",
        ),
    ] = False,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Images that --pipeline runs, those of FILE.npz again and again.  "
            "[default: those of FILE.npz]", min=1, max=MOST_IMAGES,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run one inference, or with --pipeline several.

    An artifact for an accelerator runs on the simulator, bit by bit and cycle by cycle as in
    hardware; a library runs on this machine.
    """
    from tilewright.cli.views.artifact import profile_json, show_profile, show_run
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.core.files import pack_arrays, write_atomically
    from tilewright.networks.artifact import CompiledArtifact, SizedLibrary
    from tilewright.networks.artifact.sized_library import Fit

    if timeline is not None and timeline.suffix not in (".png", ".html"):
        raise TilewrightError(f"--timeline {timeline}: a picture is written as .png or .html")
    if output.suffix != ".npz":
        raise TilewrightError(f"--output {output}: outputs are written as .npz")
    if images is not None and not pipeline:
        raise TilewrightError("--images counts what --pipeline runs; add --pipeline")
    if pipeline and (profile or timeline is not None):
        raise TilewrightError("--profile and --timeline are of one inference; leave out --pipeline")
    artifact = _load_artifact(folder, allow_code)
    arrays = _arrays(inputs)
    if isinstance(artifact, CompiledArtifact | SizedLibrary):
        if pipeline:
            raise TilewrightError(
                f"--pipeline needs an accelerator beside the CPU, and {artifact.name} is a library "
                "for a CPU; leave it out"
            )
        if timeline is not None:
            raise TilewrightError("--timeline draws an accelerator's units; leave it out for a cpu")
        if isinstance(artifact, SizedLibrary):
            fit = artifact.fit(arrays)
        else:
            fit = Fit(artifact, arrays, {})
        _run_library(fit, output, profile=profile, as_json=as_json)
        return
    if pipeline:
        _run_pipeline(artifact, arrays, output, images, as_json=as_json)
        return
    with show_working(f"running {artifact.name}"):
        outputs, spent = run_interruptible(lambda: artifact.run(arrays))
    write_atomically(output, pack_arrays(outputs))
    if timeline is not None:
        from tilewright.reports.timeline import write_joined

        reports = [time.report for time in artifact.times]
        write_joined(timeline, reports, f"{artifact.name} on {artifact.target}",
                     artifact.clock_hz / 1e6)  # fmt: skip
    if as_json:
        typer.echo(json.dumps(profile_json(spent), indent=2, ensure_ascii=False))
    elif profile:
        show_profile(artifact, spent, Terminal())
    else:
        show_run(artifact, spent, output, Terminal())


def _run_pipeline(
    artifact: Artifact, arrays: dict[str, Array], output: Path, count: int | None, *, as_json: bool
) -> None:
    """Run successive images, and show the gain of overlapping them."""
    from tilewright.cli.views.artifact import pipeline_json, show_pipeline
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.core.files import pack_arrays, write_atomically
    from tilewright.networks.artifact.session import join_outputs, split_images

    given = split_images(artifact.inputs, arrays)
    wanted = [given[at % len(given)] for at in range(count or len(given))]
    with show_working(f"running {artifact.name}"):
        planned = run_interruptible(lambda: artifact.plan_images(wanted[0]))
        made = run_interruptible(lambda: artifact.run_images(wanted, planned))
    write_atomically(output, pack_arrays(join_outputs(made)))
    if as_json:
        document = pipeline_json(planned, len(wanted))
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show_pipeline(artifact, planned, len(wanted), output, Terminal())


def _run_library(fit: Fit, output: Path, *, profile: bool, as_json: bool) -> None:
    """Run one inference on this machine, and show its time."""
    from tilewright.cli.views.library import (
        library_profile_json,
        show_library_profile,
        show_library_run,
    )
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.core.files import pack_arrays, write_atomically
    from tilewright.networks.artifact.run import as_arrays

    artifact = fit.library
    with show_working(f"running {artifact.name}"):
        outputs, spent = artifact.run(fit.inputs, layers=profile or as_json)
    write_atomically(output, pack_arrays(as_arrays(fit.crop_outputs(outputs))))
    if as_json:
        typer.echo(json.dumps(library_profile_json(spent), indent=2, ensure_ascii=False))
    elif profile:
        show_library_profile(artifact, spent, Terminal())
    else:
        show_library_run(artifact, spent, output, Terminal())


def verify(folder: Folder, as_json: AsJson = False, allow_code: AllowCode = False) -> None:
    """Compare the outputs of an artifact with those of its source model.

    The whole network is compared on stored samples, and every layer with plain arithmetic on random
    data.
    """
    from tilewright.cli.views.artifact import checks_json, show_accuracy, show_checks
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.networks.artifact import CompiledArtifact, SizedLibrary

    artifact = _load_artifact(folder, allow_code)
    if isinstance(artifact, CompiledArtifact):
        _verify_libraries([({}, artifact)], as_json=as_json)
        return
    if isinstance(artifact, SizedLibrary):
        _verify_libraries(artifact.libraries, as_json=as_json)
        return
    with show_working(f"verifying {artifact.name}"):
        checks, whole = run_interruptible(lambda: (list(artifact.verify()), artifact.accuracy()))
    result = checks_json(artifact, checks, whole)
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        show_checks(artifact, checks, Terminal())
        show_accuracy(artifact, whole, Terminal())
    if not result["right"]:
        raise typer.Exit(1)


def _load_artifact(folder: Path, allow_code: bool) -> AnyArtifact:
    """Load an artifact. With `allow_code`, print which of its code is executed.

    Raises:
        ArtifactError: the artifact cannot be loaded.
    """
    from tilewright.core.user_text import printable
    from tilewright.networks.artifact import code_of, load

    artifact = load(folder, allow_code=allow_code)
    for code in code_of(artifact.manifest) if allow_code else ():
        typer.echo(f"note: runs {as_typed(str(folder))}/{printable(code)}", err=True)
    return artifact


def _verify_libraries(
    libraries: Sequence[tuple[dict[str, int], CompiledArtifact]], *, as_json: bool
) -> None:
    """Check the layers of each library, and show or print the errors.

    Each library comes with the sizes that it was built for; they are empty if it is the only one.
    """
    from tilewright.cli.views.library import errors_json, show_errors
    from tilewright.cli.views.terminal import Terminal, print_line, show_working

    console = Terminal()
    documents: list[dict[str, Json]] = []
    for sizes, artifact in libraries:
        with show_working(f"verifying {artifact.name}"):
            errors, whole = list(artifact.verify()), artifact.output_error()
        documents.append(errors_json(artifact, errors, whole) | ({"sizes": sizes} if sizes else {}))
        if not as_json:
            if sizes:
                print_line(
                    console, ", ".join(f"{name} {size}" for name, size in sizes.items()) + ":"
                )
            show_errors(artifact, errors, whole, console)
    right = all(document["right"] for document in documents)
    if as_json:
        alone = len(documents) == 1 and "sizes" not in documents[0]
        result = documents[0] if alone else {"right": right, "libraries": list[Json](documents)}
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    if not right:
        raise typer.Exit(1)


def _arrays(path: Path) -> dict[str, Array]:
    """Read the inputs of an NPZ file.

    Raises:
        TilewrightError: the file cannot be read.
    """
    from tilewright.core.files import read_plain, unpack_arrays

    try:
        return unpack_arrays(read_plain(path, limit=MOST_INPUT_BYTES))
    except FileNotFoundError:
        raise TilewrightError(
            f"there is no file {path}; name an NPZ file with the inputs"
        ) from None
    except OSError as error:
        raise TilewrightError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise TilewrightError(
            f"{path} is not an NPZ file ({error}); write one with numpy.savez"
        ) from None


@with_options
def benchmark(
    options: BenchmarkOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a network for this processor and time it in turns with other engines.

    Each engine has a process of its own. Rounds that were disturbed by other work do not count.
    """
    from tilewright.cli.views.artifact import Building
    from tilewright.cli.views.library import benchmark_json, show_benchmark
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.benchmark import benchmark as run_benchmark
    from tilewright.search import LocalRunner

    given = (options.artifact is not None, options.schedules is not None, options.trials > 0)
    if sum(given) > 1:
        raise TilewrightError(
            "give one of --artifact, --schedules and --trials: each says what is timed"
        )
    with Building(Terminal(stderr=True)) as shown:
        made = run_benchmark(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if as_json:
        typer.echo(json.dumps(benchmark_json(made), indent=2, ensure_ascii=False))
    else:
        show_benchmark(made, Terminal())


cpu_commands = typer.Typer(help="Run libraries without Python.", no_args_is_help=True)


@cpu_commands.callback()
def _group() -> None:
    pass


@cpu_commands.command("runtime")
def cpu_runtime(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the sources.")],
    artifact: Annotated[
        Path | None,
        typer.Option("--for", metavar="ART", help="Refuse an artifact that C cannot run."),
    ] = None,
) -> None:
    """Write what a C program needs to run the libraries of 'tilewright build --target cpu'.

    These are a header, its source, an example with a Makefile, and TVM's runtime (6 MB).
    """
    from tilewright.networks.artifact.regions import refuse_regions
    from tilewright.networks.compiled.c_interface import write_c_interface

    if artifact is not None:
        refuse_regions(artifact)
    write_c_interface(out)
    typer.echo(f"{as_typed(str(out))}: make -C {as_typed(str(out))} builds the example")
