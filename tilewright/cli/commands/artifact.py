"""The commands `tilewright build`, `run`, `verify`, `benchmark` and `cpu`.

They build an artifact from a network, run it, check its values and measure its latency.
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


Folder = Annotated[
    Path, typer.Argument(metavar="ART", help="The folder that 'tilewright build' wrote.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Allow the machine code in ART to run with your user's rights. Without this "
        "option, an artifact that contains machine code is refused unless you built "
        "it yourself in this workspace.",
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
    """Build an artifact from a network and its schedules.

    The artifact is a folder. It holds programs and weights for an accelerator board or, for the
    target cpu, a compiled library.
    """
    from tilewright.cli.views.artifact import Building, show_built
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.build import build_artifact
    from tilewright.search import LocalRunner

    if options.schedules is not None and "trials" in options.model_fields_set:
        raise TilewrightError(
            "--schedules and --trials are both given, and each selects the schedules to "
            "build; leave one of them out"
        )
    options = options.model_copy(update={"allow_code": allow_code})
    console = Terminal()
    with Building(Terminal(stderr=True)) as shown:
        made = build_artifact(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if unsigned := made.manifest.get("unsigned"):
        message = (
            f"note: this build is not signed ({unsigned}), so run and verify will require "
            "--allow-code"
        )
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
        Path,
        typer.Option(
            "--input",
            metavar="FILE.npz",
            help="Read the inputs from this .npz file: one array per input, by the input's name.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE.npz",
            help="Write the outputs to this .npz file: one array per output, by name.",
        ),
    ],
    profile: Annotated[
        bool, typer.Option("--profile", help="Show the time that each layer takes.")
    ] = False,
    as_json: AsJson = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a chart of when each hardware unit is busy to this .png or .html file.",
        ),
    ] = None,
    allow_code: AllowCode = False,
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline",
            help="Pipeline several images: the CPU works on one image while the "
            "accelerator works on another. FILE.npz holds the images along the first "
            "axis of each input. Prints the throughput in images/s.",
        ),
    ] = False,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of images that --pipeline runs; the images of FILE.npz are "
            "repeated as needed.  [default: the number of images in FILE.npz]",
            min=1,
            max=MOST_IMAGES,
        ),
    ] = None,
) -> None:
    """Run one inference of an artifact.

    An artifact for an accelerator runs on the accelerator's simulator, which agrees with the
    hardware description in every bit and every cycle. A compiled library runs on this machine.
    """
    from tilewright.cli.views.artifact import profile_json, show_profile, show_run
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.core.files import pack_arrays, write_atomically
    from tilewright.networks.artifact import CompiledArtifact, SizedLibrary
    from tilewright.networks.artifact.sized_library import Fit

    if timeline is not None and timeline.suffix not in (".png", ".html"):
        raise TilewrightError(f"--timeline {timeline}: the file name must end in .png or .html")
    if output.suffix != ".npz":
        raise TilewrightError(f"--output {output}: the file name must end in .npz")
    if images is not None and not pipeline:
        raise TilewrightError(
            "--images is the number of images for --pipeline; add --pipeline, or leave out --images"
        )
    if pipeline and (profile or timeline is not None):
        raise TilewrightError(
            "--profile and --timeline describe a single inference and cannot be combined "
            "with --pipeline; leave out --pipeline"
        )
    artifact = _load_artifact(folder, allow_code)
    arrays = _arrays(inputs)
    if isinstance(artifact, CompiledArtifact | SizedLibrary):
        if pipeline:
            raise TilewrightError(
                f"--pipeline needs an accelerator beside the CPU, but {artifact.name} "
                "is a library for a CPU; leave out --pipeline"
            )
        if timeline is not None:
            raise TilewrightError(
                "--timeline draws the units of an accelerator, but this artifact is for "
                "a CPU; leave out --timeline"
            )
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
    """Run several images, with CPU and accelerator overlapped, and show the throughput.

    Args:
        artifact: the artifact.
        arrays: input arrays by name, with the images along the first axis.
        output: NPZ file to which the outputs are written.
        count: number of images to run, repeating the given ones as needed; None to run each once.
        as_json: whether to print JSON.
    """
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
    """Run one inference of a CPU library on this machine, and show its time.

    Args:
        fit: the library whose input size fits, and the padded inputs.
        output: NPZ file to which the outputs are written.
        profile: whether to show the time of each layer.
        as_json: whether to print JSON.
    """
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
    """Check that an artifact computes the right values.

    The outputs of the whole network are compared with the outputs of its source model on stored
    samples. Each layer is compared with a plain reference implementation on random inputs.

    The exit status is 1 if any difference is too large.
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
    """Load an artifact. If machine code is allowed, print which code is executed.

    Raises:
        ArtifactError: the artifact cannot be loaded.
    """
    from tilewright.core.user_text import printable
    from tilewright.networks.artifact import code_of, load

    artifact = load(folder, allow_code=allow_code)
    for code in code_of(artifact.manifest) if allow_code else ():
        typer.echo(f"note: running the code in {as_typed(str(folder))}/{printable(code)}", err=True)
    return artifact


