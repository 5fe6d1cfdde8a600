"""Fixtures of `isobatch exec`: a job's recipe, and the command in the place of the process."""

import os

import pytest

from isobatch.cli import main

RECIPE = 'effective_batch = 24\nlr = 0.1\noptimizer = "sgd"\nduration = "84st"\nwarmup = "10%"\n'
COUNTS = ("WORLD_SIZE", "RANK", "LOCAL", "OMPI", "PMI", "MV2", "SLURM", "PET_", "TORCHELASTIC", "ISOBATCH")


class Started(Exception):
    """The command and the environment in the place of the process."""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A recipe, where no launcher has set anything."""
    for name in os.environ:
        if name.startswith(COUNTS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "job.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def become(job, monkeypatch, capsys):
    """Runs `isobatch exec job.toml`; returns the command and its environment, or the exit code and stderr."""

    def start(file, words, environment):
        raise Started(words, environment)

    monkeypatch.setattr(os, "execvpe", start)
    monkeypatch.setattr("isobatch.cli.exec.signal.signal", lambda *_: None)
    monkeypatch.setattr("isobatch.cli.exec._SECONDS_TO_READ", 0)
    monkeypatch.setattr("isobatch.cli._failed", raised)

    def run(*words, file=job, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(["exec", file, *words])
        except Started as started:
            return started.args
        return code, capsys.readouterr().err

    return run


def raised(_program, error):
    raise error
