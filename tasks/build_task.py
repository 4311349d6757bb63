"""Builds an artifact as a Prefect task, and shows its results as an artifact of Prefect's."""

from __future__ import annotations

from collections.abc import Callable

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tilewright.flows.build import build_artifact
from tilewright.reports.building import built_note
from tilewright.reports.markdown import plain
from tilewright.tasks.cached_task import step
from tilewright.tasks.progress import Progress
from tilewright.tuning.build_artifact import BuiltArtifact
from tilewright.tuning.build_options import BuildOptions


@step("{model} for {target}")
def build_one(model: str, target: str, options: Callable[[], BuildOptions]) -> BuiltArtifact:
    """Quantise, choose schedules, link and write, with a progress that moves."""
    logger, shown = get_run_logger(), Progress("schedules", 1, "of the workloads have a schedule")

    def progress(done: int, whole: int) -> None:
        shown.of = max(whole, 1)
        shown.show(done)

    given = options()
    made = build_artifact(given, logger.info, progress)
    shown.end()
    for warning in made.warnings:
        logger.warning(warning)
    note = built_note(made.manifest, given.out, made.warnings)
    create_markdown_artifact(key="artifact", markdown=note, description=plain(model))
    return made
