"""Options of a tuning run.

The options of `tilewright tune`, the form of its deployment and the keyword arguments of
`tilewright.tune` are derived from `TuningOptions`.
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
_LONGEST_NAME = 30  # characters of a part of a default folder

# Options that several commands have.
Target = Annotated[
    str,
    CliOption(value="target"),
    Field(
        min_length=1,
        description="A preset, a file, or KIND:…; 'tilewright targets' lists them.",
        json_schema_extra=with_targets,
    ),
]
Precision = Annotated[
    str,
    CliOption(metavar="f32|bf16|int8|auto", default="as the model says"),
    Field(
        json_schema_extra={"enum": ["", "f32", "bf16", "int8", "auto"]},
        description="Numbers that a cpu multiplies: all layers in float32, those of a float "
        "network in bfloat16 by AMX or AVX512-BF16, quantised ones in int8, or each by AMX where "
        "there is such.",
    ),
]
Trials = Annotated[int, Field(ge=1, le=100_000, description="Measurements a workload.")]
Batch = Annotated[int, Field(ge=1, le=10_000, description="Measurements a round.")]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1, description="Same seed, same schedules.")]
Space = Annotated[
    str,
    CliOption(default="its usual one"),
    Field(description="A schedule space of the target."),
]
InputShapes = Annotated[
    dict[str, tuple[int, ...]],
    CliOption(flag="--input-shape", pair="NAME=1x3x224x224"),
    Field(description="Fix an input's shape, NAME=1x3x224x224."),
]
Calibration = Annotated[
    str,
    CliOption(value="path"),
    Field(description="Samples for a float model: an NPZ file, or a folder of them."),
]
MaxWaste = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Offload a layer if at most this share of its multiplications is by zeros.",
    ),
]
Cluster = Annotated[
    str,
    CliOption(metavar="tls://HOST:PORT|local:N"),
    Field(
        description="The Dask cluster that does the work: tls://HOST:PORT of a scheduler, or "
        "local:N for N processes of this machine."
    ),
]
Store = Annotated[
    str,
    CliOption(metavar="postgresql+psycopg://USER@HOST/DATABASE"),
    Field(
        max_length=1000,
        description="The PostgreSQL database that keeps the trials of a new output directory, "
        "instead of the file trials.sqlite in it. The variable TILEWRIGHT_STORE, and 'store' in "
        "the workspace's workspace.json, say it for every command.",
    ),
    # Options are shown in pages and stored in files.
    AfterValidator(without_password),
]


class PrecisionError(TilewrightError, ValueError):
    """The target does not have this precision. Pydantic treats it as an invalid value."""


def precision_in_target(values: Any, default_target: str) -> Any:
    """Make the option `precision` a part of the target's name: `cpu:precision=int8`.

    Args:
        values: options by name, as they are given to a model.
        default_target: the target if the options name none.

    Raises:
        PrecisionError: the target has no choice of precision, or already names one.
    """
    if not isinstance(values, dict) or not values.get("precision"):
        return values
    target = str(values.get("target", default_target))
    kind, _, rest = target.partition(":")
    if kind != "cpu":
        raise PrecisionError(
            f"--precision is about the target cpu, and {target} has its own; leave it out"
        )
    if "precision=" in rest:
        raise PrecisionError(f"{target} names a precision already; leave out --precision")
    named = f"cpu:{rest}{',' if rest else ''}precision={values['precision']}"
    return values | {"precision": "", "target": named}


_DURATION = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def check_duration(text: str) -> str:
    """Return the text if it is empty or a duration such as `1h30m`.

    Raises:
        ValueError: the text is anything else.
    """
    if text and (not _DURATION.fullmatch(text) or seconds_of_duration(text) == 0):
        raise ValueError("write hours, minutes and seconds: 90s, 10m, 1h30m")
    return text


def seconds_of_duration(text: str) -> int | None:
    """Return the seconds of a duration such as `1h30m`; None for an empty text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


