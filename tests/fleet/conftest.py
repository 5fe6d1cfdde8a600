"""Fleets in files."""

import pytest

pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
from jobs_in_files import Jobs


@pytest.fixture
def make_jobs(tmp_path):
    return lambda files=3, rows=500, **how: Jobs(tmp_path / "jobs", files, rows, **how)
