"""`ib.probe`: measures in this process, or in ranks of this host."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from isobatch.errors import InputError, must_be, unknown
from isobatch.files.whole import write_whole
from isobatch.planning.plan import Plan
from isobatch.probing.options import Budget, Expired, Measure, ProbeOptions, budget_text, seconds_of
from isobatch.probing.result import Probe
from isobatch.words import duration

REFUSED, FOUND, LOST = "refused.pickle", "found.pickle", "lost.txt"
"""Files of a folder that the ranks and the process that started them share."""
PATIENCE_SECONDS = 60.0
"""How much longer a rank waits for another one than the budget lasts: the watch that ends them knows more than a time-out."""
OVER_SECONDS = 2.0
"""So long after the budget ranks whose workload does not return are ended."""
MIN_MEETING_SECONDS = 20.0
"""How long ranks may take to meet, whatever the budget: what ends a run before would say less."""
NEEDED = 1.25
"""Times the budget that was spent: less is not advised."""
FIRST = {
    "lr": "the first round of trials was complete",
    "same": "the first split was trained",
    "critical": "two branches were trained",
}
"""What must be done for something to be known."""


def probe(
    plan: Plan | str | os.PathLike[str],
    workload: str | Callable[[], Any] | None = None,
    *,
    measure: Measure = "lr",
    budget: str | float = "10m",
    nproc_per_node: int = 1,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Probe:
    """Trains for a short time, to measure the assumptions of a scaling rule.

    Args:
        plan: a plan, or the path of one.
        workload: "package.module:factory" of an `isobatch.validate.Workload`, or the factory; None: the built-in one, which can only
            tell whether a plan that keeps the batch trains the same.
        measure: "lr": the best learning rate at the tuned and the planned batch at equal samples, with its interval, and
            the exponent between them; "same": that the plan's split, and others, train the same weights as the tuned recipe, or
            of a plan whose batch grows the gap of the loss; "critical": the critical batch by branched training.
        budget: what it may take, from this call to its return, with importing torch, starting and stopping ranks: "90s", "10m", "2h", or
            seconds. A trial that would exceed it is given up, and the trials before it say what they can.
        nproc_per_node: ranks on this host; 1: in this process.
        say: called with a line of progress.
        options: the other fields of `isobatch.probing.options.ProbeOptions`: seeds, batches, samples, checkpoint, tolerance, device.

    Returns:
        What was found; `.show()` has it in words, `.to_recipe()` the recipe with the exponent as its power. `stopped` says what ended
        it early: "budget", "interrupted" (Ctrl-C, with ranks also SIGTERM) or a lost rank.

    Raises:
        InputError: the plan is infeasible, an argument is out of range, the workload is missing or cannot be reseeded, its loss is
            not finite from the start or never moves, or nothing was known when the budget ended.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=16, lr=0.1, optimizer="sgd")
    >>> ib.probe(ib.plan(recipe, 2), measure="same", budget="5m").same.same
    True
    """
    clock = Budget(seconds_of(budget))
    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    known = sorted(set(ProbeOptions.__struct_fields__) - {"measure", "workload", "budget_seconds"})
    if strange := next((one for one in options if one not in known), None):
        raise unknown("argument", strange, known, field=strange)
    if "batches" in options:
        options["batches"] = tuple(options["batches"])
    name, factory = (workload, None) if not callable(workload) else (None, workload)
    asked = ProbeOptions(measure=measure, workload=name, budget_seconds=clock.seconds, **options)
    if nproc_per_node < 1:
        raise must_be("at least 1", nproc_per_node, field="nproc_per_node")
    plan.require()
    if nproc_per_node == 1:
        from isobatch.probing.training import Alone

        return experiment(plan, asked, Alone(asked.device), clock, factory, say=say)
    return _launched(plan, asked, nproc_per_node, factory, clock, talk=say is not None)


def experiment(
    plan: Plan,
    options: ProbeOptions,
    ranks: Any,
    budget: Budget,
    factory: Callable[[], Any] | None = None,
    *,
    say: Callable[[str], None] | None = None,
    publish: Callable[[Probe], None] | None = None,
) -> Probe:
    """Measures by the options; every rank calls it.

    Args:
        plan, options, factory: as in `ib.probe`.
        ranks: the processes.
        budget: has begun.
        say: called with a line of progress.
        publish: called with what is known, each time that it is more, for who survives this process.

    Raises:
        InputError: as `ib.probe`.
    """
    import torch

    from isobatch.probing.critical import measure_critical
    from isobatch.probing.lab import Lab, tuned_batch
    from isobatch.probing.learning_rate import measure_lr
    from isobatch.probing.same import measure_same

    probe = Probe(
        workload=_name_of(options, factory),
        optimizer=plan.recipe.optimizer,
        policy=str(plan.policy),
        rule=plan.rule or "none",
        tuned_batch=tuned_batch(plan),
        planned_batch=plan.require().effective_batch,
        ranks=ranks.world_size,
        device=ranks.device.type,
        torch=str(torch.__version__),
        seconds=budget.spent(),
        budget_seconds=budget.seconds,
        recipe=plan.recipe,
        measure=options.measure,
        notes=tuple(_notes(plan, options, tuned_batch(plan))),
    )
    finding: Callable[[], Any] | None = None
    stopped, needed = None, None

    def with_finding() -> Probe:
        made = None if finding is None else finding()
        return msgspec.structs.replace(probe, **{options.measure: made})

    def known(found: Callable[[], Any]) -> None:
        nonlocal finding
        finding = found
        if publish is not None:
            publish(with_finding())

    measures: dict[str, Callable[..., None]] = {
        "lr": measure_lr,
        "same": measure_same,
        "critical": measure_critical,
    }
    lab = None
    try:
        lab = Lab(plan, options, ranks, budget, factory)
        measures[options.measure](lab, say or _quiet, known)
    except Expired:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if stopped == "budget" and lab is not None:
        needed = max(lab.needed_seconds or 0.0, NEEDED * budget.seconds)
    if finding is None:
        raise _nothing_known(options, stopped, budget.spent(), needed)
    found = with_finding()
    return msgspec.structs.replace(found, stopped=stopped, needed_seconds=needed, seconds=budget.spent())


def _nothing_known(
    options: ProbeOptions, stopped: str | None, seconds: float, needed: float | None = None
) -> InputError:
    """Refuses a probe without any finding; says which budget would do."""
    why = {
        "budget": f"{duration(options.budget_seconds)} were spent before",
        "interrupted": f"interrupted after {duration(seconds)}, before",
    }.get(str(stopped), f"{stopped} before")
    text = f"{why} {FIRST[options.measure]}, so that nothing can be said."
    if needed is not None:
        text += f" A budget of {budget_text(needed)} would likely do."
    elif stopped == "budget":
        more = "try the default of 10m" if options.budget_seconds < 600 else "raise the budget"
        text += f" Getting ready alone took that long: {more}."
    return InputError(text, field="budget" if stopped == "budget" else None)


def _quiet(_: str) -> None:
    """Ignores a line."""


def _name_of(options: ProbeOptions, factory: Callable[[], Any] | None) -> str:
    if factory is not None:
        return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', '?')}"
    return options.workload or "built-in"


def _notes(plan: Plan, options: ProbeOptions, tuned: int) -> list[str]:
    """Lists departures from the plan."""
    notes = []
    if plan.recipe.precision == "fp16" and options.measure != "same":
        notes.append("the recipe's fp16 was trained as bf16, which needs no loss scaling.")
    if plan.recipe.ramp is not None:
        notes.append("the ramp of the batch was left out: trials have the full batch.")
    planned, own = plan.require().effective_batch, plan.recipe.effective_batch
    if options.measure != "critical" and tuned == planned != own:
        notes.append(
            f"the tuned batch, {own:,}, was not trained: {planned:,}, within a tenth of it, was instead."
        )
    if options.measure == "lr" and options.checkpoint is not None:
        notes.append("trials go on from the checkpoint at a constant learning rate after a tenth of warmup.")
    return notes


def _launched(
    plan: Plan,
    options: ProbeOptions,
    nproc: int,
    factory: Callable[[], Any] | None,
    budget: Budget,
    *,
    talk: bool,
) -> Probe:
    """Probes in ranks. Where they end before they could answer, what rank 0 published last says what is known."""
    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        stopped = _run_ranks(nproc, (plan.to_json(), options, folder, factory, budget.begun, talk))
        refused, found = Path(folder) / REFUSED, Path(folder) / FOUND
        if refused.exists():
            message, field, file = pickle.loads(refused.read_bytes())
            raise InputError(message, field=field, file=file)
        if not found.exists():
            raise _nothing_known(options, stopped, budget.spent())
        ended, probe = pickle.loads(found.read_bytes())
    last: Probe = msgspec.structs.replace(probe, seconds=budget.spent())
    return last if ended else msgspec.structs.replace(last, stopped=stopped)


def _run_ranks(nproc: int, args: tuple[Any, ...]) -> str:
    """Runs the ranks; returns the cause of their end, should they not have answered."""
    from isobatch.validate.launching import start_ranks

    folder, factory = Path(args[2]), args[3]
    try:
        lost = start_ranks(rank, args, nproc, fork=True if factory else None)
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


def rank(
    plan_json: str,
    options: ProbeOptions,
    folder: str,
    factory: Callable[[], Any] | None,
    begun: float,
    talk: bool,
) -> None:
    """Runs one rank of a probe. What it refuses is left in the folder; its end ends the others."""
    import torch

    from isobatch.validate.options import Options
    from isobatch.validate.ranks.group import Group
    from isobatch.validate.ranks.pulse import GRACE_SECONDS

    # Ctrl-C reaches all processes of a terminal: the first one reports, and this one ends without a traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.stdout = sys.stderr  # what a workload prints is no part of the finding
    if factory is not None:
        torch.set_num_threads(1)  # a fork of a notebook lacks its OpenMP threads
    budget = Budget(options.budget_seconds, begun)
    seconds = max(budget.left(), MIN_MEETING_SECONDS)
    group = Group(Options(phase_seconds=seconds + PATIENCE_SECONDS, device=options.device))
    group.pulse.on_loss = lambda text: write_whole(Path(folder) / LOST, text.encode())
    first = group.rank == 0

    def publish(probe: Probe, *, ended: bool = False) -> None:
        if first:
            write_whole(Path(folder) / FOUND, pickle.dumps((ended, probe)))

    try:
        with group.pulse.phase("trials"):
            group.pulse.grant(OVER_SECONDS - PATIENCE_SECONDS - GRACE_SECONDS)
            group.connect()
            budget.reserve_stopping()
            found = experiment(
                Plan.from_json(plan_json),
                options,
                group,
                budget,
                factory,
                say=(lambda line: print(line, file=sys.stderr, flush=True)) if talk and first else None,
                publish=publish,
            )
            publish(found, ended=True)
        group.close()
    except InputError as error:  # perhaps on this rank alone
        if not (Path(folder) / REFUSED).exists():
            refusal = error.message, error.field, error.file
            write_whole(Path(folder) / REFUSED, pickle.dumps(refusal))
        sys.stderr.flush()
        os._exit(1)
    except Exception as error:
        group.pulse.fail(f"{type(error).__name__}: {error}".splitlines()[0])
        raise
