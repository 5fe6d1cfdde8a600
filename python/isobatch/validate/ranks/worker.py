"""The whole of a validation, as each rank runs it."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.validate.measure import allreduce, machine, timing
from isobatch.validate.options import Options
from isobatch.validate.proofs import gradient, learning_rate, loss, memory, noise, sampling
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.draft import Draft
from isobatch.validate.report.record import measurements
from isobatch.validate.report.report import Proof, Report, Verdict
from isobatch.validate.step.training import Training, autocast_type, out_of_memory
from isobatch.validate.step.workload import Workload, load, made

BUILD_SEED = 0


def run(
    plan: Plan,
    options: Options,
    *,
    factory: Callable[[], Workload] | None = None,
    publish: Callable[[Report], None] | None = None,
) -> Report:
    """Validates a plan in the processes that torchrun or srun started; every rank calls it.

    Args:
        plan: must be feasible.
        options: how.
        factory: makes the workload, in place of the one that the options name.
        publish: called on rank 0 with the report, also with an unfinished one where a rank is lost.

    Returns:
        The report, on all ranks.

    Raises:
        InputError: the plan is infeasible, or an option does not go with it; there is no torchrun or srun environment.
    """
    if plan.status == "infeasible":
        raise InputError(f"the plan is infeasible: {'; '.join(reason.text for reason in plan.reasons)}")
    autocast_type(plan)  # refuses what it does not know, before any rank waits for another
    torch.manual_seed(BUILD_SEED)
    workload = load(options.workload, plan, options.parameters) if factory is None else made(factory)
    draft = Draft(plan, options)
    group = Group(options)
    if options.find_micro_batch and group.device.type == "cpu" and options.memory_limit_gib is None:
        group.close()
        raise InputError("the search on a CPU needs one, in GiB a rank", field="memory_limit_gib")
    draft.phase_seconds = group.pulse.phase_seconds

    def lost(text: str) -> None:
        draft.add(Proof(name="ranks_alive", verdict=Verdict.FAIL, text=text, cause=_cause(text)))
        if publish is not None:
            publish(draft.report())

    group.pulse.on_loss = lost
    try:
        _phases(plan, options, workload, group, draft)
    except SignalException:
        # torchrun ends everybody because one rank is gone: stay alive until rank 0 sees which.
        group.pulse.linger()
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        traceback.print_exc()
        group.pulse.fail(f"out of memory: {said}" if out_of_memory(error) else said)
        raise
    report: Report = group.from_first(draft.report())
    group.close()
    if group.rank == 0 and publish is not None:
        publish(report)
    return report


def _cause(text: str) -> str:
    if "out of memory" in text:
        return "out of memory"
    if "dead" in text or "cut off" in text:
        return "dead rank, or a host that is cut off"
    return "a rank failed or hangs"


def _phases(plan: Plan, options: Options, workload: Workload, group: Group, draft: Draft) -> None:
    full = options.extent == "full"
    phase = group.pulse.phase
    with phase("world"):
        world = _world(plan, group)
        rehearsed = group.world_size < (plan.data_parallel or 1)
        rehearsal = f"{group.world_size}/{plan.data_parallel}" if rehearsed else None
        draft.add(world, rehearsal=rehearsal)
        if world.verdict is Verdict.FAIL:
            return
    with phase("machine"):
        machine_found, speeds = machine.measure(group, options.extent)
        draft.add(*speeds, machine=machine_found)
    with phase("sampler"):
        draft.add(*sampling.prove(plan, options, group))
    with phase("build"):
        training = Training(plan, options, workload, group)
    with phase("memory"), training.weights_kept():
        unfit = memory.prove_fits(training)
        if unfit is not None:
            draft.add(unfit)
            return
    with phase("step"):
        measured, reduction = loss.prove(training)
        one = timing.micro_batch_seconds(training)
        small, smaller = gradient.affordable(training, one)
        found, exact = gradient.prove(small, measured, smaller=smaller)
        draft.add(reduction, *found)
        if training.dtype is not None:
            found, _ = gradient.prove(small, measured, training.dtype, exact=exact, smaller=smaller)
            draft.add(*found)
    if full and not options.compile:
        with phase("step in double precision"):
            draft.add(*gradient.prove_double(small, measured, smaller))
    with phase("learning rate"):
        draft.add(learning_rate.prove(training))
    with phase("buckets"):
        timed = timing.affordable(training, one)
        buckets = timing.bucket_bytes(timed)
    with phase("all-reduce"):
        table, network = allreduce.measure(group, options, buckets)
        draft.add(*network, allreduce=table)
    largest = training.micro_batch
    if options.find_micro_batch:
        with phase("micro-batch"), training.weights_kept():
            searched = memory.search(training)
            largest = searched.largest_micro_batch or largest
            draft.add(memory.prove_search(training, searched), micro_batch_search=searched)
    with phase("step time"):
        step, speed = timing.measure(timed, training, table.table, buckets, largest)
        draft.add(*speed, step=step)
    with phase("noise scale"):
        scale, proof = noise.measure(timed, options.noise_steps)
        draft.add(proof, noise=scale, measurements=measurements(machine_found, step, table, scale))


def _world(plan: Plan, group: Group) -> Proof:
    planned, ranks = plan.data_parallel or 1, group.world_size
    verdict, cause = Verdict.PASS, None
    if ranks > planned:
        verdict, cause = Verdict.FAIL, "another world size"
        text = f"{ranks} ranks, but the plan has {planned} replicas"
    elif ranks == planned:
        text = f"{ranks} ranks, as planned"
    else:
        verdict = Verdict.UNCHECKED
        text = (
            f"rehearsal {ranks}/{planned}: micro-batch, accumulation, learning rate and the sampler of all replicas are "
            f"proven; the gradient over {planned} replicas and the performance are not"
        )
    if planned != plan.world_size:
        text += "; only the data-parallel part is proven"
    values = {"ranks": ranks, "data_parallel": planned}
    return Proof(name="world", verdict=verdict, text=text, cause=cause, gate=0, values=values)
