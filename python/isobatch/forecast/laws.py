"""What published laws say of a fresh language-model run: its learning rate, its batch, and what another length changes.

They come from other people's data and architectures. Each value carries its formula, its source and where it holds, and `caution`
where the constants were taken from a secondary account and not from the paper.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isobatch.checked import real
from isobatch.errors import must_be

_SECONDARY = "constants from a secondary account; check them in the paper before you build on them"


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """What one published law says of a fresh run."""

    name: str
    value: float
    formula: str
    source: str
    holds: str
    caution: str | None = None


class Laws(msgspec.Struct, frozen=True, kw_only=True):
    """What the published laws say of a fresh run, each quantity as a range over the laws.

    ``lr`` and ``batch_tokens`` are the ranges of the learning rate and of the batch that trains best, ``lr`` None where no law
    could be asked; ``lr_laws``, ``batch_laws`` and ``critical_laws`` say where each value comes from. A critical batch is no
    best batch: it is where larger ones stop paying, by the definition in its law. ``duration_laws`` are factors of a learning
    rate that was tuned at another number of tokens; they disagree about the sign.
    """

    lr: tuple[float, float] | None
    batch_tokens: tuple[float, float]
    lr_laws: tuple[Law, ...]
    batch_laws: tuple[Law, ...]
    critical_laws: tuple[Law, ...]
    duration_laws: tuple[Law, ...] = ()

    def __repr__(self) -> str:
        """The ranges; `lr_laws`, `batch_laws`, `critical_laws` and `duration_laws` have the laws."""
        lr = None if self.lr is None else f"({self.lr[0]:.3g}, {self.lr[1]:.3g})"
        least, most = self.batch_tokens
        return f"Laws(lr={lr}, batch_tokens=({least:.3g}, {most:.3g}))"

    @property
    def batch_spread(self) -> float:
        """How many times the largest best batch is the smallest.

        >>> round(laws(tokens=1e11).batch_spread, 2)
        1.1
        """
        return self.batch_tokens[1] / self.batch_tokens[0]


_STEP_LAW = {
    "name": "Step Law",
    "source": "Li et al. 2025, arXiv:2503.04715, table 1",
    "holds": "dense and mixture-of-experts models with AdamW and a fixed last learning rate of 1e-5, tested up to 1 B "
    "parameters (without embeddings) and 100 B tokens",
}
_DEEPSEEK = {
    "name": "DeepSeek",
    "source": "DeepSeek-AI 2024, arXiv:2401.02954, section 3.1",
    "holds": "their data and multi-step schedule; C is their FLOPs without embeddings, taken here as 6 × parameters × tokens",
}
_ZHANG = {
    "source": "Zhang et al. 2024, arXiv:2410.21676",
    "holds": "the batch that needs 20 % more steps than linear scaling; 85 M to 1.2 B parameters on C4 with Adam, whose "
    "tokens grow with them: it is the tokens that it follows",
}


def laws(
    *,
    tokens: float,
    parameters: float | None = None,
    effective_batch: float | None = None,
    tuned_tokens: float | None = None,
) -> Laws:
    """The published laws for a fresh language-model run of this many tokens.

    Args:
        tokens: that the run trains on, D.
        parameters: of the model, without embeddings, N; laws that need them are left out where None.
        effective_batch: in sequences; needed for the law that gives the learning rate by the batch.
        tuned_tokens: the length at which a learning rate was tuned: `duration_laws` then say by what it is multiplied.

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
    given = {
        name: None if value is None else _above_0(name, value)
        for name, value in (
            ("parameters", parameters),
            ("effective_batch", effective_batch),
            ("tuned_tokens", tuned_tokens),
        )
    }
    tokens = _above_0("tokens", tokens)
    lr_laws = _lr_laws(tokens, given["parameters"], given["effective_batch"])
    batch_laws = _batch_laws(tokens, given["parameters"])
    rates, batches = [law.value for law in lr_laws], [law.value for law in batch_laws]
    return Laws(
        lr=(min(rates), max(rates)) if rates else None,
        batch_tokens=(min(batches), max(batches)),
        lr_laws=tuple(lr_laws),
        batch_laws=tuple(batch_laws),
        critical_laws=tuple(_critical_laws(tokens, given["parameters"])),
        duration_laws=()
        if given["tuned_tokens"] is None
        else tuple(_durations(tokens / given["tuned_tokens"])),
    )


