"""A batch that grows, stage by stage; and megatron's count of batches and steps, by megatron-core's own calculator."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence, Sized
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from isobatch.diagnosis.causes import Cause
from isobatch.integrations.torch.sampler import PlanSampler
from isobatch.planning.plan import Plan
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.verdict import Proof, Verdict, unchecked

MOST_STAGES = 16
MOST_STEPS = 1_000_000  # of a ramp, in megatron's own count

Stage = tuple[int, int]
"""Samples consumed before its first step, and its batch."""


def stages(plan: Plan) -> list[Stage]:
    """The stages of a plan's ramp; one where it has none.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=48, lr=0.1, duration="50st", ramp="16 16 100", micro_batch=8)
    >>> stages(ib.plan(recipe, 2))
    [(0, 16), (64, 32), (128, 48)]
    """
    full = plan.effective_batch or 1
    found, consumed = [], plan.consumed
    for batch, until, _ in plan.recipe.core.stages(full, plan.consumed) or [(full, None, 1.0)]:
        if until is None:
            found.append((consumed, batch))
        elif consumed < until:
            found.append((consumed, batch))
            consumed += -(-(until - consumed) // batch) * batch
    return found


def _some(found: Sequence[Stage]) -> list[Stage]:
    """All stages, or `MOST_STAGES` of them, the first and the last included."""
    if len(found) <= MOST_STAGES:
        return list(found)
    return [found[k * (len(found) - 1) // (MOST_STAGES - 1)] for k in range(MOST_STAGES)]


def prove_stages(plan: Plan, group: Group, dataset: Sized) -> Proof:
    """The effective batch of the first step of each stage, by the sample ids of all replicas."""
    size, replicas, micro = len(dataset), plan.data_parallel or 1, plan.micro_batch or 1
    # A step at the end of an epoch is cut short there.
    picked = [(at, batch) for at, batch in _some(stages(plan)) if at % size + batch <= size]
    wrong, served = [], []
    for at, batch in picked:
        # Without a shuffle a step's samples lie one behind the other: what is served elsewhere is counted at the end.
        counts, largest = torch.zeros(batch + 1, dtype=torch.int32), 0
        for replica in range(group.rank, replicas, group.world_size):
            place = {"epoch": at // size, "offset": at % size}
            sampler = PlanSampler(dataset, plan, rank=replica, shuffle=False, **place)
            for ids, (weight, last) in zip(sampler, sampler.weights(), strict=False):
                if weight:
                    largest = max(largest, len(ids))
                    places = torch.tensor(ids) - at % size
                    places[(places < 0) | (places >= batch)] = batch
                    counts.index_add_(0, places, torch.ones(len(ids), dtype=torch.int32))
                if last:
                    break
        group.total(counts)
        largest = int(group.slowest([float(largest)])[0])
        different = int((counts > 0).sum())
        served.append(different)
        if not (counts[:batch] == 1).all() or counts[batch] or largest > micro:
            wrong.append(
                f"{different} different samples after {at}, {batch} planned, in micro-batches of up to {largest}, {micro} planned"
            )
    batches = [batch for _, batch in picked]
    text = f"{len(picked)} of {len(stages(plan))} stages from {batches[0]} to {batches[-1]} samples, by their first steps"
    return _proof(wrong, text, Cause.ANOTHER_RAMP, {"samples": batches, "unique_samples": served})


def _proof(wrong: list[str], text: str, cause: Cause, values: dict[str, Any]) -> Proof:
    return Proof(
        name="effective_batch",
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        text="; ".join(wrong) or text,
        diagnosis=cause.likely() if wrong else None,
        gate=0,
        values=values,
    )


def prove_megatron(plan: Plan) -> list[Proof]:
    """The accumulation at each stage, and the steps of the whole run. Which samples megatron's own samplers serve is not
    proven: they are a part of its training program, which is in no package."""
    names = "effective_batch", "epoch"
    found = _calculators()
    if found is None:
        text = "the convention is megatron, and megatron-core, which has its calculator, is not installed"
        return [unchecked(name, text) for name in names]
    ramp = (plan.recipe.ramp or "").split()
    if any(":" in word for word in ramp):
        text = "megatron-core's calculator knows no ramp by tokens"
        return [unchecked(name, text) for name in names]
    try:
        calculator = _calculator(found, plan)
        batches = _batches(plan, calculator)
        steps = _steps(plan, _calculator(found, plan))
    except AssertionError as error:  # how it says that a batch does not divide
        return [_proof([f"megatron-core refuses: {error}"], "", Cause.MEGATRON_COUNTS, {})]
    return [batches, steps]


def _calculators() -> ModuleType | None:
    """megatron-core's module of that name, loaded alone: the whole package takes seconds, and warns of what it lacks."""
    try:
        version("megatron-core")
    except PackageNotFoundError:
        return None
    package = importlib.util.find_spec("megatron")
    for folder in [] if package is None else package.submodule_search_locations or []:
        file = Path(folder) / "core" / "num_microbatches_calculator.py"
        spec = importlib.util.spec_from_file_location("isobatch_megatron_calculator", file)
        if file.exists() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


