"""Options of a tuning run.

The command-line options of `tilewright tune`, the form of its Prefect deployment and the keyword
arguments of `tilewright.tune` are derived from `TuningOptions`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tilewright.core.database_url import without_password
from tilewright.core.errors import TilewrightError
from tilewright.core.options import CliOption, CommandOptions, OptionsError, OptionValue
from tilewright.core.user_text import check_names, printable
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import with_networks, with_targets, with_tuners

PLAIN_STEPS = ">> 8, min 127, max 0"
AS_IN_NETWORK, PER_CHANNEL, PLAIN = "network", "per-channel", "plain"
MOST_WORKERS = 256
USUAL = "Usual options"
DEFAULT_OUT = "tuned/<model>-<target>"
_LONGEST_NAME = 30  # maximum length of each part of a default folder's name, in characters

# Options that several commands have.
Target = Annotated[
    str,
    CliOption(value="target"),
    Field(
        min_length=1,
        description="The hardware: a preset, a specification file, or KIND:…; 'tilewright "
        "targets' lists the presets.",
        json_schema_extra=with_targets,
    ),
]
Precision = Annotated[
    str,
    CliOption(metavar="f32|bf16|int8|auto", default="the precision of the model"),
    Field(
        json_schema_extra={"enum": ["", "f32", "bf16", "int8", "auto"]},
        description="Number format for the target cpu. 'f32': all layers in float32. 'bf16': float "
        "networks in bfloat16, with AMX or AVX512-BF16. 'int8': quantised layers with AMX. 'auto': "
        "both 'bf16' and 'int8' where the CPU has AMX.",
    ),
]
Trials = Annotated[int, Field(ge=1, le=100_000, description="Measurements per workload.")]
Batch = Annotated[int, Field(ge=1, le=10_000, description="Measurements per round.")]
Seed = Annotated[
    int,
    Field(ge=0, le=2**31 - 1, description="Random seed; the same seed gives the same schedules."),
]
Space = Annotated[
    str,
    CliOption(default="the target's default space"),
    Field(description="The schedule space of the target to search."),
]
InputShapes = Annotated[
    dict[str, tuple[int, ...]],
    CliOption(flag="--input-shape", pair="NAME=1x3x224x224"),
    Field(description="Set the shape of an input: NAME=1x3x224x224."),
]
Calibration = Annotated[
    str,
    CliOption(value="path"),
    Field(
        description="Calibration samples for a float model: an NPZ file, or a folder of NPZ files."
    ),
]
MaxWaste = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Offload a layer only if at most this fraction of its multiplications are with "
        "padding zeros.",
    ),
]
Cluster = Annotated[
    str,
    CliOption(metavar="tls://HOST:PORT|local:N"),
    Field(
        description="Measure on a Dask cluster: tls://HOST:PORT of its scheduler, or local:N for N "
        "processes on this machine."
    ),
]
Store = Annotated[
    str,
    CliOption(metavar="postgresql+psycopg://USER@HOST/DATABASE"),
    Field(
        max_length=1000,
        description="Store the trials of a new output directory in this PostgreSQL database "
        "instead of the file trials.sqlite. The environment variable "
        "TILEWRIGHT_STORE and the key 'store' in the workspace's workspace.json "
        "set a default for all commands.",
    ),
    # Options are shown in pages and stored in files, so they must not contain a password.
    AfterValidator(without_password),
]


class PrecisionError(TilewrightError, ValueError):
    """The target does not offer this precision. Pydantic treats the error as an invalid value."""


def precision_in_target(values: Any, default_target: str) -> Any:
    """Replace the option `precision` by a part of the target's name, such as `cpu:precision=int8`.

    Args:
        values: options by name, as they are passed to a pydantic model.
        default_target: name of the target if the options do not contain one.

    Returns:
        The changed options; `values` itself if no precision is given.

    Raises:
        PrecisionError: the target has a fixed precision, or its name already contains a precision.
    """
    if not isinstance(values, dict) or not values.get("precision"):
        return values
    target = str(values.get("target", default_target))
    kind, _, rest = target.partition(":")
    if kind != "cpu":
        raise PrecisionError(
            f"--precision is only for the target cpu, and {target} has a fixed number format; "
            "leave it out"
        )
    if "precision=" in rest:
        raise PrecisionError(f"{target} already names a precision; leave out --precision")
    named = f"cpu:{rest}{',' if rest else ''}precision={values['precision']}"
    return values | {"precision": "", "target": named}


_DURATION = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def check_duration(text: str) -> str:
    """Check that a text is empty or a duration such as `1h30m`, and return it.

    Args:
        text: the text.

    Raises:
        ValueError: the text is neither empty nor a positive duration.
    """
    if text and (not _DURATION.fullmatch(text) or seconds_of_duration(text) == 0):
        raise ValueError(
            "not a duration; write hours, minutes and seconds such as 90s, 10m or 1h30m"
        )
    return text


def seconds_of_duration(text: str) -> int | None:
    """Convert a duration such as `1h30m` to seconds.

    Args:
        text: the duration.

    Returns:
        Seconds, or None if the text is empty or not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


