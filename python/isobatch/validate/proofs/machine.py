"""The machine: as many ranks as planned, the same versions everywhere, and no rank slower than the others.

Ranks are compared by windows of time in which all do the same work at once.
"""

import os
import platform
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from isobatch._core import __version__
from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import AUTOCAST
from isobatch.validate.figures import Machine
from isobatch.validate.ranks.group import Group, clock
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.trial import Claim, Trial
from isobatch.words import few

FIRST_WINDOWS, MAX_WINDOWS = 5, 25  # the latter if a rank looks slow
MIN_REPETITIONS, ENOUGH_SECONDS = 3, 0.5  # in a window: at least this many, or at least this long
LIMIT_SECONDS = 15.0  # to look closer
CAUTION, FAIL = 1.25, 2.0  # times the median of the others, where other programs share a processor
GPU_CAUTION, GPU_FAIL = 1.05, 1.10  # on a GPU, the rank's alone
ALWAYS = 0.9  # the share of the windows in which a slow rank is slow

SECONDS = {"quick": 0.5, "usual": 1.25, "full": 2.5}

OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")
"""Variables of the environment that may differ between ranks."""
VARIABLES = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "TORCH_FR_BUFFER_SIZE", *OWN_VARIABLES)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "FI_")
"""Only these variables go into a report: any other may hold a secret."""
MAX_NAMED_VARIABLES = 8


# ---- is a rank slower than the others? ----


def window(group: Group, work: Callable[[], object], seconds: float) -> float:
    """Measures the mean seconds of a repetition: a rank that is stopped now and then is slow, too."""
    group.barrier()
    spent, count, begun = 0.0, 0, time.perf_counter()
    while True:
        group.sync()
        spent += clock(work, cuda=group.device.type == "cuda")
        count += 1
        took = time.perf_counter() - begun
        if took >= seconds and (count >= MIN_REPETITIONS or took >= ENOUGH_SECONDS):
            return spent / count


def prove_ranks(group: Group, work: Callable[[], object], seconds: float) -> Proof:
    """Measures some work in windows of `seconds`; in many more if a rank looks slow."""
    if group.world_size == 1:
        return skip_claim("ranks", "one rank: nothing to compare with")
    begun = time.monotonic()
    windows: list[list[float]] = [[] for _ in range(group.world_size)]
    group.pulse.grant(LIMIT_SECONDS)
    while True:
        more = [window(group, work, seconds) for _ in range(FIRST_WINDOWS)]
        for row, rank_windows in zip(windows, group.gather(more), strict=True):
            row += rank_windows
        proof = judge_windows(group, np.array(windows), "ranks", "matrix product")
        late = group.from_first(time.monotonic() - begun > LIMIT_SECONDS)
        if proof.verdict is Verdict.PASS or len(windows[0]) >= MAX_WINDOWS or late:
            break
    if group.emulated:
        text = "several ranks share a GPU: function only, not performance"
        return skip_claim("ranks", text, **proof.values)
    return proof


def judge_windows(group: Group, seconds: NDArray[np.float64], name: str, description: str) -> Proof:
    """Judges whether a rank is slow in nine of ten windows, a row for each rank: noise comes and goes."""
    caution, fail = (GPU_CAUTION, GPU_FAIL) if group.device.type == "cuda" else (CAUTION, FAIL)
    who, times = group.pulse.who, seconds / _others(seconds)
    typical, always = np.median(times, axis=1), np.quantile(times, 1 - ALWAYS, axis=1)
    slowest = int(typical.argmax())
    values = {
        "times_median_of_others": typical.tolist(),
        "windows": seconds.shape[1],
        "window_spread": (seconds.max(axis=1) / seconds.min(axis=1)).tolist(),
    }
    if typical[slowest] < caution:
        text = f"{typical[slowest]:.3f} × the median of the others; a caution from {caution} ×"
        text = f"{description}: the slowest, {who(slowest)}, takes {text}"
        return pass_claim(name, text, caution, **values)
    slow = [rank for rank, least in enumerate(always) if least >= caution]
    if not slow:
        count, often = seconds.shape[1], int((times[slowest] >= caution).sum())
        text = (
            f"{description}: {who(slowest)} takes {typical[slowest]:.2f} × the median of the others, and "
            f"{caution} × or more in {often} of {count} windows; a slow rank is in nine of ten"
        )
        return judge_claim(name, Verdict.INCONCLUSIVE, text, Cause.NOISY_HOST.likely(), caution, **values)
    named = few([f"{who(rank)} {typical[rank]:.2f} ×" for rank in slow])
    text = f"{description}: {named} the median of the others, in nine of ten windows at least {caution} ×"
    verdict = Verdict.FAIL if typical[slow].max() >= fail else Verdict.CAUTION
    return judge_claim(name, verdict, text, Cause.SLOW_RANK.likely(few(map(who, slow))), caution, **values)


