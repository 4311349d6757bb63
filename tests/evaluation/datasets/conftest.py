"""Builds one small dataset, which the tests only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.datasets.plans import OPTIONS, Steps, build


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    build(folder, OPTIONS, Steps())
    return folder
