"""Defines the options of a tuning run: the command line's arguments, a deployment's form, and what
a library call takes. The defaults of all three are here."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tilewright.core.database_url import without_password
from tilewright.core.errors import TilewrightError
from tilewright.core.name_list import check_names
from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import with_networks, with_targets, with_tuners

PLAIN_STEPS = ">> 8, min 127, max 0"
AS_IN_NETWORK, PER_CHANNEL, PLAIN = "network", "per-channel", "plain"
MOST_WORKERS = 256
_LONGEST_NAME = 60  # characters of a default folder

OptionValue = str | int | float | bool
StoreUrl = Annotated[str, Field(max_length=1000), AfterValidator(without_password)]
"""URL of a database for trials. Options are shown in pages and stored in files."""


class OptionsError(TilewrightError):
    """An argument that makes no sense."""


class TuningOptions(BaseModel):
    """Everything that decides a tuning run, and how it is run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        default="resnet18",
        description="an ONNX, TensorFlow Lite or torch.export file, or a built-in network",
        json_schema_extra=with_networks,
    )
    workload: str = Field(
        default="", description="one workload instead of a network, such as dense:n=1,c=512,o=1000"
    )
    epilogue: str = Field(
        default=AS_IN_NETWORK,
        description="what follows the sums: 'network', what the network needs; 'per-channel', the "
        "same for weights with scales a channel; 'plain', the "
        "published benchmarks' '>> 8, min 127, max 0'; of a workload its steps, plain by default",
    )
    layers: tuple[str, ...] = Field(
        default=(), description="tune these layers of the network only, by the operators' names"
    )
    target: str = Field(
        default="vta-pynq",
        min_length=1,
        description="a preset, a file, or the name of a kind of target",
        json_schema_extra=with_targets,
    )
    tuner: str = Field(
        default="default",
        min_length=1,
        description="a registered tuner",
        json_schema_extra=with_tuners,
    )
    tuner_options: dict[str, OptionValue] = Field(
        default_factory=dict, description="options of the tuner, by name"
    )
    trials: int = Field(default=64, ge=1, le=100_000, description="measurements a workload")
    stop_gain: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share the trials of all workloads among those whose next round is expected to "
        "save the most, until none saves more than this share of the network's latency; 0.001, say",
    )
    leaders: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="where measuring does not repeat: trials that are validated at the end",
    )
    batch: int = Field(default=16, ge=1, le=10_000, description="measurements a round")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="same seed, same schedules")
    space: str = Field(default="", description="the schedule space; empty: the target's usual one")
    input_shapes: dict[str, tuple[int, ...]] = Field(
        default_factory=dict, description="sizes of inputs that the model leaves open"
    )
    calibration: str = Field(
        default="",
        description="samples that a float model is quantised by, an NPZ file or a folder of them, "
        "as 'tilewright build' takes them; empty: the network's own, or seeded random ones",
    )
    max_waste: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="offload a layer if at most this share of its multiplications is by zeros",
    )
    out: str = Field(default="", description="folder for the results; empty: tuned/<model>")
    warm_start: str = Field(
        default="",
        max_length=4096,
        description="'champion': start from the best models that were compared; else the folder of "
        "a model that learned on other hardware ('tilewright model train')",
    )
    fusion: Literal["", "none", "all", "greedy", "learned"] = Field(
        default="",
        description="which operators run together on the accelerator: 'none', 'all' that may, "
        "'greedy', by estimates, or 'learned', searched for; empty: as 'tilewright inspect' shows",
    )
    fresh: bool = Field(default=False, description="start over instead of resuming")
    shared: bool = Field(
        default=False,
        description="make the trials together with other commands that are started with the same "
        "options; one of them writes the results",
    )
    isolate: float = Field(
        default=0.0,
        ge=0,
        description="compile and measure in a process of its own, seconds a batch",
    )
    jobs: int = Field(default=1, ge=1, le=256, description="workloads at a time")
    workers: int = Field(
        default=1, ge=1, le=MOST_WORKERS, description="N workers are short for the cluster local:N"
    )
    cluster: str = Field(
        default="",
        description="the Dask cluster that lowers and measures: tls://HOST:PORT of its scheduler, "
        "or local:N for N processes of this machine; empty: this process",
    )
    store: StoreUrl = Field(
        default="",
        description="the PostgreSQL database that keeps the trials of a new output directory, "
        "postgresql+psycopg://USER@HOST/DATABASE; empty: a file in the output directory",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_network(cls, values: Any) -> Any:
        """A workload stands alone: the usual network is not meant."""
        if isinstance(values, dict) and values.get("workload"):
            return {"model": ""} | values
        return values

    @model_validator(mode="before")
    @classmethod
    def _workers_as_cluster(cls, values: Any) -> Any:
        """Read `--workers N` as `--cluster local:N`."""
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
        """What is tuned, in the user's words."""
        return printable(as_typed(self.model) or self.workload)

    @property
    def epilogue_mode(self) -> Literal["full", "per-channel", "plain"]:
        """How a network's workloads are written down (`networks.int8`)."""
        if self.epilogue == PER_CHANNEL:
            return "per-channel"
        return "plain" if self.epilogue == PLAIN else "full"

    @property
    def steps(self) -> str:
        """The epilogue of a workload that stands alone."""
        return PLAIN_STEPS if self.epilogue in (AS_IN_NETWORK, PLAIN) else self.epilogue

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.out) if self.out else Path("tuned") / self._folder_name()

    def _folder_name(self) -> str:
        """The network's, with the layers behind it; a workload's text without marks."""
        if self.workload:
            return re.sub(r"[^\w]+", "-", self.workload)
        stem = Path(self.model).stem
        if not self.layers:
            return stem
        layers = re.sub(r"[^\w.+-]+", "-", "+".join(self.layers))
        if len(layers) > _LONGEST_NAME:
            layers = f"layers-{hashlib.sha256(layers.encode()).hexdigest()[:8]}"
        return f"{stem}-{layers}"


class TrackingOptions(BaseModel):
    """How a run is recorded in MLflow.

    These options change neither a run's results nor its identity: a run may be resumed with other
    tracking options.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system_metrics: bool = Field(
        default=False,
        description="log the use of processor, memory, disk and network to MLflow every ten "
        "seconds, as MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true does",
    )


CHAMPION = "champion"
"""The warm start that is no folder of a model."""
DEFAULTS = TuningOptions()
"""What options are unless they are given."""


def parse_options(**values: object) -> TuningOptions:
    """Raises `OptionsError` with the first thing that is wrong and what to do."""
    try:
        return TuningOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise OptionsError(first["msg"].removeprefix("Value error, ")) from None
        name = str(first["loc"][0])
        fields = TuningOptions.model_fields
        hint = fields[name].description if name in fields else ""
        raise OptionsError(
            f"--{name.replace('_', '-')} {values.get(name)}: {first['msg'].lower()} ({hint})"
        ) from None
