"""A validation inside of ranks that are there already."""

import resource
import sys
import threading
from pathlib import Path

import msgspec

from isobatch import InputError, Plan
from isobatch.validate import Options, Report, Verdict, run
from isobatch.validate.proofs import all_reduce, gradient, machine, step_time


def validate(plan_json, *, path=None, memory_above_gib=None, alone_ranks=None, **options):
    """Returns the report, as JSON, of a workload at `path`, with memory for `memory_above_gib` more than now;
    one process goes through the samples of `alone_ranks`.
    """
    if memory_above_gib is not None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        options["memory_limit_gib"] = resident / 2**30 + memory_above_gib
    if path is not None:
        sys.path.insert(0, path)
    for part in all_reduce, machine, step_time:
        part.SECONDS["quick"] = 0.0  # function is looked at here, not speed
    usual = gradient.RANKS
    gradient.RANKS = alone_ranks or usual
    try:
        report = run(Plan.from_json(plan_json), Options(extent="quick", **options))
    finally:
        gradient.RANKS = usual
    assert isinstance(report, Report)
    return msgspec.json.encode(report)


def refused(plan_json, **options):
    """The error of a workload that cannot work; None where it can."""
    try:
        run(Plan.from_json(plan_json), Options(extent="quick", **options))
    except InputError as error:
        return str(error)
    return None


def threads():
    """The validator's own that are left."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("isobatch")]


def failed(report):
    """Returns the diagnoses of failures but `ranks`: windows of no length tell nothing of speed."""
    failures = [proof for proof in report.proofs if proof.verdict is Verdict.FAIL]
    return {proof.name: proof.diagnosis for proof in failures if proof.name != "ranks"}
