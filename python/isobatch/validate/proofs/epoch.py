"""An epoch of the plan, by the real sampler and loader; a batch ramp is proven stage by stage."""

import itertools
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from numpy.typing import NDArray

from isobatch.equivalence.laws import Cause
from isobatch.planning.plan import Plan
from isobatch.training.sampler import PlanSampler
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, skip_claim
from isobatch.validate.trial import Claim, Trial

MAX_STAGES = 16


def stages(plan: Plan) -> list[tuple[int, int]]:
    """Lists the stages of a plan's ramp (one without): samples before its first step, and its batch."""
    return [(stage.samples, stage.batch) for stage in plan.course.legs[-1].stages]


def prove_stages(plan: Plan, group: Group, dataset: Sized) -> Proof:
    """Proves the first step's batch of at most `MAX_STAGES` stages, by the sample ids of all replicas."""
    size, replicas, micro = len(dataset), plan.data_parallel or 1, plan.micro_batch or 1
    every = stages(plan)
    most = min(len(every), MAX_STAGES)
    some = [every[k * (len(every) - 1) // max(1, most - 1)] for k in range(most)]
    # A step at the end of an epoch is cut short there.
    picked = [(at, batch) for at, batch in some if at % size + batch <= size]
    wrong, served = [], []
    for at, batch in picked:
        # Without a shuffle a step's samples are consecutive: others are counted in the last place.
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
            text = f"{different} different samples after {at}, {batch} planned"
            wrong.append(f"{text}, in micro-batches of up to {largest}, {micro} planned")
    batches = [batch for _, batch in picked]
    span = f"{len(picked)} of {len(every)} stages from {batches[0]} to {batches[-1]} samples"
    text = "; ".join(wrong) or f"{span}, by their first steps"
    values, verdict = {"samples": batches, "unique_samples": served}, Verdict.FAIL if wrong else Verdict.PASS
    return judge_claim("effective_batch", verdict, text, Cause.ANOTHER_RAMP.likely(), 0, **values)


def steps(plan: Plan, dataset: int, replica: int) -> Iterator[list[int]]:
    """Yields the sample ids of a replica's optimizer steps in an epoch, by its own library's sampler."""
    indices: Any = range(dataset)
    drop = plan.recipe.drop_last
    replicas, size, accumulation = plan.data_parallel or 1, plan.micro_batch or 1, plan.accumulation or 1
    loader: data.DataLoader[int]
    if _irregular(plan):
        # The epoch after a ramp: the ramp's batches have a proof of their own.
        own = PlanSampler(indices, plan, rank=replica, epoch=-(-stages(plan)[-1][0] // dataset))
        loader = data.DataLoader(indices, batch_sampler=own, collate_fn=list)
        step: list[int] = []
        for ids, (weight, last) in zip(loader, own.weights(), strict=True):
            step += ids if weight else []
            if last:
                yield step
                step = []
        return
    if plan.recipe.convention == "transformers":
        from accelerate.data_loader import BatchSamplerShard

        whole = data.BatchSampler(data.RandomSampler(indices), size, drop in (True, "loader"))
        shard = BatchSamplerShard(whole, replicas, replica, even_batches=plan.recipe.even_batches)
        loader = data.DataLoader(indices, batch_sampler=shard, collate_fn=list)
    else:
        by_sampler, by_loader = drop in (True, "sampler"), drop in (True, "loader")
        sampler = data.DistributedSampler[int](indices, replicas, replica, drop_last=by_sampler)
        loader = data.DataLoader(indices, size, sampler=sampler, drop_last=by_loader, collate_fn=list)
    micro_batches = iter(loader)
    while first := next(micro_batches, None):
        yield [*first, *itertools.chain.from_iterable(itertools.islice(micro_batches, accumulation - 1))]


def _irregular(plan: Plan) -> bool:
    """Tells whether only the plan's own sampler can serve this plan."""
    recipe = plan.recipe
    return plan.layout.irregular or recipe.convention == "exact" or recipe.ramp is not None


def prove(trial: Trial) -> list[Proof]:
    """Judges the effective batch by sample ids, and an epoch's steps and samples, by the real sampler."""
    plan, group = trial.plan, trial.group
    if plan.recipe.convention == "megatron":
        text = "a megatron plan uses Megatron's own samplers, which no package has"
        return [skip_claim(name, text) for name in CLAIM.names]
    batch, replicas = plan.effective_batch or 1, plan.data_parallel or 1
    dataset, no_epoch = plan.recipe.dataset_size, skip_claim("epoch", "the recipe has no dataset_size")
    budget = {"quick": 1_000_000, "usual": 10_000_000, "full": 200_000_000}[trial.options.extent]
    ramp: Proof | None = None
    if plan.recipe.ramp is not None:
        ramped = dataset if dataset is not None else stages(plan)[-1][0] + batch
        ramp = prove_stages(plan, group, range(ramped))
    # An epoch repeats every effective batch, so that the end of a short one is the end of the long one.
    size = dataset if dataset is not None else 2 * batch
    whole = size * replicas <= budget * group.world_size
    if ramp is not None and dataset is None:
        return [ramp, no_epoch]
    if _irregular(plan) and not whole:
        text = "an epoch of the plan's own sampler takes too long here"
        return [ramp or skip_claim("effective_batch", text), skip_claim("epoch", text)]
    skipped = 0 if whole else max(0, size // batch - 2)
    size -= skipped * batch
    counts = _serve(plan, group, size)
    missing = next((text for text in group.gather(counts if isinstance(counts, str) else None) if text), None)
    if isinstance(counts, str) or missing is not None:
        text = f"the convention is {plan.recipe.convention}, and its library is not installed: {missing}"
        return [skip_claim(name, text) for name in CLAIM.names]
    # Sums, not all ids: those would be the whole dataset on each rank.
    first, served = (group.total(torch.from_numpy(array)).numpy() for array in counts[:2])
    steps_taken = set[int]().union(*group.gather(counts[2]))
    return [
        ramp or _effective_batch(plan, first),
        _epoch(plan, served, steps_taken, skipped) if dataset is not None else no_epoch,
    ]


def _serve(
    plan: Plan, group: Group, size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], set[int]] | str:
    """Counts each sample in the first step and in an epoch, and the steps; or names a missing library."""
    first, served = (np.zeros(size, dtype=np.int32) for _ in range(2))
    counts = set[int]()
    for replica in range(group.rank, plan.data_parallel or 1, group.world_size):
        torch.manual_seed(0)  # accelerate shares one shuffle between processes by their generators' state
        count = 0
        try:
            for count, ids in enumerate(steps(plan, size, replica), 1):
                np.add.at(served, ids, 1)
                if count == 1:
                    np.add.at(first, ids, 1)
        except ImportError as error:
            return str(error)
        counts.add(count)
    return first, served, counts


def _effective_batch(plan: Plan, first: NDArray[np.int32]) -> Proof:
    samples, unique = int(first.sum()), int((first > 0).sum())
    cause = Cause.SAMPLES_REPEATED if unique < samples else Cause.ANOTHER_MICRO_BATCH
    verdict = Verdict.PASS if samples == unique == plan.effective_batch else Verdict.FAIL
    first_step = f"the first step of {plan.data_parallel} replicas"
    text = f"{unique} different samples in {first_step}, {plan.effective_batch} planned"
    values = {"samples": samples, "unique_samples": unique}
    return judge_claim("effective_batch", verdict, text, cause.likely(), 0, **values)


def _epoch(plan: Plan, served: NDArray[np.int32], counts: set[int], skipped: int) -> Proof:
    batch = plan.effective_batch or 1
    measured = {
        "steps_per_epoch": max(counts) + skipped,
        "samples_per_epoch": int(served.sum()) + skipped * batch,
        "repeated_samples": int((served - 1).clip(0).sum()),
        "left_out_samples": int((served == 0).sum()),
    }
    planned = {"steps_per_epoch": plan.steps_per_epoch, "samples_per_epoch": plan.samples_per_epoch}
    if len(plan.course.legs[-1].stages) > 1:
        # A ramp counts through the epochs: the last step takes the rest of its batch from the next one.
        planned["samples_per_epoch"] = (plan.steps_per_epoch or 0) * batch
    wrong = [f"{name} {measured[name]}, {n} planned" for name, n in planned.items() if measured[name] != n]
    if len(counts) > 1:
        wrong.append(f"replicas take different numbers of steps: {sorted(counts)}")
    how = f"{skipped} whole steps in the middle by arithmetic" if skipped else "by the whole epoch"
    text = "; ".join(wrong) or (
        f"{measured['steps_per_epoch']} steps, {measured['samples_per_epoch']} samples, "
        f"{measured['repeated_samples']} repeated, {measured['left_out_samples']} left out"
    )
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    return judge_claim("epoch", verdict, f"{text} ({how})", Cause.SAMPLER_COUNTS.likely(), 0, **measured)


CLAIM = Claim(phase="sampler", names=("effective_batch", "epoch"), prove=prove)