def _calculator(module: ModuleType, plan: Plan) -> Any:
    shape = {
        "global_batch_size": plan.effective_batch,
        "micro_batch_size": plan.micro_batch,
        "data_parallel_size": plan.data_parallel,
        "decrease_batch_size_if_needed": False,
        "rank": 1,  # it logs on rank 0
    }
    if plan.recipe.ramp is None:
        return module.ConstantNumMicroBatchesCalculator(**shape)
    start, increment, samples = map(int, plan.recipe.ramp.split())
    first = stages(plan)[0][1]  # the plan scales a ramp with its batch
    return module.RampupBatchsizeNumMicroBatchesCalculator(
        **shape,
        start_global_batch_size=first,
        batch_size_increment=increment * first // start,
        ramup_samples=samples,
    )


def _batches(plan: Plan, calculator: Any) -> Proof:
    per_micro_batch = (plan.micro_batch or 1) * (plan.data_parallel or 1)
    picked = _some(stages(plan))
    counts, wrong = [], []
    for at, batch in picked:
        calculator.update(at, True)
        counts.append(calculator.get())
        if counts[-1] * per_micro_batch != batch:
            wrong.append(f"{counts[-1]} micro-batches after {at} samples, {batch // per_micro_batch} planned")
    if counts[-1] != plan.accumulation:
        wrong.append(f"{counts[-1]} micro-batches at the full batch, {plan.accumulation} planned")
    text = (
        f"{counts[-1]} micro-batches × {plan.micro_batch} × {plan.data_parallel} replicas at the full batch, {len(picked)} "
        f"stages as megatron-core {version('megatron-core')} counts them; which samples its own samplers serve is not proven"
    )
    return _proof(wrong, text, Cause.MEGATRON_COUNTS, {"micro_batches": counts})


def _steps(plan: Plan, calculator: Any) -> Proof:
    """Megatron takes whole steps only: what is left of the samples at the end is not trained on."""
    if plan.recipe.duration is None or plan.total_steps is None:
        return unchecked("epoch", "the recipe has no duration")
    full = plan.effective_batch or 1
    samples = int(plan.course.end * full)
    ramped, consumed, steps = stages(plan)[-1][0], 0, 0
    while consumed < ramped and steps < MOST_STEPS:
        calculator.update(consumed, True)
        if consumed + calculator.get_current_global_batch_size() > samples:
            break
        consumed += calculator.get_current_global_batch_size()
        steps += 1
    else:
        if consumed < ramped:
            text = f"the ramp has more than {MOST_STEPS} steps"
            return unchecked("epoch", text)
        steps += (samples - consumed) // full
        consumed += (samples - consumed) // full * full
    good = steps == plan.total_steps
    text = f"megatron has no epochs: {steps} whole steps of {samples} samples, {samples - consumed} left out at the end"
    return Proof(
        name="epoch",
        verdict=Verdict.PASS if good else Verdict.FAIL,
        text=text if good else f"{text}; {plan.total_steps} steps planned",
        diagnosis=None if good else Cause.MEGATRON_COUNTS.likely(),
        gate=0,
        values={"total_steps": steps, "samples": consumed, "left_out_samples": samples - consumed},
    )
