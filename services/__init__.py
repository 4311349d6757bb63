from services.artifact_places import confine_artifacts
from services.settings_files import prefect_reads_none

prefect_reads_none()
confine_artifacts()