_MOST = 1e24
"""Of tokens, parameters or samples."""


def _above_0(name: str, value: Any) -> float:
    number = real(value, name, "a finite number above 0", lambda x: x > 0)
    # Beyond these the powers leave what floats hold.
    if not 1e-3 <= number <= _MOST:
        raise must_be(f"a number from 0.001 to {_MOST:g}", number, field=name)
    return number


def _lr_laws(tokens: float, parameters: float | None, batch: float | None) -> list[Law]:
    found = []
    if parameters is not None:
        compute = 6 * parameters * tokens
        found += [
            Law(
                value=1.79 * parameters**-0.713 * tokens**0.307,
                formula="1.79 · N^−0.713 · D^0.307",
                **_STEP_LAW,
            ),
            Law(value=0.3118 * compute**-0.125, formula="0.3118 · C^−0.125", **_DEEPSEEK),
        ]
    if batch is not None:
        found.append(
            Law(
                name="Power",
                value=min(0.02, batch * 4 * tokens**-0.51),
                formula="min(0.02, 4 · B · n^−0.51) at n = D, B in sequences",
                source="Shen et al. 2024, arXiv:2408.13359",
                holds="learning rate at the n-th token under µP, from models of 12 M, 36 M and 121 M parameters on RedPajama; "
                "tried by them up to 3 B; not the law of Power Lines",
            )
        )
    return found


def _batch_laws(tokens: float, parameters: float | None) -> list[Law]:
    """The batch that trains best, in tokens."""
    found = [Law(value=0.58 * tokens**0.571, formula="0.58 · D^0.571 tokens", **_STEP_LAW)]
    if parameters is not None:
        compute = 6 * parameters * tokens
        found.append(Law(value=0.2920 * compute**0.3271, formula="0.2920 · C^0.3271 tokens", **_DEEPSEEK))
    return [
        *found,
        Law(
            name="Power Lines",
            value=0.0306 * tokens**0.383 * 2048,
            formula="0.0306 · D^0.383 sequences of 2048 tokens",
            source="Bergsma et al. 2025, arXiv:2505.13738",
            holds="AdamW under µP on SlimPajama, 111 M to 3.3 B parameters; it follows the tokens and not the parameters",
            caution=_SECONDARY,
        ),
        Law(
            name="Schaipp",
            value=0.667 * tokens**0.566,
            formula="0.667 · D^0.566 tokens",
            source="Schaipp et al. 2026, arXiv:2607.01487",
            holds="at most 5 % of the compute is lost between about half and twice this batch, by the same account",
            caution=_SECONDARY,
        ),
    ]


def _critical_laws(tokens: float, parameters: float | None) -> list[Law]:
    """Where larger batches stop paying, in tokens."""
    found = [
        Law(
            name="Zhang, by tokens",
            value=22.91 * (tokens / 1e6) ** 0.47 * 512,
            formula="22.91 · (D/10^6)^0.47 sequences of 512 tokens",
            **_ZHANG,
        )
    ]
    if parameters is not None:
        by_size = Law(
            name="Zhang",
            value=93.197 * (parameters / 1e6) ** 0.468 * 512,
            formula="93.197 · (N/10^6)^0.468 sequences of 512 tokens",
            **_ZHANG,
        )
        found.insert(0, by_size)
    return found


def _durations(longer: float) -> list[Law]:
    """Factors of the learning rate where a run is `longer` times the tuned one, at the same batch."""
    rows = (
        ("Complete(d)P", -0.5, "arXiv:2512.22382", _SECONDARY),
        ("Marin", -0.3, "the Marin project's notes", _SECONDARY),
        ("2601.05049", -0.351, "arXiv:2601.05049", _SECONDARY),
        ("Power", -0.51, "Shen et al. 2024, arXiv:2408.13359", None),
        ("Step Law", 0.307, "Li et al. 2025, arXiv:2503.04715, table 1", None),
    )
    return [
        Law(
            name=name,
            value=longer**exponent,
            formula=f"(D/D0)^{exponent:g}".replace("-", "−"),
            source=source,
            holds="Step Law's sign is the other way round, and nobody has explained it: contested",
            caution=caution,
        )
        for name, exponent, source, caution in rows
    ]
