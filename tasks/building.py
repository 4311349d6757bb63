"""Building an artefact as a Prefect task, with what it came to as an artifact."""

from __future__ import annotations

from collections.abc import Callable

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from reports.building import built_note
from reports.markdown import plain
from tasks.progress import Progress
from tasks.stage import step
from tuning.build_options import BuildOptions
from tuning.building import BuiltArtefact, build_artefact


@step("{model} for {target}")
def build_one(model: str, target: str, options: Callable[[], BuildOptions]) -> BuiltArtefact:
    """Quantise, choose schedules, link and write, with a progress that moves."""
    logger, shown = get_run_logger(), Progress("schedules", 1, "of the workloads have a schedule")

    def progress(done: int, whole: int) -> None:
        shown.of = max(whole, 1)
        shown.show(done)

    given = options()
    made = build_artefact(given, logger.info, progress)
    shown.end()
    for warning in made.warnings:
        logger.warning(warning)
    note = built_note(made.manifest, given.out, made.warnings)
    create_markdown_artifact(key="artefact", markdown=note, description=plain(model))
    return made