def _others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the median of the others in each column: by that of all, one of two could never be slow."""
    count = len(values)
    ordered = np.sort(values, axis=0)
    low, high = (
        np.where(values <= ordered[at], ordered[at + 1], ordered[at])
        for at in ((count - 2) // 2, (count - 1) // 2)
    )
    median: NDArray[np.float64] = (low + high) / 2
    return median


# ---- the ranks, their versions, their speed ----


def prove_world(trial: Trial) -> list[Proof]:
    """Compares the ranks with the plan's replicas: as many, or a rehearsal with fewer."""
    ranks, planned = trial.group.world_size, trial.plan.data_parallel or 1
    trial.draft.add(rehearsal=f"{ranks}/{planned}" if ranks < planned else None)
    verdict, text = Verdict.PASS, f"{ranks} ranks, as planned"
    if ranks > planned:
        verdict, text = Verdict.FAIL, f"{ranks} ranks, but the plan has {planned} replicas"
    elif ranks < planned:
        verdict = Verdict.UNCHECKED
        text = (
            f"rehearsal {ranks}/{planned}: micro-batch, accumulation, learning rate and the sampler of all "
            f"replicas are proven; the gradient over {planned} replicas and the performance are not"
        )
    if planned != trial.plan.world_size:
        text += "; only the data-parallel part is proven"
    likely = Cause.ANOTHER_WORLD_SIZE.likely()
    return [judge_claim("world", verdict, text, likely, 0, ranks=ranks, data_parallel=planned)]


def versions(group: Group) -> dict[str, str]:
    """Returns the versions behind a run's speed and exactness."""
    facts = group.facts[group.rank]
    names = {
        "isobatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "cuda": torch.version.cuda,
        "nccl": facts.nccl,
        "driver": facts.driver,
        "gpu": facts.gpu,
        "gpus of the host": facts.gpus or None,
    }
    return {name: str(value) for name, value in names.items() if value is not None}


def environment() -> dict[str, str]:
    """Returns the environment's variables for NCCL and the like: none of them can hold a secret."""
    names = [name for name in os.environ if name in VARIABLES or name.startswith(PREFIXES)]
    return {name: os.environ[name] for name in sorted(names)}


def strays(group: Group) -> dict[int, list[str]]:
    """Finds each rank's variables with other values than rank 0's."""
    own = {name: value for name, value in environment().items() if name not in OWN_VARIABLES}
    first: dict[str, str] = group.from_first(own)
    names = sorted(name for name in {*own, *first} if own.get(name) != first.get(name))
    return dict(enumerate(group.gather(names[:MAX_NAMED_VARIABLES])))


def same_versions(
    rank_versions: list[dict[str, str]], who: Callable[[int], str], strays: dict[int, list[str]]
) -> Proof:
    """Names other versions, and `strays`, by rank the variables with other values than on rank 0."""
    differ = []
    for name in sorted(set().union(*rank_versions)):
        values = [versions.get(name, "none") for versions in rank_versions]
        first = {version: who(values.index(version)) for version in values}
        if len(first) > 1:
            differ.append(f"{name} " + ", ".join(f"{version} on {rank}" for version, rank in first.items()))
    ranks_by_variable: dict[str, list[str]] = {}
    for rank, names in strays.items():
        for name in names:
            ranks_by_variable.setdefault(name, []).append(who(rank))
    differ += [f"{name} on {few(ranks)} differs from {who(0)}" for name, ranks in ranks_by_variable.items()]
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        blocking = "each kernel waits for the one before it, and every time here is too long"
        differ.append(f"CUDA_LAUNCH_BLOCKING is set: {blocking}")
    verdict, text = Verdict.CAUTION if differ else Verdict.PASS, "; ".join(differ) or "the same on all ranks"
    return judge_claim("versions", verdict, text, Cause.OTHER_ENVIRONMENT.likely())


def make_work(device: torch.device, dtype: torch.dtype | None) -> Callable[[], None]:
    """Makes matrix products in the plan's format; on a GPU several, since a launch takes longer than one."""
    cuda = device.type == "cuda"
    size, count = (8192, 20) if cuda else (384, 1)
    factor = torch.randn(size, size, device=device, dtype=dtype if cuda else None)
    result = torch.empty_like(factor)

    def work() -> None:
        for _ in range(count):
            torch.matmul(factor, factor, out=result)

    return work


def prove(trial: Trial) -> list[Proof]:
    """Measures each rank's own speed, and compares the versions."""
    group = trial.group
    work = make_work(group.device, AUTOCAST[trial.plan.recipe.precision])
    slow_ranks = prove_ranks(group, work, SECONDS[trial.options.extent] / FIRST_WINDOWS)
    trial.machine = Machine(
        ranks=group.roster,
        nodes=group.nodes,
        backend=group.backend,
        emulated=group.emulated,
        versions=versions(group),
        environment=environment(),
    )
    trial.draft.add(machine=trial.machine)
    same = same_versions(group.gather(versions(group)), group.pulse.who, strays(group))
    return [same, slow_ranks]


WORLD = Claim(phase="world", names=("world",), prove=prove_world, decisive=True)
CLAIM = Claim(phase="machine", names=("versions", "ranks"), prove=prove)
