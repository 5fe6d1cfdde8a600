"""Published laws of a fresh language-model run: its learning rate, its batch, and factors of its length.

They come from other people's data and architectures. Each value carries its formula, its source and where it
holds, and `caution` where the constants were taken from a secondary account and not from the paper.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from isobatch.errors import must_be
from isobatch.limits import real


class _Run(NamedTuple):
    """A run: D tokens (or their multiple), N parameters, B sequences in a batch; NaN where not given."""

    d: float
    n: float = math.nan
    b: float = math.nan


_Formula: TypeAlias = Callable[[_Run], float]


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """One published law, evaluated for a run."""

    name: str
    value: float
    formula: str
    source: str
    holds: str
    caution: str | None = None


class Laws(msgspec.Struct, frozen=True, kw_only=True):
    """The published laws, evaluated for a fresh run; each quantity is a range over them.

    ``lr`` and ``batch_tokens`` are the ranges of the learning rate and of the batch that trains best, ``lr``
    None where no law could be asked; ``lr_laws``, ``batch_laws`` and ``critical_laws`` say where each value
    comes from. A critical batch is no best batch: it is where larger ones stop paying, by the definition in
    its law. ``duration_laws`` are factors of a learning rate that was tuned at another number of tokens; they
    disagree about the sign. ``batch_duration_laws`` are factors of a batch that was best at another number.
    """

    lr: tuple[float, float] | None
    batch_tokens: tuple[float, float]
    lr_laws: tuple[Law, ...]
    batch_laws: tuple[Law, ...]
    critical_laws: tuple[Law, ...]
    duration_laws: tuple[Law, ...] = ()
    batch_duration_laws: tuple[Law, ...] = ()

    def __repr__(self) -> str:
        """The ranges; `lr_laws`, `batch_laws`, `critical_laws` and `duration_laws` have the laws."""
        lr = None if self.lr is None else f"({self.lr[0]:.3g}, {self.lr[1]:.3g})"
        least, most = self.batch_tokens
        return f"Laws(lr={lr}, batch_tokens=({least:.3g}, {most:.3g}))"

    @property
    def batch_spread(self) -> float:
        """How many times the largest best batch is the smallest."""
        return self.batch_tokens[1] / self.batch_tokens[0]


_STEP_LAW = (
    "Li et al. 2025, arXiv:2503.04715, table 1",
    "dense and mixture-of-experts models with AdamW and a fixed last learning rate of 1e-5, tested up to 1 B "
    "parameters (without embeddings) and 100 B tokens",
)
_DEEPSEEK = (
    "DeepSeek-AI 2024, arXiv:2401.02954, section 3.1",
    "their data and multi-step schedule; C is their FLOPs without embeddings, taken here as 6 × parameters × "
    "tokens",
)
_SHEN = (
    "Shen et al. 2024, arXiv:2408.13359",
    "learning rate at the n-th token under µP, from models of 12 M, 36 M and 121 M parameters on RedPajama; "
    "tried by them up to 3 B; not the law of Power Lines",
)
_ZHANG = (
    "Zhang et al. 2024, arXiv:2410.21676",
    "the batch that needs 20 % more steps than linear scaling; 85 M to 1.2 B parameters on C4 with Adam, "
    "whose tokens grow with them: it is the tokens that it follows",
)
_BERGSMA = (
    "Bergsma et al. 2025, arXiv:2505.13738",
    "AdamW under µP on SlimPajama, 111 M to 3.3 B parameters; it follows the tokens and not the parameters",
)
_SCHAIPP = (
    "Schaipp et al. 2026, arXiv:2607.01487",
    "at most 5 % of the compute is lost between about half and twice this batch, by the same account",
)
_CONTESTED = "Step Law's sign is the other way round, unexplained: contested"
_NANOCHAT = (
    "karpathy/nanochat @92d63d4, scripts/base_train.py, after arXiv:2505.13738",
    "from a batch measured at one depth, rounded to a power of two; the optimizer is Muon, the paper's AdamW",
)
_ASSUMPTION = "an assumption, as its author says: AdamW's theory, hoped to hold for Muon"
_SECONDARY = "constants from a secondary account; check them in the paper before you build on them"

# Of D tokens, N parameters, C = 6·N·D operations and B sequences in a batch; in tokens where it is a batch.
_TABLE: dict[str, tuple[tuple[str, str, _Formula, tuple[str, str], str | None], ...]] = {
    "lr": (
        ("Step Law", "1.79 · N^−0.713 · D^0.307", lambda run: 1.79 * run.n**-0.713 * run.d**0.307, _STEP_LAW,
        None),
        ("DeepSeek", "0.3118 · C^−0.125", lambda run: 0.3118 * (6 * run.n * run.d) ** -0.125, _DEEPSEEK,
        None),
        ("Power", "min(0.02, 4 · B · n^−0.51) at n = D, B in sequences",
        lambda run: min(run.b * 4 * run.d**-0.51, 0.02), _SHEN, None),
    ),
    "batch_tokens": (
        ("Step Law", "0.58 · D^0.571 tokens", lambda run: 0.58 * run.d**0.571, _STEP_LAW, None),
        ("DeepSeek", "0.2920 · C^0.3271 tokens", lambda run: 0.2920 * (6 * run.n * run.d) ** 0.3271,
        _DEEPSEEK, None),
        ("Power Lines", "0.0306 · D^0.383 sequences of 2048 tokens",
        lambda run: 0.0306 * run.d**0.383 * 2048, _BERGSMA, _SECONDARY),
        ("Schaipp", "0.667 · D^0.566 tokens", lambda run: 0.667 * run.d**0.566, _SCHAIPP, _SECONDARY),
    ),
    "critical_batch": (
        ("Zhang", "93.197 · (N/10^6)^0.468 sequences of 512 tokens",
        lambda run: 93.197 * (run.n / 1e6) ** 0.468 * 512, _ZHANG, None),
        ("Zhang, by tokens", "22.91 · (D/10^6)^0.47 sequences of 512 tokens",
        lambda run: 22.91 * (run.d / 1e6) ** 0.47 * 512, _ZHANG, None),
    ),
    # Factors of a tuned learning rate at the same batch: here D is how many times as long the run is.
    "lr_factor": (
        ("Complete(d)P", "(D/D0)^−0.5", lambda run: run.d**-0.5, ("arXiv:2512.22382", _CONTESTED),
        _SECONDARY),
        ("Marin", "(D/D0)^−0.3", lambda run: run.d**-0.3, ("the Marin project's notes", _CONTESTED),
        _SECONDARY),
        ("2601.05049", "(D/D0)^−0.351", lambda run: run.d**-0.351, ("arXiv:2601.05049", _CONTESTED),
        _SECONDARY),
        ("Power", "(D/D0)^−0.51", lambda run: run.d**-0.51, (_SHEN[0], _CONTESTED), None),
        ("Step Law", "(D/D0)^0.307", lambda run: run.d**0.307, (_STEP_LAW[0], _CONTESTED), None),
    ),
    "batch_factor": (
        ("as nanochat", "(D/D0)^0.383", lambda run: run.d**0.383, _NANOCHAT, _ASSUMPTION),
    ),
}  # fmt: skip


def laws(
    *,
    tokens: float,
    parameters: float | None = None,
    effective_batch: float | None = None,
    tuned_tokens: float | None = None,
) -> Laws:
    """Evaluates the published laws for a fresh language-model run of this many tokens.

    Args:
        tokens: that the run trains on, D.
        parameters: of the model, without embeddings, N; laws that need them are left out where None.
        effective_batch: in sequences; needed for the law that gives the learning rate by the batch.
        tuned_tokens: the length of the tuned run: `duration_laws` then say by what its learning rate is
            multiplied, and `batch_duration_laws` its batch.

    Returns:
        The laws. These are starting points for a search: take the range, not a value.

    Raises:
        InputError: a value is not above 0.

    >>> found = laws(parameters=1e9, tokens=1e11)
    >>> [f"{lr:.2g}" for lr in found.lr], [round(b / 1e6, 1) for b in found.batch_tokens]
    (['0.00079', '0.0016'], [1.0, 1.8])
    >>> [f"{law.name} {law.value / 1e6:.2f} M" for law in laws(tokens=1e11).batch_laws]
    ['Step Law 1.11 M', 'Power Lines 1.02 M', 'Schaipp 1.12 M']
    """
    length = _above_0("tokens", tokens)
    size, batch, tuned = (
        math.nan if value is None else _above_0(name, value)
        for name, value in (
            ("parameters", parameters),
            ("effective_batch", effective_batch),
            ("tuned_tokens", tuned_tokens),
        )
    )
    lr, batches, critical = (
        _evaluated(name, _Run(length, size, batch)) for name in ("lr", "batch_tokens", "critical_batch")
    )
    return Laws(
        lr=_ends(lr) if lr else None,
        batch_tokens=_ends(batches),
        lr_laws=lr,
        batch_laws=batches,
        critical_laws=critical,
        duration_laws=_evaluated("lr_factor", _Run(length / tuned)),
        batch_duration_laws=_evaluated("batch_factor", _Run(length / tuned)),
    )


def _evaluated(quantity: str, run: _Run) -> tuple[Law, ...]:
    """Evaluates the laws of a quantity; one with a term not given is left out."""
    return tuple(
        Law(name=name, value=value, formula=formula, source=source, holds=holds, caution=caution)
        for name, formula, law, (source, holds), caution in _TABLE[quantity]
        if not math.isnan(value := law(run))
    )


def _ends(laws: tuple[Law, ...]) -> tuple[float, float]:
    values = [law.value for law in laws]
    return min(values), max(values)


_MAX_SIZE = 1e24
"""Of tokens, parameters or samples: beyond it the powers leave what floats hold."""


def _above_0(name: str, value: Any) -> float:
    number = real(value, name, "a finite number above 0", lambda x: x > 0)
    if not 1e-3 <= number <= _MAX_SIZE:
        raise must_be(f"a number from 0.001 to {_MAX_SIZE:g}", number, field=name)
    return number
