"""Processes beside a command, the home folder, addresses. Importing it puts in force, for Prefect
and MLflow, that files and records of a folder decide nothing (`settings_files`, `artifact_places`).
"""

from tilewright.services.artifact_places import confine_artifacts
from tilewright.services.settings_files import prefect_reads_none

prefect_reads_none()
confine_artifacts()
