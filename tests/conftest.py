"""Ranks for all tests that need some, and commands that are run in the process of the test."""

import pytest

# Scripts as people wrote them: they are read, never imported.
collect_ignore = ["tools/cases", "cli/exec_scripts"]
collect_ignore_glob = ["equivalence/*_loop.py"]


@pytest.fixture(scope="session")
def two():
    """Two gloo ranks."""
    pytest.importorskip("torch", reason="the validator and the guard need torch")
    from ddp.pool import Pool

    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture
def ran(capsys):
    """Runs a command, which must end with a code, and gives what it wrote."""
    from isobatch.cli import main

    def run(words, code=0):
        assert main(words) == code
        return capsys.readouterr()

    return run