class TuningOptions(CommandOptions):
    """Options of a tuning run."""

    option_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        USUAL: ("target", "tuner", "trials", "time_limit", "out", "seed"),
        "What to tune": (
            "layers", "workload", "epilogue", "fusion", "precision", "input_shapes", "calibration",
            "max_waste",
        ),
        "How to search": (
            "space", "tuner_options", "batch", "stop_gain", "leaders", "warm_start", "fresh",
        ),
        "Where to measure": ("jobs", "workers", "cluster", "shared", "store", "isolate"),
    }  # fmt: skip
    model: Annotated[
        str, CliOption(positional=True, metavar="MODEL", value="model", default="")
    ] = Field(
        default="resnet18",
        description="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'.",
        json_schema_extra=with_networks,
    )
    target: Target = "vta-pynq"
    precision: Precision = ""
    tuner: str = Field(
        default="default",
        min_length=1,
        description="The search algorithm; 'tilewright tuners' lists all tuners.",
        json_schema_extra=with_tuners,
    )
    trials: Trials = 64
    stop_gain: Annotated[float | None, CliOption(metavar="SHARE")] = Field(
        default=None,
        ge=0,
        lt=1,
        description="Allocate trials to the workloads with the largest expected "
        "improvement, and stop when no workload is expected to improve the "
        "network's latency by more than this fraction, for example 0.001. The "
        "total stays at most --trials × the number of workloads.",
    )
    time_limit: Annotated[
        str, CliOption(flag="--for", metavar="TIME", default=""), AfterValidator(check_duration)
    ] = Field(
        default="",
        max_length=20,
        description="Start no new round after this time: 90s, 10m, 1h30m. The workloads share the "
        "time evenly, and each gets at least one round. Repeating the command continues the run "
        "for the same time again.",
    )
    seed: Seed = 0
    space: Space = ""
    out: Annotated[str, CliOption(value="path", default=DEFAULT_OUT)] = Field(
        default="", description="Output directory."
    )
    batch: Batch = 16
    leaders: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Number of trials to validate at the end, on targets whose measurements vary.",
    )
    tuner_options: Annotated[dict[str, OptionValue], CliOption(flag="--option")] = Field(
        default_factory=dict, description="Set an option of the tuner: NAME=VALUE."
    )
    layers: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=(),
        description="Tune only these layers: NAME,NAME,…; 'tilewright inspect' lists the names.",
    )
    workload: str = Field(
        default="", description="Tune a single workload instead of a MODEL: dense:n=1,c=512,o=1000"
    )
    epilogue: Annotated[str, CliOption(metavar="network|per-channel|plain|STEPS")] = Field(
        default=AS_IN_NETWORK,
        description="Operations after each layer. 'network': those that the network needs; "
        "'per-channel': the same, for 'tilewright build --per-channel'; 'plain': '>> 8, min "
        "127, max 0', as in published benchmarks of tuners. For a --workload, a list of "
        "operations: '>> N', '>> channel', 'min N', 'residual N', relu, bias, add (default: "
        "plain).",
    )
    input_shapes: InputShapes = Field(default_factory=dict)
    calibration: Calibration = ""
    max_waste: MaxWaste = 1.0
    warm_start: Annotated[str, CliOption(metavar="MODEL|DIR|champion", value="warm start")] = Field(
        default="",
        max_length=4096,
        description="Start from a model that was trained on other hardware: its folder, "
        "from 'tilewright model train', or 'champion' for the best models of "
        "'tilewright compare'. Or start from the trials of an earlier run: its --out folder "
        "(in our measurements, this saved no trials).",
    )
    fusion: Annotated[
        Literal["", "none", "all", "greedy", "learned"],
        CliOption(metavar="none|all|greedy|learned"),
    ] = Field(
        default="",
        description="Which operators to fuse on the accelerator, for 'tilewright build'. "
        "'none': no operators; 'all': every possible fusion; 'greedy': decided by estimates; "
        "'learned': searched by simulating whole networks.",
    )
    fresh: bool = Field(
        default=False, description="Delete the earlier results and start over instead of resuming."
    )
    isolate: Annotated[float, CliOption(shows_limits=True)] = Field(
        default=0.0,
        ge=0,
        description="Compile and measure in a separate process, with a limit of SECONDS per batch.",
    )
    jobs: int = Field(
        default=1, ge=1, le=256, description="Number of workloads to tune at the same time."
    )
    workers: Annotated[int, CliOption(metavar="N")] = Field(
        default=1, ge=1, le=MOST_WORKERS, description="Short form of --cluster local:N."
    )
    cluster: Cluster = ""
    store: Store = ""
    shared: bool = Field(
        default=False,
        description="Share the trials with other commands that run with the same options at "
        "the same time. Which trials are made then depends on the speed of the "
        "commands.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_network(cls, values: Any) -> Any:
        """Remove the default network from the given options if a single workload is given."""
        if isinstance(values, dict) and values.get("workload"):
            return {"model": ""} | values
        return values

    @model_validator(mode="before")
    @classmethod
    def _precision_of_target(cls, values: Any) -> Any:
        return precision_in_target(values, "vta-pynq")

    @model_validator(mode="before")
    @classmethod
    def _workers_as_cluster(cls, values: Any) -> Any:
        """Convert `--workers N` to `--cluster local:N`."""
        workers = values.get("workers") if isinstance(values, dict) else None
        if not isinstance(workers, int) or not 1 < workers <= MOST_WORKERS:
            return values
        if values.get("cluster"):
            raise ValueError(
                f"--workers {workers} is a short form of --cluster local:{workers}, but "
                f"--cluster {printable(str(values['cluster']))} is given, too; leave one of "
                "the two out"
            )
        return values | {"workers": 1, "cluster": f"local:{workers}"}

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if bool(self.model) == bool(self.workload):
            raise ValueError("give either a network or a workload, not both or neither")
        if self.workload and self.layers:
            raise ValueError(
                "--layers selects layers of a network, but a single workload is tuned; leave out "
                "--layers"
            )
        check_names(self.layers, "--layers")
        if self.shared and self.stop_gain is not None:
            raise ValueError(
                f"--shared and --stop-gain {self.stop_gain:g} cannot be combined, because "
                "--stop-gain needs a single process that decides which workload gets the "
                "next round; leave one of the two out"
            )
        if self.shared and self.fresh:
            raise ValueError(
                "--shared and --fresh cannot be combined, because each command would delete "
                "the trials of the others; choose another output directory with --out, or "
                "delete this one first"
            )
        if self.fusion and (self.workload or self.layers or self.epilogue == PLAIN):
            other = (
                "--workload" if self.workload else "--layers" if self.layers else "--epilogue plain"
            )
            raise ValueError(
                f"--fusion {self.fusion} {other}: fusion is decided for a whole network with "
                "its real operations; leave one of the two out"
            )
        if self.model and self.epilogue not in (AS_IN_NETWORK, PER_CHANNEL, PLAIN):
            raise ValueError(
                f"--epilogue {printable(self.epilogue)}: for a network, choose 'network', "
                "'per-channel' or 'plain'; lists of operations are for a --workload"
            )
        return self

    @property
    def subject(self) -> str:
        """The network or workload to tune, as the user wrote it."""
        return printable(as_typed(self.model) or self.workload)

    @property
    def settings(self) -> str:
        """Settings that distinguish runs of one subject, such as `default, seed 0, 64 trials`."""
        trials = f"{self.trials} trial{'' if self.trials == 1 else 's'}"
        return f"{self.tuner}, seed {self.seed}, {trials}"

    @property
    def epilogue_mode(self) -> Literal["full", "per-channel", "plain"]:
        """Rule for which operations are fused into a network's workloads (`networks.epilogues`)."""
        if self.epilogue == PER_CHANNEL:
            return "per-channel"
        return "plain" if self.epilogue == PLAIN else "full"

    @property
    def steps(self) -> str:
        """Epilogue of a single workload, the operations on its result."""
        return PLAIN_STEPS if self.epilogue in (AS_IN_NETWORK, PLAIN) else self.epilogue

    def default_value(self, name: str) -> Any:
        """Return the default of an option. For `out`, it depends on the other options."""
        if name == "out" and self.out:
            return str(self.model_copy(update={"out": ""}).folder)
        return super().default_value(name)

    @property
    def folder(self) -> Path:
        """Output directory of the run."""
        return Path(self.out) if self.out else Path("tuned") / self.short_name

    @property
    def short_name(self) -> str:
        """Text for file names that identifies the network or workload, target and layers."""
        subject = Path(self.model).stem or re.sub(r"[^\w]+", "-", self.workload)
        layers = re.sub(r"[^\w.+-]+", "-", "+".join(self.layers))
        if len(layers) > _LONGEST_NAME:
            layers = f"layers-{_short_digest(layers)}"
        return "-".join(filter(None, (subject, file_name_of(self.target), layers)))


def file_name_of(target: str) -> str:
    """Convert the name of a target to a part of a file name, such as `cpu-precision-int8`.

    A path is reduced to the file's name without suffix. If the result is too long, its end is
    replaced by a digest.

    Args:
        target: name of the target.
    """
    words = re.split(r"[:,=]", target)
    names = [Path(word).stem if "/" in word or word.endswith(".json") else word for word in words]
    name = re.sub(r"[^\w.+-]+", "-", "-".join(names))
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{_short_digest(target)}"


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class TrackingOptions(CommandOptions):
    """Options for recording a run in MLflow.

    They affect neither the results nor the identity of a run, so a run may be resumed with other
    tracking options.
    """

    system_metrics: bool = Field(
        default=False,
        description="Log the usage of CPU, memory, disk and network to MLflow every ten seconds. "
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true has the same effect.",
    )

    def check_bare(self, bare: bool) -> None:
        """Check that the tracking options are compatible with `--bare`.

        Args:
            bare: whether the run uses neither MLflow nor Prefect.

        Raises:
            OptionsError: system metrics were requested for a bare run, which does not use MLflow.
        """
        if bare and self.system_metrics:
            raise OptionsError(
                "--system-metrics needs MLflow, which --bare switches off; leave one of the two out"
            )


class ClusterOptions(CommandOptions):
    """Option `--cluster` for commands whose other options do not include it."""

    cluster: Cluster = ""


CHAMPION = "champion"
"""Value of `--warm-start` that refers to the champion, a registered model that won an earlier
comparison, instead of a folder."""
DEFAULTS = TuningOptions()
"""Tuning options in which every option has its default."""
