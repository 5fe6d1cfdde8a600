"""`ib.probe`: in this process, or in ranks of this host."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from isobatch.errors import InputError, must_be
from isobatch.files.whole import write_whole
from isobatch.planning.plan import Plan
from isobatch.probing.options import Measure, ProbeOptions, seconds_of
from isobatch.probing.report import Probe

REFUSED, FOUND = "refused.txt", "found.json"
SECONDS_OVER = 300.0
"""How long after the budget a rank may still wait for another."""


def probe(
    plan: Plan | str | os.PathLike[str],
    workload: str | Callable[[], Any] | None = None,
    *,
    measure: Measure = "lr",
    budget: str | float = "10m",
    nproc_per_node: int = 1,
    say: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Probe:
    """Short trainings that measure what a scaling rule assumes.

    Args:
        plan: a plan, or the path of one.
        workload: "package.module:factory" of an `isobatch.validate.Workload`, or the factory; None: the built-in one, which is a
            stand-in and no model of your training.
        measure: "lr": the best learning rate at the tuned and the planned batch at equal samples, with a bootstrap interval, and
            the exponent between them; "same": that the plan's split, and others, train the same weights as the tuned recipe, or
            of a plan whose batch grows the gap of the loss; "critical": the critical batch by branched training.
        budget: what it may take: "90s", "10m", "2h", or seconds. It is kept: a trial that would exceed it is given up.
        nproc_per_node: ranks on this host; 1: in this process.
        say: called with a line of progress.
        clock: seconds, for the budget of a probe in this process.
        options: the other fields of `isobatch.probing.options.ProbeOptions`: seeds, batches, samples, step, checkpoint, trials,
            tolerance, smoothing, device.

    Returns:
        What was found; `.show()` has it in words, `.to_recipe()` the recipe with the exponent as its power.

    Raises:
        InputError: the plan is infeasible, an argument is out of range, the workload cannot be reseeded, its loss is not finite
            from the start or never moves, or the budget is too small; the message says what was tried.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=16, lr=0.1, optimizer="sgd")
    >>> ib.probe(ib.plan(recipe, 2), measure="same", budget="5m").same.same
    True
    """
    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    name = workload if isinstance(workload, str) else None
    known = set(ProbeOptions.__struct_fields__) - {"measure", "workload", "budget_seconds"}
    if strange := [one for one in options if one not in known]:
        from isobatch.errors import unknown

        raise unknown("argument", strange[0], sorted(known), field=strange[0])
    if "batches" in options:
        options["batches"] = tuple(options["batches"])
    asked = ProbeOptions(
        measure=measure, workload=name, budget_seconds=seconds_of(budget), **options
    ).checked()
    if nproc_per_node < 1:
        raise must_be("at least 1", nproc_per_node, field="nproc_per_node")
    plan.require()
    factory = workload if callable(workload) else None
    if nproc_per_node == 1:
        from isobatch.probing.experiment import experiment
        from isobatch.probing.ranks import Alone

        ranks = Alone(asked.device)
        return experiment(plan, asked, ranks, factory=factory, say=say, clock=clock)
    return _launched(plan, asked, nproc_per_node, factory, talk=say is not None)


def _launched(
    plan: Plan, options: ProbeOptions, nproc: int, factory: Callable[[], Any] | None, *, talk: bool
) -> Probe:
    from isobatch.validate.launching import start_ranks

    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        lost = start_ranks(
            rank, (plan.to_json(), options, folder, factory, talk), nproc, fork=True if factory else None
        )
        found, refused = Path(folder) / FOUND, Path(folder) / REFUSED
        if found.exists():
            return msgspec.convert(msgspec.msgpack.decode(found.read_bytes()), Probe)
        if refused.exists():
            raise InputError(refused.read_text(encoding="utf-8"))
        raise InputError(f"a rank was lost: {lost or 'no rank reported anything'}")


def rank(
    plan_json: str, options: ProbeOptions, folder: str, factory: Callable[[], Any] | None, talk: bool
) -> str | None:
    """One rank of a probe. Gives the text of an InputError, and leaves it in the folder."""
    import torch

    from isobatch.probing.experiment import experiment
    from isobatch.validate.options import Options
    from isobatch.validate.ranks.group import Group

    if factory is not None:
        torch.set_num_threads(1)  # a fork of a notebook lacks its OpenMP threads
    limit = options.budget_seconds + SECONDS_OVER
    group = Group(Options(phase_seconds=limit, device=options.device))
    group.pulse.on_loss = lambda text: write_whole(Path(folder) / REFUSED, f"a rank was lost {text}".encode())
    first = group.rank == 0
    try:
        group.connect()
        say = (lambda line: print(line, file=sys.stderr, flush=True)) if talk and first else None
        found = experiment(Plan.from_json(plan_json), options, group, factory=factory, say=say)
        if first:
            write_whole(Path(folder) / FOUND, msgspec.msgpack.encode(msgspec.to_builtins(found)))
        group.close()
    except InputError as error:
        if first or not (Path(folder) / REFUSED).exists():
            write_whole(Path(folder) / REFUSED, str(error).encode())
        return str(error)
    except Exception as error:
        group.pulse.fail(f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    return None
