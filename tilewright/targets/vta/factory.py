"""Target kinds `vta` and `replay`: build a VTA target, or a replay of recorded tables, from a name.

The name of a VTA is a preset, or the path of a JSON file with the keys of `vta_config.json`. Heavy
modules are imported only when a target is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.registry import Property, TargetKind
from tilewright.targets.vta.machine_variants import variants
from tilewright.targets.vta.spec import VtaSpec, preset_files
from tilewright.targets.vta.spec_summary import properties, summary_figures

STOCK = "stock"
"""Name of the schedule space that has the restrictions of the stock compiler."""
_TABLES = (".csv", ".gz", ".parquet")


def _presets() -> Sequence[str]:
    return list(preset_files())


def _reads(path: Path) -> bool:
    return path.suffix == ".json" or (path.is_file() and path.suffix not in _TABLES)


def _check_vta(text: str) -> None:
    VtaSpec.load(text)


def _make_vta(text: str, space: str) -> Target:
    return _vta_of(VtaSpec.load(text), space)


def _rebuild(specification: Mapping[str, Json], space: str) -> Target:
    return _vta_of(VtaSpec.model_validate(specification), space)


def _vta_of(spec: VtaSpec, space: str) -> Target:
    from tilewright.targets.vta.lowering.batch import SpaceName
    from tilewright.targets.vta.target import VtaTarget

    if space == STOCK:
        return VtaTarget(spec, "template", stock=True)
    return VtaTarget(spec, cast(SpaceName, space))


def _describe(preset: str) -> Mapping[str, str]:
    return summary_figures(VtaSpec.load(preset))


def _remarks(text: str) -> Sequence[str]:
    assumed = {} if text in preset_files() else VtaSpec.load(text).assumed
    if not assumed:
        return ()
    defaults = ", ".join(f"{key}={value:g}" for key, value in assumed.items())
    return [f"{text} lacks {len(assumed)} keys, for which the defaults are used: {defaults}"]


def _properties(text: str) -> Sequence[Property]:
    return properties(VtaSpec.load(text))


def _variants(count: int, seed: int) -> Sequence[Mapping[str, Json]]:
    return [spec.model_dump(by_alias=True) for spec in variants(count, seed)]


def _warm_up(report: Callable[[str], None]) -> None:
    from tilewright.targets.vta.precompile import warm_up

    warm_up(report)


KIND = TargetKind(
    name="vta",
    summary="the VTA accelerator, on a simulator exact to the cycle of its RTL",
    make=_make_vta,
    spaces=("extended", "template", "unchecked", STOCK),
    presets=_presets,
    reads=_reads,
    check=_check_vta,
    describe=_describe,
    remarks=_remarks,
    properties=_properties,
    rebuild=_rebuild,
    variants=_variants,
    warm_up=_warm_up,
)


class ReplayError(TilewrightError):
    """Raised if a replay target is named without a table, or with a file that does not exist."""


def _table_files(text: str) -> list[Path]:
    if not text:
        raise ReplayError(
            "'replay' needs the tables to replay; write replay:C4.csv.gz, or several files "
            "separated by commas"
        )
    return [Path(part) for part in text.split(",")]


def _check_replay(text: str) -> None:
    for file in _table_files(text):
        if not file.is_file():
            raise ReplayError(f"the file {file} does not exist; give the path of a table")


def _make_replay(text: str, space: str) -> Target:
    from tilewright.targets.vta.recorded_tables import recorded_target

    return recorded_target(_table_files(text))


REPLAY_KIND = TargetKind(
    name="replay",
    summary="recorded tables of the stock VTA stack: replay:FILE[,FILE…]",
    make=_make_replay,
    check=_check_replay,
)