def _verify_libraries(
    libraries: Sequence[tuple[dict[str, int], CompiledArtifact]], *, as_json: bool
) -> None:
    """Check the layers of each library, and print the results.

    Args:
        libraries: each library with the input sizes that it was built for. The sizes are empty if
            it is the only library.
        as_json: whether to print JSON.
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
    """Read the input arrays in an NPZ file.

    Raises:
        TilewrightError: the file cannot be read.
    """
    from tilewright.core.files import read_plain, unpack_arrays

    try:
        return unpack_arrays(read_plain(path, limit=MOST_INPUT_BYTES))
    except FileNotFoundError:
        raise TilewrightError(
            f"there is no file {path}; give the path of an NPZ file that holds the inputs"
        ) from None
    except OSError as error:
        raise TilewrightError(
            f"cannot read {path}: {error.strerror}; check the file and its permissions"
        ) from None
    except ValueError as error:
        raise TilewrightError(
            f"{path} is not an NPZ file ({error}); write one with numpy.savez"
        ) from None


@with_options
def benchmark(
    options: BenchmarkOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a network for this CPU and compare its latency with other inference engines.

    Each engine runs in its own process, and the engines take turns. Rounds in which other work on
    the machine slowed the engines are not counted.
    """
    from tilewright.cli.views.artifact import Building
    from tilewright.cli.views.library import benchmark_json, show_benchmark
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.benchmark import benchmark as run_benchmark
    from tilewright.search import LocalRunner

    given = (options.artifact is not None, options.schedules is not None, options.trials > 0)
    if sum(given) > 1:
        raise TilewrightError(
            "--artifact, --schedules and --trials each select what is timed; give only one of them"
        )
    with Building(Terminal(stderr=True)) as shown:
        made = run_benchmark(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if as_json:
        typer.echo(json.dumps(benchmark_json(made), indent=2, ensure_ascii=False))
    else:
        show_benchmark(made, Terminal())


cpu_commands = typer.Typer(help="Run compiled libraries without Python.", no_args_is_help=True)


@cpu_commands.callback()
def _group() -> None:
    pass


@cpu_commands.command("runtime")
def cpu_runtime(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the sources to.")],
    artifact: Annotated[
        Path | None,
        typer.Option(
            "--for",
            metavar="ART",
            help="Check that the C runtime can run this artifact, and fail if not.",
        ),
    ] = None,
) -> None:
    """Write the C runtime for compiled libraries.

    The C runtime runs libraries that 'tilewright build --target cpu' built. DIR gets its header and
    source file, an example with a Makefile, and TVM's runtime (6 MB).
    """
    from tilewright.networks.artifact.regions import refuse_regions
    from tilewright.networks.compiled.c_interface import write_c_interface

    if artifact is not None:
        refuse_regions(artifact)
    write_c_interface(out)
    typer.echo(f"wrote {as_typed(str(out))}; 'make -C {as_typed(str(out))}' builds the example")
