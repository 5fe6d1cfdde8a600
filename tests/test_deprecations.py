"""Deprecated names go on working, warn once, and do not outlive their version."""

import re
import warnings

import pytest

import isobatch as ib
from isobatch import errors
from isobatch.errors import Successor


@pytest.fixture
def table(monkeypatch):
    """A table with an old function and an old option."""
    rows = {
        "isobatch.plan_all": Successor("isobatch.plan_fleet", "1.2.0"),
        "--gpu-count": Successor("--gpus", "2.0.0"),
    }
    monkeypatch.setattr(errors, "DEPRECATED", rows)
    monkeypatch.setattr(errors, "_REPORTED", set())


def test_an_old_name_warns_once_where_it_is_used(table):
    with pytest.warns(FutureWarning) as caught:
        assert ib.plan_all is ib.plan_fleet
    text = "isobatch.plan_all is deprecated and goes in isobatch 1.2.0: use isobatch.plan_fleet"
    assert [(str(warning.message), warning.filename) for warning in caught] == [(text, __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ib.plan_all is ib.plan_fleet


@pytest.mark.parametrize("old_words", [["--gpu-count", "4"], ["--gpu-count=4"]])
def test_an_old_option_is_read_as_the_new_one(table, ran, old_words):
    words = ["plan", "--set", "effective_batch=8", "--set", "lr=0.1", "--set", "gpus=1", "--json"]
    new = ran([*words, "--gpus", "4"])
    old = ran([*words, *old_words])
    assert old.out == new.out != ""
    assert old.err == new.err + "--gpu-count is deprecated and goes in isobatch 2.0.0: use --gpus\n"


def test_no_name_outlives_its_version():
    """A candidate, a development or a local version counts as its release."""

    def parts(version):
        return [*map(int, re.match(r"\d+(\.\d+)*", version)[0].split("."))]

    rows = errors.DEPRECATED.items()
    assert not [name for name, row in rows if parts(ib.__version__) >= parts(row.removed_in)]
