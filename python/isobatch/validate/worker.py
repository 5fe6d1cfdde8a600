"""The whole of a validation, as each rank runs it: all claims in turn."""

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import float32_as
from isobatch.errors import InputError, first_line, missing
from isobatch.planning.plan import Plan
from isobatch.system import require_posix
from isobatch.validate.options import Options
from isobatch.validate.proofs import (
    all_reduce,
    epoch,
    gpu,
    gradient,
    machine,
    memory,
    noise_scale,
    step_time,
    workload,
)
from isobatch.validate.ranks.group import Group, own_device
from isobatch.validate.ranks.pulse import DEAD
from isobatch.validate.report import Draft, Report, Verdict, judge_claim
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import Workload, call_factory, load, out_of_memory, user_code

BUILD_SEED = 0

CLAIMS: tuple[Claim, ...] = (
    gpu.CLAIM,
    machine.WORLD,
    machine.CLAIM,
    epoch.CLAIM,
    workload.TRY,
    workload.COMPILE,
    memory.CLAIM,
    workload.LOSS,
    workload.COUPLING,
    gradient.CLAIM,
    workload.OPTIMIZER,
    workload.LEARNING_RATE,
    all_reduce.CLAIM,
    memory.SEARCH,
    step_time.CLAIM,
    noise_scale.CLAIM,
)
"""In the order of proving, which is the table's."""


def run(
    plan: Plan,
    options: Options,
    *,
    factory: Callable[[], Workload] | None = None,
    publish: Callable[[Report], None] | None = None,
) -> Report:
    """Validates a plan on this rank, under torchrun or srun; every rank calls it.

    Args:
        plan: must be feasible.
        options: how to validate.
        factory: makes the workload, in place of the one that the options name.
        publish: called on rank 0 with the report, also with an unfinished one where a rank is lost.

    Returns:
        The report, on all ranks.

    Raises:
        InputError: the plan is infeasible, or an option does not go with it; there is no torchrun or srun
            environment.
    """
    require_posix("the validator")
    plan.require()
    own_device(options)  # before the factory, which may make something on the current one
    torch.manual_seed(BUILD_SEED)
    with user_code("the workload's factory"):
        work = load(options.workload, plan, options.parameters) if factory is None else call_factory(factory)
    draft = Draft(plan, options)
    group = Group(options)
    if options.find_micro_batch and group.device.type == "cpu" and options.memory_limit_gib is None:
        group.close()
        raise missing("memory_limit_gib", "the search on a CPU needs --memory-limit GIB, per rank")
    draft.phase_seconds = group.pulse.phase_seconds

    def lost(text: str) -> None:
        cause = Cause.DEAD_RANK if DEAD in text else Cause.RANK_FAILED
        cause = Cause.OUT_OF_MEMORY if "out of memory" in text else cause
        draft.add(judge_claim("ranks_alive", Verdict.FAIL, text, cause.likely()))
        if publish is not None:
            publish(draft.report())

    group.pulse.on_loss = lost
    try:
        with _sigterm_as_exception():
            try:
                _prove(Trial(plan, options, work, group, draft))
            except SignalException:
                # The launcher ends all ranks because one is gone: stay alive until rank 0 sees which one.
                group.pulse.linger()
                raise
    except InputError:  # of all ranks alike
        group.close()
        raise
    report: Report = group.from_first(draft.report(), Report)
    group.close()
    if group.rank == 0 and publish is not None:
        publish(report)
    return report


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Raises a SignalException at the first SIGTERM, for rank 0 to write the lost rank's name."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SignalException("ended by SIGTERM", signal.Signals(number))

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _prove(trial: Trial) -> None:
    """Proves all claims in turn, until a decisive one fails; an error of this rank goes to rank 0."""
    tf32, pulse, connected = trial.plan.recipe.precision == "tf32", trial.group.pulse, False
    try:
        with float32_as("tf32") if tf32 else contextlib.nullcontext():
            for claim in CLAIMS:
                if not claim.enabled(trial.options):
                    continue
                if claim.connected and not connected:
                    with pulse.phase("connect"):
                        trial.group.connect()
                    connected = True
                with pulse.phase(claim.phase):
                    trial.group.allow(trial.allowance_seconds)
                    proofs = claim.prove(trial)
                    trial.draft.add(*proofs)
                if claim.decisive and any(proof.verdict is Verdict.FAIL for proof in proofs):
                    return
    except (InputError, SignalException):
        raise
    except Exception as error:
        traceback.print_exc()
        line = first_line(error)
        pulse.fail(f"out of memory: {line}" if out_of_memory(error) else line)
        raise
