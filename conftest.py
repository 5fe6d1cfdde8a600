"""Setup of all tests and docstrings: hypothesis' profiles, and skips without torch or a peer.

`HYPOTHESIS_PROFILE=thorough` looks longer. `ISOBATCH_REQUIRE_PEERS=1`, as `scripts/test` sets it, refuses to
run where a test would be skipped for want of a library of the extras `validate`, `ray`, `peers` or `report`.
"""

import doctest
import importlib.util
import os
import re
import signal
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The installed one, with its extension: else docstrings of python/ are those of a package without.
import isobatch  # noqa: F401

# Machines are shared: a slow example is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient)
settings.register_profile("thorough", patient, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

EXTRAS = ("validate", "ray", "peers", "report")
OTHER_NAMES = {"PyYAML": "yaml", "vl-convert-python": "vl_convert"}


def required_modules():
    """The modules of the libraries that the extras name."""
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    names = [re.match(r"[\w.-]+", line)[0] for extra in EXTRAS for line in extras[extra]]
    return [OTHER_NAMES.get(name, name) for name in names]


MISSING = [name for name in required_modules() if importlib.util.find_spec(name) is None]


def pytest_configure(config):
    # A shell's background jobs ignore Ctrl-C, and so do their children: tests that send it would fail.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if MISSING and os.environ.get("ISOBATCH_REQUIRE_PEERS") == "1":
        raise pytest.UsageError(
            f"not installed, and required by ISOBATCH_REQUIRE_PEERS=1: {', '.join(MISSING)}"
        )
    # The docstrings of modules that import one of them are skipped then, and listed.
    config.option.doctest_ignore_import_errors = bool(MISSING)


def pytest_addoption(parser):
    parser.addoption(
        "--alone", choices=("only", "never"), help="what is marked to run alone: only that, or all else"
    )


def pytest_collection_modifyitems(config, items):
    """Leaves out tests by `--alone`; one marked as a race with the machine, with a reason, may fail once, and
    is listed as rerun."""
    if alone := config.getoption("alone"):
        chosen = [item for item in items if bool(item.get_closest_marker("alone")) == (alone == "only")]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    for item in items:
        if race := item.get_closest_marker("race"):
            if len(race.args) != 1 or not isinstance(race.args[0], str) or not race.args[0].strip():
                raise pytest.UsageError(f"{item.nodeid}: race needs its reason, a text")
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A test that needs a library of an extra that is not installed is skipped, and says so."""
    try:
        return (yield)
    except (ModuleNotFoundError, doctest.UnexpectedException) as error:
        cause = error.exc_info[1] if isinstance(error, doctest.UnexpectedException) else error
        name = (getattr(cause, "name", None) or "").partition(".")[0]
        if name not in MISSING:
            raise
        pytest.skip(f"{name} is not installed")
