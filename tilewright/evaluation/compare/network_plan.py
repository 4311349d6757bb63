"""Plans a comparison on networks: one tuning run per network, target, seed and tuner.

Each run has its own output directory. It also has a key, under which its result is stored when it
is finished.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tilewright.core.files import Json, canonical, digest
from tilewright.core.user_text import check_names, printable
from tilewright.core.working_folder import as_typed
from tilewright.evaluation.compare.options import SHARED, CompareOptions
from tilewright.evaluation.compare.plan import TunerConfig, parse_seeds, tuner_configs_of
from tilewright.models import make_explorer
from tilewright.tuning.network import import_model, weights_digest
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.preflight import check
from tilewright.tuning.run_metadata import origin_of
from tilewright.tuning.tuning_task import space_of, target_of

_DIGEST = 8  # hex digits of a digest that is appended to a folder name
_HOW = {
    "model", "target", "space", "tuner_options", "out", "jobs", "workers", "cluster", "store",
    "shared", "fresh",
}  # fmt: skip
"""Options that the key of a run omits: they do not affect the results, or the key contains them in
another form."""


@dataclass(frozen=True)
class NetworkJob:
    """A planned tuning run, in which one tuner tunes one network on one target with one seed.

    Attributes:
        network: the network, as the user wrote it.
        target: the target, as the user wrote it.
        tuner: the tuner, as the user wrote it.
        seed: seed of the run.
        options: options of the tuning run.
        place: output directory of the run, relative to the output directory of the comparison.
        key: key under which the result of the run is stored.
    """

    network: str
    target: str
    tuner: str
    seed: int
    options: TuningOptions
    place: str
    key: str = ""

    @property
    def title(self) -> str:
        """Name of the run in messages."""
        return run_title(self.network, self.target, self.tuner, self.seed)


def run_title(network: str, target: str, tuner: str, seed: int) -> str:
    """Return the name of a run in messages, such as `resnet18 on vta-pynq, default, seed 0`."""
    return f"{network} on {target}, {tuner}, seed {seed}"


@dataclass(frozen=True)
class NetworksPlan:
    """Plan of a comparison on networks, with all its runs.

    Attributes:
        options: options of the comparison.
        jobs: the runs, ordered by network, target, seed and tuner.
    """

    options: CompareOptions
    jobs: tuple[NetworkJob, ...]

    @property
    def folder(self) -> Path:
        """Output directory of the comparison."""
        return self.options.folder


def plan_networks(options: CompareOptions) -> NetworksPlan:
    """Plan all runs of a comparison on networks.

    The options are checked and all models are read first.

    Args:
        options: options of the comparison.

    Returns:
        The plan.

    Raises:
        NameListError: a name is empty or repeated.
        PlanError: the seeds cannot be parsed.
        TilewrightError: options are invalid (`tuning.preflight.check`), or a model cannot be
            imported.
    """
    check_names(options.networks, "NETWORK")
    check_names(options.targets, "--targets")
    seeds, tuners = parse_seeds(options.seeds), tuner_configs_of(options.tuners)
    jobs = [
        _job(options, network, target, tuner, seed)
        for network in options.networks
        for target in options.targets
        for seed in seeds
        for tuner in tuners
    ]
    for job in jobs:
        check(job.options)
    content = {network: _content(network, options) for network in options.networks}
    return NetworksPlan(
        options, tuple(replace(job, key=_key(job.options, content)) for job in jobs)
    )


def _job(
    options: CompareOptions, network: str, target: str, tuner: TunerConfig, seed: int
) -> NetworkJob:
    place = "/".join(
        [*map(_folder_name, (network, target)), _folder_text(tuner.label), f"seed-{seed}"]
    )
    run = TuningOptions.parse(
        model=network, target=target, tuner=tuner.tuner, tuner_options=dict(tuner.settings),
        seed=seed, out=str(options.folder / place),
        **{name: getattr(options, name) for name in SHARED},
    )  # fmt: skip
    typed = [printable(as_typed(item)) for item in (network, target, tuner.label)]
    return NetworkJob(typed[0], typed[1], typed[2], seed, run, place)


def _folder_name(text: str) -> str:
    """Return the name of the output folder for a network or a target.

    For a file, the name contains a digest of the file's content, so that another file with the same
    name gets another folder.

    Args:
        text: the network or the target, as the user wrote it.
    """
    origin = origin_of(text)
    known = origin["digest"][:_DIGEST]
    return f"{_folder_text(origin['name'])}-{known}" if known else _folder_text(text)


def _folder_text(text: str) -> str:
    """Replace characters that a folder name must not contain.

    If any character was replaced, a digest of the text is appended, so that different texts get
    different names.
    """
    name = re.sub(r"[^\w.+=:-]+", "-", text)
    return name if name == text else f"{name}-{digest(text.encode())[:_DIGEST]}"


def _content(network: str, options: CompareOptions) -> str:
    """Return a digest of a model file and its weight files.

    Args:
        network: the network, as the user wrote it.
        options: options of the comparison, which contain the input shapes.
    """
    return import_model(network, options.input_shapes).digest + weights_digest(network)


def _key(options: TuningOptions, content: Mapping[str, str]) -> str:
    """Return the key of a run: a digest of everything that affects its result.

    Args:
        options: options of the tuning run.
        content: digest of each network's model file and weights, by the network as the user wrote
            it.
    """
    explorer = make_explorer(options.tuner, options.tuner_options)
    about: dict[str, Json] = {
        **options.model_dump(mode="json", exclude=_HOW),
        "tuner_options": explorer.options.model_dump(mode="json"),
        "network": content[options.model],
        "target": target_of(options).fingerprint,
        "space": space_of(options),
        "version": version("tilewright"),
    }
    return digest(canonical(about))[:32]
