"""`ib.probe`: in this process, or in ranks of this host."""

from __future__ import annotations

import os
import signal
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
from isobatch.probing.budget import Budget
from isobatch.probing.concluding import advance
from isobatch.probing.ending import nothing_known, with_rates
from isobatch.probing.options import Measure, ProbeOptions, seconds_of
from isobatch.probing.report import Probe
from isobatch.probing.rounds import Rounds
from isobatch.probing.scope import Scope
from isobatch.probing.trials import Journal

REFUSED, FOUND, LOST, TRIALS = "refused.msgpack", "found.msgpack", "lost.txt", "trials.jsonl"
PATIENCE = 60.0
"""How much longer a rank waits for another one than the budget lasts: the watch that ends them knows more than a time-out."""
OVER = 2.0
"""So long after the budget ranks whose workload does not return are ended."""
LEAST_SECONDS = 20.0
"""How long ranks may take to meet, whatever the budget: what ends a run before would say less."""


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
        measure: "lr": the best learning rate at the tuned and the planned batch at equal samples, with its interval, and
            the exponent between them; "same": that the plan's split, and others, train the same weights as the tuned recipe, or
            of a plan whose batch grows the gap of the loss; "critical": the critical batch by branched training.
        budget: what it may take, from this call to its return, with importing torch, starting and stopping ranks: "90s", "10m", "2h", or
            seconds. It is kept: a trial that would exceed it is given up, and the trials before it say what they can.
        nproc_per_node: ranks on this host; 1: in this process.
        say: called with a line of progress.
        clock: seconds, for the budget of a probe in this process.
        options: the other fields of `isobatch.probing.options.ProbeOptions`: seeds, batches, samples, step, checkpoint, trials,
            tolerance, smoothing, device.

    Returns:
        What was found; `.show()` has it in words, `.to_recipe()` the recipe with the exponent as its power. `stopped` says what ended
        it early: "budget", "interrupted" (Ctrl-C, with ranks also SIGTERM) or a lost rank.

    Raises:
        InputError: the plan is infeasible, an argument is out of range, the workload cannot be reseeded, its loss is not finite
            from the start or never moves, or nothing was known when the budget ended; the message says what was tried.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=16, lr=0.1, optimizer="sgd")
    >>> ib.probe(ib.plan(recipe, 2), measure="same", budget="5m").same.same
    True
    """
    called, begun = time.monotonic(), clock()
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

        counted = Budget(asked.budget_seconds, clock=clock, begun=begun)
        return experiment(plan, asked, Alone(asked.device), factory=factory, say=say, budget=counted)
    return _launched(plan, asked, nproc_per_node, factory, called, talk=say is not None)


def _launched(
    plan: Plan,
    options: ProbeOptions,
    nproc: int,
    factory: Callable[[], Any] | None,
    begun: float,
    *,
    talk: bool,
) -> Probe:
    """Probes in ranks. Where they end before they could answer, what they left says what is known: their trials, or the splits and
    branches that were trained."""
    budget = Budget(options.budget_seconds, begun=begun)
    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        trials = options.trials
        if options.measure == "lr" and trials is None:
            trials = os.fspath(Path(folder) / TRIALS)
        stopped = _run_ranks(nproc, (plan.to_json(), options, folder, factory, begun, talk, trials))
        refused, found = Path(folder) / REFUSED, Path(folder) / FOUND
        if refused.exists():
            raise _refusal(refused)
        if not found.exists():
            raise nothing_known(options, budget.spent(), None, 0, stopped)
        ended, fields = msgspec.msgpack.decode(found.read_bytes())
        probe = msgspec.structs.replace(msgspec.convert(fields, Probe), seconds=budget.spent())
        return probe if ended else _from_what_is_left(plan, options, trials, factory, probe, stopped)


def _run_ranks(nproc: int, told: tuple[Any, ...]) -> str:
    """Runs the ranks; gives what ended them, should they not have answered."""
    from isobatch.validate.launching import start_ranks

    folder, factory = Path(told[2]), told[3]
    try:
        lost = start_ranks(rank, told, nproc, fork=True if factory else None)
    except InputError:
        if not (folder / REFUSED).exists():
            raise
        return "refused"
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # torch's own, which is imported only by now
        if getattr(error, "sigval", None) is None:
            raise
        return "interrupted"
    text = (folder / LOST).read_text(encoding="utf-8") if (folder / LOST).exists() else None
    if text is not None and "over the phase's limit" in text:
        return "budget"
    return f"a rank was lost ({text or lost or 'no rank reported anything'})"


def _refusal(path: Path) -> InputError:
    message, field, file = msgspec.msgpack.decode(path.read_bytes())
    return InputError(message, field=field, file=file)


def _from_what_is_left(
    plan: Plan,
    options: ProbeOptions,
    trials: str | None,
    factory: Callable[[], Any] | None,
    probe: Probe,
    stopped: str,
) -> Probe:
    """The finding of ranks that ended before they could answer."""
    if options.measure != "lr":
        if probe.same is None and probe.critical is None:
            raise nothing_known(options, probe.seconds, None, 0, stopped)
        return msgspec.structs.replace(probe, stopped=stopped)
    from isobatch.probing.experiment import key_of, name_of

    journal = Journal(trials, key_of(plan, options, name_of(options, factory)))
    if journal.samples is None:
        raise nothing_known(options, probe.seconds, None, 0, stopped)
    scope = Scope(plan, options, stand_in=probe.stand_in)
    rounds = Rounds(scope, journal, journal.samples)
    advance(rounds)
    return with_rates(probe, rounds, stopped)


def rank(
    plan_json: str,
    options: ProbeOptions,
    folder: str,
    factory: Callable[[], Any] | None,
    begun: float,
    talk: bool,
    trials: str | None,
) -> str | None:
    """One rank of a probe. Gives the text of an InputError, and leaves it in the folder."""
    import torch

    from isobatch.probing.experiment import experiment
    from isobatch.validate.options import Options
    from isobatch.validate.ranks.group import Group
    from isobatch.validate.ranks.pulse import GRACE_SECONDS

    # Ctrl-C reaches all processes of a terminal: the first one reports, and this one ends without a traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.stdout = sys.stderr  # what a workload prints is no part of the finding
    if factory is not None:
        torch.set_num_threads(1)  # a fork of a notebook lacks its OpenMP threads
    budget = Budget(options.budget_seconds, begun=begun)
    seconds = max(budget.left(), LEAST_SECONDS)
    group = Group(Options(phase_seconds=seconds + PATIENCE, device=options.device))
    group.pulse.on_loss = lambda text: write_whole(Path(folder) / LOST, text.encode())
    first = group.rank == 0

    def publish(probe: Probe, *, ended: bool = False) -> None:
        if first:
            told = (ended, msgspec.to_builtins(probe))
            write_whole(Path(folder) / FOUND, msgspec.msgpack.encode(told))

    try:
        with group.pulse.phase("trials"):
            group.pulse.grant(OVER - PATIENCE - GRACE_SECONDS)
            group.connect()
            budget.reserve_stopping()
            found = experiment(
                Plan.from_json(plan_json),
                options,
                group,
                factory=factory,
                say=(lambda line: print(line, file=sys.stderr, flush=True)) if talk and first else None,
                publish=publish,
                budget=budget,
                trials=trials,
            )
            publish(found, ended=True)
        group.close()
    except InputError as error:
        if first or not (Path(folder) / REFUSED).exists():
            said = (error.message, error.field, error.file)
            write_whole(Path(folder) / REFUSED, msgspec.msgpack.encode(said))
        return str(error)
    except Exception as error:
        group.pulse.fail(f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    return None
