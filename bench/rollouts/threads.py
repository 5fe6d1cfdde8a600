"""The threads: where a loss was reported to change with the split, and the trainers' modes of today."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rollouts import averaged, megatron, verl
from rollouts.sources import Source
from rollouts.step import Step

Make = Callable[[Source], Step]


class Thread(NamedTuple):
    """A report: its fix, and how the loss is called on the commit before it and on the fix.

    Without a fix, `commit` is asked alone.
    """

    repository: str
    number: str
    says: str
    commit: str
    before: Make
    after: Make | None = None


class Mode(NamedTuple):
    """A mode of a trainer today, and the unit that its loss is a mean over."""

    repository: str
    name: str
    unit: str
    make: Make


NEW, OLD = "verl/workers/utils/losses.py", "verl/workers/roles/utils/losses.py"
VERL, NEMO, PRIME = "verl-project/verl", "NVIDIA-NeMo/RL", "PrimeIntellect-ai/prime-rl"
SKYRL, OPENRLHF, AREAL = "NovaSky-AI/SkyRL", "OpenRLHF/OpenRLHF", "inclusionAI/AReaL"
SLIME, MILES = "THUDM/slime", "radixark/miles"

THREADS = (
    Thread(VERL, "7200", "distillation loss", "594c51bc0", verl.distillation, verl.distillation),
    Thread(VERL, "6957", "critic's loss", "2eb020aa9", verl.critic, verl.critic),
    Thread(VERL, "3994", "supervised loss", "b49178f0f", lambda s: verl.supervised(s, OLD),
           lambda s: verl.supervised(s, OLD)),
    Thread(VERL, "5366", "seq-mean-token-sum-norm", "3671d37fe",
           lambda s: verl.aggregated(s, "seq-mean-token-sum-norm"),
           lambda s: verl.aggregated(s, "seq-mean-token-sum-norm")),
    Thread(VERL, "5625", "actor, token-mean, legacy FSDP worker", "044bbba27", verl.legacy,
           lambda s: verl.policy(s, "token-mean", NEW)),
    Thread(SKYRL, "1296", "actor, token_mean", "bf243b8d6",
           lambda s: averaged.skyrl(s, "token_mean", scales_advantages=False),
           lambda s: averaged.skyrl(s, "token_mean")),
    Thread(SKYRL, "1504", "supervised loss", "9ef15e374",
           lambda s: averaged.skyrl_supervised(s, sums=False),
           lambda s: averaged.skyrl_supervised(s, sums=True)),
    Thread(PRIME, "1961", "supervised loss", "6c55a9aab", lambda _: averaged.prime_supervised(of_step=False),
           lambda _: averaged.prime_supervised(of_step=True)),
    Thread(PRIME, "2358", "actor over ranks", "601ccd25e", lambda s: averaged.prime(s, over_ranks=False),
           lambda s: averaged.prime(s, over_ranks=True)),
    Thread(PRIME, "583", "actor over passes", "163ba843b", lambda s: averaged.prime_clipped(s, of_step=False),
           lambda s: averaged.prime_clipped(s, of_step=True)),
    Thread(NEMO, "212", "actor, token level", "af9f6e861", averaged.nemo_by_pass, averaged.nemo_by_step),
    Thread(OPENRLHF, "1249", "actor, token level", "c5bebd14",
           lambda s: averaged.openrlhf(s, by_window=False), averaged.openrlhf),
    Thread(SLIME, "987", "actor, per-token loss", "763f18d5b", megatron.slime, megatron.slime),
    Thread(AREAL, "1273", "Megatron engine", "5e9fb505c", lambda s: megatron.areal(s, by_passes=False),
           megatron.areal),
    Thread(MILES, "3231", "FSDP backend, per-token loss", "", lambda s: megatron.miles(s, per_token=True)),
    Thread(NEMO, "4172", "distillation, dynamic_loss_scaling", "", averaged.nemo_distillation),
    Thread(NEMO, "3791", "positive_example_nll_weight", "", lambda s: averaged.nemo(s, likelihood=0.5)),
)  # fmt: skip

UNITS = {"token-mean": "token", "token-sum": "token (summed)", "token_mean": "token", "prompt_mean": "group",
         "token_mean_legacy": "token of a pass"}  # fmt: skip

MODES = (
    *(
        Mode(VERL, mode, UNITS.get(mode, "sample"), lambda s, m=mode: verl.policy(s, m))
        for mode in verl.MODES
    ),
    *(
        Mode(OPENRLHF, name, unit, lambda s, k=keywords: averaged.openrlhf(s, **k))
        for name, unit, keywords in (
            ("token_level_loss=True", "token", {}),
            ("token_level_loss=False", "sample", {"token_level": False}),
            ("gspo", "sample", {"kind": "gspo"}),
        )
    ),
    *(
        Mode(SKYRL, mode, UNITS.get(mode, "sample"), lambda s, m=mode: averaged.skyrl(s, m))
        for mode in averaged.REDUCTIONS
    ),
    Mode(NEMO, "token_level_loss=True", "token", averaged.nemo),
    Mode(NEMO, "token_level_loss=False", "sample", lambda s: averaged.nemo(s, token_level=False)),
    Mode(AREAL, "token, Megatron", "token", megatron.areal),
    Mode(AREAL, "token, FSDP", "token", lambda s: megatron.areal(s, engine="fsdp")),
    Mode(AREAL, "sequence, FSDP", "token", lambda s: megatron.areal(s, engine="fsdp", level="sequence")),
    Mode(SLIME, "sample mean", "sample", lambda s: megatron.slime(s, per_token=False, counts_step=True)),
    Mode(SLIME, "calculate_per_token_loss", "token", lambda s: megatron.slime(s, counts_step=True)),
    Mode(MILES, "sample mean, FSDP", "sample", lambda s: megatron.miles(s, per_token=False)),
)

NOT_HERE = {"reported after the commits that are stored": (f"{VERL} #7913", f"{AREAL} #1730")}
"""By the reason, threads that are not asked."""


def name_of(repository: str) -> str:
    """Names a trainer: by its repository, or its owner's word for it."""
    return "NeMo-RL" if repository == NEMO else repository.partition("/")[2]


def folder_of(folder: Path, repository: str) -> Path:
    """Finds a repository's git directory: owner+name/repo, owner+name, or name."""
    owner, name = repository.split("/")
    for place in (f"{owner}+{name}/repo", f"{owner}+{name}", name):
        if (folder / place).exists():
            return folder / place
    raise SystemExit(f"{folder} has no {name}: git clone --bare https://github.com/{repository} there")
