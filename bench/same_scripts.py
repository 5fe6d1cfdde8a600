"""Healthy scripts and scripts with one fault, each asked by `isobatch same`.

False alarms, faults missed and wrongly named.

python bench/same_scripts.py bench/results/same_scripts.md [FILE]: of one file of bench/same only.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

from isobatch.equivalence import session
from isobatch.errors import InputError

FOLDER = Path(__file__).with_name("same")
SPLITS = ["2x3x2", "1x6x2"]
"""The ranks, the accumulation and their product are three factors."""

NOT_ASKED = "cannot be asked"
"""The right answer for a script whose splits have other random draws."""

HEALTHY = {
    "plain": """
        ddp; no_sync; all_reduce by hand; drop last; workers; curriculum; weighted sampler; distributed
        sampler always; fused; foreach; several groups; tensor lr; lbfgs; classes; label smoothing;
        class weights; focal; huber; distillation; diffusion; drop path; drop path by rand; two views;
        l2 in the loss; autograd function; checkpoint; reentrant checkpoint; compile; autocast; scaler;
        frozen; frozen later; group norm; batch norm, frozen; clip by value; clip by hand; hooks;
        evaluation first; evaluation; zero by hand; zeros kept; ema; saves; own schedule; optimizer
        before ddp
    """,
    "kinds": """
        token_mean; two_optimizers; gan; lora; masked; detection; recurrent; graphs; rollouts; stream;
        by_hand; ema_teacher; fsdp2; fsdp1; samples_lost
    """,
    "trainers": """
        hf causal; hf grouped; hf iterable; hf evaluation; hf compute_loss; accelerate loop; accelerate
        split; accelerate dispatch; lightning auto; lightning manual; lightning validation
    """,
}
"""By file, kinds of scripts that train the same at every split."""

FAULTY = {
    "plain": {
        "classes": {"summed loss": "summed loss"},
        "ddp": {
            "not divided": "× accumulation",
            "divided twice": "1/accumulation",
            "loss × world": "× ranks",
            "no ddp": "gradients not averaged",
            "inner module": "gradients not averaged",
            "seed by rank, no broadcast": "weights differ between ranks",
            "rank 0 alone": "lost samples",
            "zero_grad each pass": "lost samples",
            "step each pass": "another batch",
            "clipping each pass": "gradients clipped on every pass",
            "scheduler each pass": "another learning rate",
            "scheduler × ranks": "another learning rate",
            "lr × world": "another learning rate",
            "sampler without rank": "ranks draw the same samples",
            "decay each pass": "coupled samples",
        },
        "no_sync": {"never synchronized": "gradients not averaged"},
        "all_reduce by hand": {"sum of ranks": "× ranks"},
        "curriculum": {"sampler without rank": "ranks draw the same samples"},
        "class weights": {"weights of a pass": "mean of passes' means"},
        "autograd function": {"backward without mean": "summed loss"},
        "l2 in the loss": {"penalty × accumulation": "coupled samples"},
        "clip by hand": {"not divided": "× accumulation"},
        "scaler": {"not divided": "× accumulation"},
        "batch norm": {"": "batch norm"},
        "contrastive": {"": "coupled samples"},
        "mixup": {"": NOT_ASKED},
        "l1 of the batch": {"": "mean of passes' means"},
    },
    "kinds": {
        "token_mean": {
            "tokens of a pass": "mean of passes' means",
            "tokens of a rank": "mean of 2 ranks' means",
            "count without ranks": "1/ranks",
        },
        "nanogpt": {"not divided": "× accumulation", "seed without rank": "ranks draw the same samples"},
        "two_optimizers": {"not divided": "× accumulation"},
        "gan": {"not divided": "× accumulation"},
        "lora": {"divided twice": "1/accumulation"},
        "masked": {"tokens of a pass": "mean of passes' means"},
        "detection": {"mean over boxes of a pass": "mean of passes' means"},
        "recurrent": {"zero_grad each pass": "lost samples"},
        "graphs": {"summed loss": "summed loss"},
        "rollouts": {"advantage of a rank": "unequal weights"},
        "stream": {"stream without rank": "ranks draw the same samples", "not divided": "× accumulation"},
        "by_hand": {"warmup in micro-batches": "another learning rate"},
        "ema_teacher": {"ema each pass": "coupled samples"},
        "balance": {"": "balance loss of experts", "penalty not divided": "balance loss of experts"},
        "fsdp2": {"summed loss": "summed loss"},
        "fsdp1": {"not divided": "× accumulation"},
        "samples_lost": {"a row lost": "another batch"},
    },
    "trainers": {
        "hf compute_loss": {"without ranks": "1/ranks", "mean of a pass": "mean of passes' means"},
        # Heads with **kwargs are taken to know the step's items in transformers 5.24.
        "hf classes": {"": "× ranks × accumulation"},
        "hf masked": {"": "mean of passes' means"},
        "accelerate loop": {"prepared scheduler": "another learning rate", "divided twice": "1/accumulation"},
        "lightning auto": {"summed loss": "summed loss"},
        "lightning manual": {"not divided": "× accumulation"},
    },
}
"""By file, kind and fault, the cause to name."""


class Case(NamedTuple):
    """A script, its fault, and the name of its cause; both empty of a healthy one."""

    file: str
    kind: str
    fault: str
    cause: str


def list_cases() -> list[Case]:
    """Lists the healthy scripts, then the faulty ones."""
    healthy = [
        Case(file, " ".join(kind.split()), "", "")
        for file, kinds in HEALTHY.items()
        for kind in kinds.split(";")
    ]
    faults = ((file, kind, causes) for file, kinds in FAULTY.items() for kind, causes in kinds.items())
    return healthy + [
        Case(*place, fault, cause) for *place, causes in faults for fault, cause in causes.items()
    ]


def ask(case: Case) -> tuple[str, list[str], str]:
    """Returns the answer, the names of the causes and the weights of a script."""
    words = ["torchrun", "--nproc-per-node", "{gpus}", str(FOLDER / f"{case.file}.py"), "--kind", case.kind]
    words += ["--fault", case.fault, "--batch", "{micro_batch}", "--accum", "{accumulation}"]
    try:
        answer = session.same(words, SPLITS, limit=90)
    except InputError as error:
        return NOT_ASKED, [], str(error).splitlines()[0][:120]
    names = dict.fromkeys(cause.name for split in answer.splits for cause in split.causes)
    worst = max(answer.splits, key=lambda split: split.difference)
    weights = f"{min(worst.weights):.3g} to {max(worst.weights):.3g}" if worst.weights else "not known"
    return "the same" if answer.same else "not the same", list(names), f"{worst.split}: {weights}"


def judge(case: Case, answer: str, names: list[str]) -> str:
    """Returns what is wrong with an answer; nothing where it is right."""
    if answer == NOT_ASKED:
        return "" if case.cause == NOT_ASKED else "not asked"
    if not case.cause:
        return "" if answer == "the same" else "FALSE ALARM"
    return "MISSED" if answer == "the same" else "" if names[0] == case.cause else "misnamed"


def main(place: Path, file: str | None) -> None:
    """Asks every script, one at a time, prints each, and writes totals and the rows that are wrong."""
    rows, verdicts, began = [], [], time.monotonic()
    for case in [case for case in list_cases() if file in (None, case.file)]:
        started = time.monotonic()
        answer, names, weights = ask(case)
        verdicts.append((case, judge(case, answer, names)))
        expected, causes = case.cause or "the same", ", ".join(names) or answer
        cells = (case.file, case.kind, case.fault, expected, causes, weights)
        row = f"| {' | '.join(cells)} | {time.monotonic() - started:.0f} | {verdicts[-1][1]} |"
        print(row, flush=True)
        if verdicts[-1][1]:
            rows.append(row)
        place.write_text(report(rows, verdicts, time.monotonic() - began))


def report(rows: list[str], verdicts: list[tuple[Case, str]], seconds: float) -> str:
    """Returns the page: totals, then the rows that are wrong."""
    healthy = sum(not case.cause for case, _ in verdicts)
    counts = {
        name: sum(fault == name for _, fault in verdicts)
        for name in ("FALSE ALARM", "MISSED", "misnamed", "not asked")
    }
    total = ", ".join(f"{count} {name.lower()}" for name, count in counts.items())
    head = (
        "| file | kind | fault | expected | answer | weights at the worst split | s | wrong "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    return (
        f"# `isobatch same` on other scripts\n\n> {healthy} healthy scripts and "
        f"{len(verdicts) - healthy} with one "
        f"fault: {total}.\n\n`python bench/same_scripts.py` at {' and '.join(SPLITS)}, {seconds:.0f} "
        f"s.\n\n{head}\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
