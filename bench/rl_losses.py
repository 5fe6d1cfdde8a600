"""Asks the losses of reinforcement-learning trainers: is the gradient of a rollout the same at any split?

    python bench/rl_losses.py FOLDER [--only PATTERN]

FOLDER has the trainers' git repositories (`git clone --bare https://github.com/verl-project/verl` and so on).
Of each thread the commit before its fix and the fix are asked, of each trainer its modes today. Only the
named functions are compiled: what a module imports (CUDA kernels, ray, Megatron) is not, and is replaced by
stubs in bench/rollouts. Writes the second part of bench/results/rl.md.
"""

import argparse
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from rollouts.sources import Source
from rollouts.step import SPLITS, ask
from rollouts.threads import MODES, NOT_HERE, THREADS, Make, Thread, folder_of, name_of

RESULTS = Path(__file__).parent / "results" / "rl.md"
SAME = "the same"
OF_BOTH = "mean of passes' means; mean of ranks' means"
HEADING = "## The losses, at splits of one rollout"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a regular expression that a row has; nothing is written")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the trainers' own code
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign,assignment]
    lines = list(_lines(options.folder, options.only))
    if not options.only:
        before = RESULTS.read_text(encoding="utf-8").partition(HEADING)[0]
        RESULTS.write_text(before + HEADING + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _lines(folder: Path, only: str) -> Iterator[str]:
    """Yields the tables, and prints each row as it is known."""
    rows = [row for thread in THREADS if (row := _thread_row(folder, thread, only))]
    yield f"Made by `python bench/rl_losses.py FOLDER`: eight completions at {', '.join(SPLITS)} and 2x1x4."
    yield "Both means: of passes and of ranks."
    yield from ("", "| thread | loss | fix | before the fix | after |", "|---|---|---|---|---|", *rows)
    yield from ("", *(f"Not asked, {why}: {', '.join(threads)}." for why, threads in NOT_HERE.items()))
    yield from ("", "Modes at the newest stored commit:", "")
    yield from ("| trainer | the same at any split (a mean over) | not the same |", "|---|---|---|")
    for repository in dict.fromkeys(mode.repository for mode in MODES):
        if answers := list(_modes(folder, repository, only)):
            same = ", ".join(mode for mode, answer in answers if answer == SAME)
            changed = ", ".join(f"{mode}: {answer}" for mode, answer in answers if answer != SAME)
            yield _said(f"| {name_of(repository)} | {same} | {changed} |")


def _thread_row(folder: Path, thread: Thread, only: str) -> str:
    label = f"{name_of(thread.repository)} #{thread.number}"
    if not re.search(only, f"{label} {thread.says}"):
        return ""
    place = folder_of(folder, thread.repository)
    before = Source(place, f"{thread.commit}^" if thread.commit else "HEAD")
    broken = _answer(thread.before, before)
    fixed = _answer(thread.after, Source(place, thread.commit)) if thread.after else "open"
    link = f"[{label}](https://github.com/{thread.repository}/issues/{thread.number})"
    return _said(f"| {link} | {thread.says} | {thread.commit or 'none'} | {broken} | {fixed} |")


def _modes(folder: Path, repository: str, only: str) -> Iterator[tuple[str, str]]:
    """Yields each mode of a trainer with its unit, and the answer."""
    source = Source(folder_of(folder, repository), "HEAD")
    for mode in MODES:
        if mode.repository == repository and re.search(only, f"{name_of(repository)} {mode.name}"):
            yield f"`{mode.name}` ({mode.unit})", _answer(mode.make, source)


def _answer(make: Make, source: Source) -> str:
    """Asks a trainer's step; one that cannot be asked is named with the line that stops it."""
    try:
        same, causes = ask(make(source))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"not asked: {last.filename}:{last.lineno}: {type(error).__name__}: {error}"
    return SAME if same else causes.replace(OF_BOTH, "both means") or "not measured"


def _said(row: str) -> str:
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
