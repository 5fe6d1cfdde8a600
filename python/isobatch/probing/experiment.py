"""A probe, as each rank runs it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.probing.critical import critical
from isobatch.probing.lab import Lab, tuned_batch
from isobatch.probing.options import ProbeOptions
from isobatch.probing.ranks import Ranks, agree
from isobatch.probing.report import CriticalFinding, LrFinding, Probe, SameFinding
from isobatch.probing.same import same
from isobatch.probing.search import Search
from isobatch.probing.trials import Journal
from isobatch.validate.ranks.group import Group

Say = Callable[[str], None]


def experiment(
    plan: Plan,
    options: ProbeOptions,
    ranks: Ranks | Group,
    *,
    factory: Callable[[], Any] | None = None,
    say: Say | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Probe:
    """Measures what the options ask for; every rank calls it.

    Raises:
        InputError: as `ib.probe`.
    """
    begun = clock()
    stand_in = factory is None and options.workload is None
    batches = batches_of(plan, options)
    if options.measure == "lr" and stand_in and len(batches) == 1:
        raise InputError(
            "the batch stays, and the built-in workload knows nothing of your learning rate: give your training as "
            "package.module:factory, or other --batches to see how a learning rate follows the batch",
            field="workload",
        )
    journal = _journal(plan, options, ranks, factory)
    lr: LrFinding | None = None
    alike: SameFinding | None = None
    branched: CriticalFinding | None = None
    with _threads(1 if stand_in else torch.get_num_threads()):
        lab = Lab(plan, options, ranks, factory=factory, journal=journal, clock=clock)
        if options.measure == "lr":
            lr = Search(lab, batches, say or _quiet).run()
        elif options.measure == "same":
            alike = same(lab)
        else:
            branched = critical(lab)
    return Probe(
        workload=_name(options, factory),
        stand_in=stand_in,
        optimizer=plan.recipe.optimizer,
        policy=str(plan.policy),
        rule=plan.rule or "none",
        tuned_batch=tuned_batch(plan),
        planned_batch=plan.require().effective_batch,
        ranks=ranks.world_size,
        device=ranks.device.type,
        torch=str(torch.__version__),
        seconds=clock() - begun,
        budget_seconds=options.budget_seconds,
        recipe=plan.recipe,
        lr=lr,
        same=alike,
        critical=branched,
        trials=tuple(journal.found),
        reused=journal.reused,
        notes=tuple(_notes(plan, options)),
    )


def batches_of(plan: Plan, options: ProbeOptions) -> list[int]:
    """The batches to measure, the tuned one first."""
    first = tuned_batch(plan)
    others = {plan.require().effective_batch, *options.batches} - {first}
    return [first, *sorted(others)]


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


def _quiet(line: str) -> None:
    del line


def _name(options: ProbeOptions, factory: Callable[[], Any] | None) -> str:
    if factory is not None:
        return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', '?')}"
    return options.workload or "built-in"


def _journal(
    plan: Plan, options: ProbeOptions, ranks: Ranks | Group, factory: Callable[[], Any] | None
) -> Journal:
    """The trials that are kept; rank 0 alone reads and writes the file."""
    key = _key(plan, options, _name(options, factory))
    fault, journal = None, Journal(None, key)
    try:
        if ranks.rank == 0:
            journal = Journal(options.trials, key)
    except InputError as error:
        fault = error
    agree(ranks, fault)
    samples, found, reused = ranks.from_first((journal.samples, journal.found, journal.reused))
    if ranks.rank:
        journal.samples, journal.found, journal.reused = samples, found, reused
    return journal


def _key(plan: Plan, options: ProbeOptions, name: str) -> str:
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
    if options.measure == "lr" and options.checkpoint is not None:
        notes.append("trials go on from the checkpoint at a constant learning rate after a tenth of warmup.")
    return notes