class TuningOptions(CommandOptions):
    """Options of a tuning run."""

    option_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        USUAL: ("target", "tuner", "trials", "time_limit", "out", "seed"),
        "What is tuned": (
            "layers", "workload", "epilogue", "fusion", "precision", "input_shapes", "calibration",
            "max_waste",
        ),
        "How it is searched": (
            "space", "tuner_options", "batch", "stop_gain", "leaders", "warm_start", "fresh",
        ),
        "Where it runs": ("jobs", "workers", "cluster", "shared", "store", "isolate"),
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
        description="The search strategy; 'tilewright tuners' lists them.",
        json_schema_extra=with_tuners,
    )
    trials: Trials = 64
    stop_gain: Annotated[float | None, CliOption(metavar="SHARE")] = Field(
        default=None,
        ge=0,
        lt=1,
        description="Share the trials of all workloads, --trials times their number at most, among "
        "those whose next round is expected to save the most; stop where none is expected "
        "to save more than this share of the network's latency: 0.001, say.",
    )
    time_limit: Annotated[
        str, CliOption(flag="--for", metavar="TIME", default=""), AfterValidator(check_duration)
    ] = Field(
        default="",
        max_length=20,
        description="Begin no round later than so long after the start of this command: 90s, 10m, "
        "1h30m. Workloads share the time evenly, and each has at least one round. The same command "
        "continues, for as long again.",
    )
    seed: Seed = 0
    space: Space = ""
    out: Annotated[str, CliOption(value="path", default=DEFAULT_OUT)] = Field(
        default="", description="Folder for the results."
    )
    batch: Batch = 16
    leaders: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Trials that are validated at the end, on targets that give other numbers "
        "each time.",
    )
    tuner_options: Annotated[dict[str, OptionValue], CliOption(flag="--option")] = Field(
        default_factory=dict, description="An option of the tuner, NAME=VALUE."
    )
    layers: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=(),
        description="Tune these layers only, NAME,NAME,…; 'tilewright inspect' names them.",
    )
    workload: str = Field(
        default="", description="Tune one workload instead of a MODEL: dense:n=1,c=512,o=1000"
    )
    epilogue: Annotated[str, CliOption(metavar="network|per-channel|plain|STEPS")] = Field(
        default=AS_IN_NETWORK,
        description="'network': what the network needs; 'per-channel': the same for 'tilewright "
        "build --per-channel'; 'plain': '>> 8, min 127, max 0', as published "
        "tuners report and baselines were published for. Of a --workload its steps: '>> N', "
        "'>> channel', 'min N', 'residual N', relu, bias, add; plain by default.",
    )
    input_shapes: InputShapes = Field(default_factory=dict)
    calibration: Calibration = ""
    max_waste: MaxWaste = 1.0
    warm_start: Annotated[str, CliOption(metavar="MODEL|DIR|champion", value="warm start")] = Field(
        default="",
        max_length=4096,
        description="Start from what a model learned on other hardware: its folder, from "
        "'tilewright model train'. Or from the trials of an earlier run: its --out folder. "
        "'champion': from the best models of 'tilewright compare'.",
    )
    fusion: Annotated[
        Literal["", "none", "all", "greedy", "learned"],
        CliOption(metavar="none|all|greedy|learned"),
    ] = Field(
        default="",
        description="Which operators run together on the accelerator, for 'tilewright build': "
        "'none', 'all' that may, 'greedy', where estimates say so, or 'learned', searched for by "
        "what whole networks take.",
    )
    fresh: bool = Field(default=False, description="Start over; do not resume.")
    isolate: Annotated[float, CliOption(shows_limits=True)] = Field(
        default=0.0,
        ge=0,
        description="Compile and measure in a process of its own, SECONDS a batch.",
    )
    jobs: int = Field(default=1, ge=1, le=256, description="Workloads at a time.")
    workers: Annotated[int, CliOption(metavar="N")] = Field(
        default=1, ge=1, le=MOST_WORKERS, description="N is short for --cluster local:N."
    )
    cluster: Cluster = ""
    store: Store = ""
    shared: bool = Field(
        default=False,
        description="Make the trials together with other commands that are started with the same "
        "options. Which trials are made then depends on which command is faster.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_network(cls, values: Any) -> Any:
        """Leave out the default network if a single workload is given."""
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
                f"--workers {workers} is short for --cluster local:{workers}, and --cluster "
                f"{printable(str(values['cluster']))} is given, too; leave one of the two out"
            )
        return values | {"workers": 1, "cluster": f"local:{workers}"}

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if bool(self.model) == bool(self.workload):
            raise ValueError("give either a network or a workload")
        if self.workload and self.layers:
            raise ValueError("layers are those of a network; a workload has none")
        check_names(self.layers, "--layers")
        if self.shared and self.stop_gain is not None:
            raise ValueError(
                f"--shared --stop-gain {self.stop_gain:g}: which workload gets the next round is "
                "decided in one process, and commands that share a run take rounds of any; leave "
                "one of the two out"
            )
        if self.shared and self.fresh:
            raise ValueError(
                "--shared --fresh: each of the commands would delete the trials of the others; "
                "choose another output directory with --out, or delete this one first"
            )
        if self.fusion and (self.workload or self.layers or self.epilogue == PLAIN):
            other = (
                "--workload" if self.workload else "--layers" if self.layers else "--epilogue plain"
            )
            raise ValueError(
                f"--fusion {self.fusion} {other}: what is fused is decided for a whole network "
                "with what it computes; leave one of the two out"
            )
        if self.model and self.epilogue not in (AS_IN_NETWORK, PER_CHANNEL, PLAIN):
            raise ValueError(
                f"--epilogue {printable(self.epilogue)}: of a network it is 'network', "
                "'per-channel' or 'plain'; steps are those of a --workload"
            )
        return self

    @property
    def subject(self) -> str:
        """What is tuned, as the user wrote it."""
        return printable(as_typed(self.model) or self.workload)

    @property
    def settings(self) -> str:
        """Settings that distinguish runs of the same subject, such as `default, seed 0, 64
        trials`."""
        trials = f"{self.trials} trial{'' if self.trials == 1 else 's'}"
        return f"{self.tuner}, seed {self.seed}, {trials}"

    @property
    def epilogue_mode(self) -> Literal["full", "per-channel", "plain"]:
        """Which epilogues the workloads of a network get (`networks.epilogues`)."""
        if self.epilogue == PER_CHANNEL:
            return "per-channel"
        return "plain" if self.epilogue == PLAIN else "full"

    @property
    def steps(self) -> str:
        """Epilogue of a single workload."""
        return PLAIN_STEPS if self.epilogue in (AS_IN_NETWORK, PLAIN) else self.epilogue

    def default_value(self, name: str) -> Any:
        if name == "out" and self.out:
            return str(self.model_copy(update={"out": ""}).folder)
        return super().default_value(name)

    @property
    def folder(self) -> Path:
        """Output directory of the run."""
        return Path(self.out) if self.out else Path("tuned") / self.short_name

    @property
    def short_name(self) -> str:
        """Network or workload, target and layers, as a file name."""
        subject = Path(self.model).stem or re.sub(r"[^\w]+", "-", self.workload)
        layers = re.sub(r"[^\w.+-]+", "-", "+".join(self.layers))
        if len(layers) > _LONGEST_NAME:
            layers = f"layers-{_short_digest(layers)}"
        return "-".join(filter(None, (subject, file_name_of(self.target), layers)))


def file_name_of(target: str) -> str:
    """Return the name of a target as a part of a file name, such as `cpu-precision-int8`.

    A path is reduced to the file's name without suffix. The end of a long name is replaced by a
    digest.
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
    """Options of recording a run in MLflow.

    They change neither a run's results nor its identity: a run may be resumed with other tracking
    options.
    """

    system_metrics: bool = Field(
        default=False,
        description="Log the use of processor, memory, disk and network to MLflow every ten "
        "seconds. MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true does the same.",
    )

    def check_bare(self, bare: bool) -> None:
        """Check the options against those of the command.

        Raises:
            OptionsError: system metrics were requested for a `bare` run, which does not use MLflow.
        """
        if bare and self.system_metrics:
            raise OptionsError(
                "--system-metrics --bare: system metrics are logged to MLflow, and --bare runs "
                "without it; leave one of the two out"
            )


class ClusterOptions(CommandOptions):
    """Cluster option for commands whose other options have none."""

    cluster: Cluster = ""


CHAMPION = "champion"
"""Value of `--warm-start` that refers to the champion instead of a folder."""
DEFAULTS = TuningOptions()
"""Default values of all options."""
