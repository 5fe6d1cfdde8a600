"""A probe, as each rank runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.probing.budget import Budget
from isobatch.probing.critical import critical
from isobatch.probing.ending import nothing_known, with_rates
from isobatch.probing.lab import Lab
from isobatch.probing.options import ProbeOptions
from isobatch.probing.ranks import Ranks, agree
from isobatch.probing.report import Probe
from isobatch.probing.same import same
from isobatch.probing.scope import batches_of, tuned_batch
from isobatch.probing.search import Search
from isobatch.probing.training import Expired
from isobatch.probing.trials import Journal
from isobatch.validate.ranks.group import Group
from isobatch.words import duration

Say = Callable[[str], None]
Publish = Callable[[Probe], None]


def experiment(
    plan: Plan,
    options: ProbeOptions,
    ranks: Ranks | Group,
    *,
    factory: Callable[[], Any] | None = None,
    say: Say | None = None,
    publish: Publish | None = None,
    budget: Budget | None = None,
    trials: str | None = None,
) -> Probe:
    """Measures what the options ask for; every rank calls it.

    Args:
        plan, options, factory: as in `ib.probe`.
        ranks: the processes.
        say: called with a line of progress.
        publish: called with what is known as soon as there is something, for who survives this process.
        budget: has begun; None: begins now.
        trials: where they are kept; None: where the options say.

    Raises:
        InputError: as `ib.probe`.
    """
    budget = budget if budget is not None else Budget(options.budget_seconds)
    say, publish = say or _quiet, publish or _quiet
    check_stand_in(plan, options, factory)
    journal = _journal(trials or options.trials, key_of(plan, options, name_of(options, factory)), ranks)
    probe = Probe(
        workload=name_of(options, factory),
        stand_in=factory is None and options.workload is None,
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
        trials_file=options.trials,
        reused=journal.reused,
        notes=tuple(_notes(plan, options)),
    )
    with _threads(1 if probe.stand_in else torch.get_num_threads()):
        begun = budget.spent()
        try:
            lab = Lab(plan, options, ranks, factory=factory, journal=journal, budget=budget)
            publish(msgspec.structs.replace(probe, beside_seconds=budget.spent()))
            say(
                f"Ready after {duration(budget.spent())} ({duration(begun)} of them to start). Budget left: "
                f"{duration(max(budget.left(), 0))}."
            )
            found = _measured(lab, probe, say, publish)
        except Expired:
            raise nothing_known(options, budget.spent(), None, 0) from None
        except KeyboardInterrupt:
            raise nothing_known(options, budget.spent(), None, 0, "interrupted") from None
    return msgspec.structs.replace(found, seconds=budget.spent())


def _measured(lab: Lab, probe: Probe, say: Say, publish: Publish) -> Probe:
    """A probe with what was found."""
    if lab.options.measure == "same":
        alike, stopped = same(lab, lambda found: publish(msgspec.structs.replace(probe, same=found)))
        return msgspec.structs.replace(probe, same=alike, stopped=stopped)
    if lab.options.measure == "critical":
        branched, stopped = critical(
            lab, lambda found: publish(msgspec.structs.replace(probe, critical=found))
        )
        return msgspec.structs.replace(probe, critical=branched, stopped=stopped)
    beside = lab.budget.spent()
    search = Search(lab, say)
    stopped = search.run()
    if search.rounds is None:
        raise nothing_known(lab.options, lab.budget.spent(), None, 0, stopped)
    ended = msgspec.structs.replace(probe, beside_seconds=beside, seconds=lab.budget.spent())
    return with_rates(ended, search.rounds, stopped)


def check_stand_in(plan: Plan, options: ProbeOptions, factory: Callable[[], Any] | None) -> None:
    """Refuses to ask the built-in workload for what it cannot know.

    Raises:
        InputError: the learning rate of one batch alone is asked for.
    """
    stand_in = factory is None and options.workload is None
    if options.measure == "lr" and stand_in and len(batches_of(plan, options)) == 1:
        raise InputError(
            "the batch stays, and the built-in workload knows nothing of your learning rate: give your training as "
            "package.module:factory, or other --batches to see how a learning rate follows the batch. Whether the plan trains the "
            "same as the tuned recipe, --same says",
            field="workload",
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many of torch's threads. The built-in workload is too small for several: on a busy machine they wait for each other, and a
    step takes hundreds of times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _quiet(_: object) -> None:
    """Nobody listens."""


def name_of(options: ProbeOptions, factory: Callable[[], Any] | None) -> str:
    if factory is not None:
        return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', '?')}"
    return options.workload or "built-in"


def _journal(path: str | None, key: str, ranks: Ranks | Group) -> Journal:
    """The trials that are kept; rank 0 alone reads and writes the file."""
    fault, journal = None, Journal(None, key)
    try:
        if ranks.rank == 0:
            journal = Journal(path, key)
    except InputError as error:
        fault = error
    agree(ranks, fault)
    told = ranks.from_first((journal.samples, journal.found, journal.reused))
    if ranks.rank:
        journal.samples, journal.found, journal.reused = told
    return journal


def key_of(plan: Plan, options: ProbeOptions, name: str) -> str:
    """What makes a probe: the recipe, the plan's batch and rule, the workload and the checkpoint. More seeds go on with the file."""
    checkpoint = None
    if options.checkpoint is not None and Path(options.checkpoint).exists():
        checkpoint = hashlib.sha256(Path(options.checkpoint).read_bytes()).hexdigest()
    made = plan.require()
    parts = [repr(plan.recipe), made.effective_batch, made.lr, str(plan.settings.rule), name, checkpoint]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _notes(plan: Plan, options: ProbeOptions) -> list[str]:
    notes = []
    if plan.recipe.precision == "fp16" and options.measure != "same":
        notes.append("the recipe's fp16 was trained as bf16, which needs no loss scaling.")
    if plan.recipe.ramp is not None:
        notes.append("the ramp of the batch was left out: trials have the full batch.")
    planned = plan.require().effective_batch
    if options.measure != "critical" and tuned_batch(plan) == planned != plan.recipe.effective_batch:
        notes.append(
            f"the tuned batch, {plan.recipe.effective_batch:,}, was not trained: {planned:,} is within a tenth of it and stands for it."
        )
    if options.measure == "lr" and options.checkpoint is not None:
        notes.append("trials go on from the checkpoint at a constant learning rate after a tenth of warmup.")
    return notes
