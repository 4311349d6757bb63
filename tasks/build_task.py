"""Runner that executes the steps of a build as Prefect tasks, and reports the result in Prefect.

Prefect searches the arguments of a task for results of other tasks. Networks and graphs are large,
so this search is turned off for the tasks here.
"""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tilewright.flows.build import SchedulesFound, choose_kernels, choose_schedules
from tilewright.reports.artifact import built_note
from tilewright.reports.markdown import escape_text
from tilewright.search.events import Event, StageBegan
from tilewright.tasks.run_progress import Progress
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task
from tilewright.tuning.build_artifact import (
    BuiltArtifact,
    integer_network,
    link_artifact,
    read_model,
)
from tilewright.tuning.build_cpu_library import (
    compile_library,
    join_sizes,
    read_layers,
    read_sizes,
    write_library,
)
from tilewright.tuning.build_options import BuildOptions

STEPS: tuple[Step, ...] = (
    read_model, integer_network, choose_schedules, link_artifact, read_layers, choose_kernels,
    compile_library, read_sizes, join_sizes, write_library,
)  # fmt: skip


class BuildRunner(TrackedRunner):
    """Runner that executes each step of a build as a Prefect task, with a progress bar."""

    def __init__(self) -> None:
        names = {step: f"{step.__name__} of {{options.model}}" for step in STEPS}
        names[read_layers] = "read_layers of {network.name}"
        super().__init__(self._show, {item: as_task(item, name) for item, name in names.items()})
        self._shown: Progress | None = None

    def _show(self, event: Event) -> None:
        if isinstance(event, StageBegan):
            get_run_logger().info(event.name)
        elif isinstance(event, SchedulesFound):
            if self._shown is None:
                what = "of the workloads have a schedule"
                self._shown = Progress("schedules", event.whole, what)
            if event.done < event.whole:
                self._shown.show(event.done)
            else:
                self._shown.end()


def say_built(options: BuildOptions, made: BuiltArtifact) -> None:
    """Create a Prefect artifact that describes the build, and log its warnings.

    Args:
        options: options of the build.
        made: the built artifact.
    """
    for warning in made.warnings:
        get_run_logger().warning(warning)
    note = built_note(made.manifest, options.out, made.warnings)
    create_markdown_artifact(key="artifact", markdown=note, description=escape_text(options.model))
