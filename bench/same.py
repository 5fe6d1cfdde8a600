"""Asks `isobatch same` about published bugs: is each reported, and is its mended release let through?

    python bench/same.py envs [CASE...]    installs the releases of bench/same/cases.md under build/same
    python bench/same.py run [CASE...]     asks about both sides of each case, writes bench/results/same.md
    python bench/same.py zero              prints a table of ZeRO stages (after `envs deepspeed-offload`)

A release is a folder of its own on PYTHONPATH, installed without its dependencies on today's torch. `run`
asks about the cases that are named, or have no row in the results yet; the other rows stay as they are.
"""

import argparse
import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = HERE / "same" / "cases.md"
RESULTS = HERE / "results" / "same.md"
ZERO_RELEASES = ("deepspeed==0.19.8", "deepspeed==0.18.4")
ZERO_SPLITS = ("1x4x3", "1x3x4", "2x3x2")
BATCH = ("--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accumulation}")
UNNAMED = "(not named:"
CAUSES = {  # a cause of the table, and what names it in an answer
    "means of passes": r"micro-batch(es)?\b.*mean|pass(es)?('s?)?\b.*mean|mean.*(micro-batch|pass)",
    "means of ranks": r"ranks?\b.*mean|mean.*rank",
    "accumulation": r"accumulation",
    "last window": r"accumulation|last|window|passes",
    "one over ranks": r"1/ranks|ranks",
    "one over accumulation": r"1/accumulation",
    "not averaged": r"not averaged",
    "another batch": r"another batch",
    "another update": r"update",
    "rows lost": r"lost|dropped|missing|weight 0|left out",
    "other rows": r"twice|duplicate|other (samples|rows)|drawn|lost",
    "passes lost": r"lost passes",
    "clock": r"learning rate|schedule",
}


@dataclass(frozen=True)
class Case:
    name: str
    thread: str
    buggy: str
    mended: str
    script: str
    split: str
    cause: str


@dataclass(frozen=True)
class Answer:
    """The answer of `isobatch same` on one side; `same` is None where it could not be asked."""

    same: bool | None
    causes: str
    weights: list[float]
    residual: float
    seconds: float


def read_table(path: Path, heading: str) -> list[list[str]]:
    """Returns the cells of a file's Markdown table whose first column is called `heading`."""
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            break
    next(lines)  # the rule under the heading
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def gather_releases(side: str, beside: dict[str, str]) -> list[str]:
    """Returns the releases of a side and what they need beside them; a package's first mention decides."""
    releases: dict[str, str] = {}
    waiting = [word for word in side.split() if "==" in word]
    while waiting:
        release = waiting.pop(0)
        package = release.partition("==")[0]
        if package not in releases:
            releases[package] = release
            waiting += beside.get(release, "").split()
    return list(releases.values())


def locate_release(release: str, folder: Path) -> Path:
    return folder / release.replace("==", "-")


def install_releases(releases: list[str], folder: Path) -> list[str]:
    """Installs the releases that are not there yet; returns those that failed."""
    failed = []
    for release in releases:
        target = locate_release(release, folder)
        if target.exists():
            continue
        print("installing", release, flush=True)
        unfinished = target.with_name(f"{target.name}.part")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        if subprocess.run([*command, "--target", str(unfinished), release]).returncode:
            failed.append(release)
        else:
            unfinished.rename(target)
    return failed


def ask(
    words: list[str], splits: list[str], releases: list[str], folder: Path, limit: int
) -> subprocess.CompletedProcess[str]:
    """Asks `isobatch same` about a script of bench/same at splits, with these releases."""
    paths = [str(locate_release(release, folder)) for release in releases]
    inherited = os.environ.get("PYTHONPATH")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths + ([inherited] if inherited else [])),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}" + os.environ["PATH"],
    }
    command = [sys.executable, "-m", "isobatch", "same", "--json", "--limit", str(limit)]
    command += [word for split in splits for word in ("--split", split)]
    command += ["--", "python", str(HERE / "same" / words[0]), *words[1:], *BATCH]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)


def ask_side(case: Case, side: str, releases: list[str], folder: Path, limit: int) -> Answer:
    """Asks `isobatch same` whether the script of a case trains the same at its split with these releases."""
    options = [word for word in side.split() if "==" not in word and word != "–"]
    start = time.monotonic()
    process = ask(
        [*case.script.split(), *options], [case.split, whole_batch(case.split)], releases, folder, limit
    )
    seconds = time.monotonic() - start
    if process.returncode not in (0, 1):
        words = " ".join((process.stderr or process.stdout).split())
        return Answer(None, f"exit {process.returncode}: {words[-300:]}", [], 0.0, seconds)
    answer = json.loads(process.stdout)
    split = next(part for part in answer["splits"] if part["split"] == case.split)
    causes = "; ".join(cause["name"] for cause in split["causes"])
    return Answer(split["same"], causes, split["weights"] or [], split["residual"] or 0.0, seconds)


def sweep_zero(beside: dict[str, str], folder: Path, limit: int) -> None:
    """Prints the answers about DeepSpeed at each ZeRO stage, with CPU offload and without, by split."""
    print("| deepspeed | ZeRO | offload | " + " | ".join(ZERO_SPLITS) + " | seconds |\n" + "|---" * 7 + "|")
    for release, stage, offload in itertools.product(ZERO_RELEASES, range(4), ([], ["--offload"])):
        start = time.monotonic()
        words = ["deepspeed_loop.py", "--stage", str(stage), *offload]
        process = ask(words, [*ZERO_SPLITS], gather_releases(release, beside), folder, limit)
        cells = [release.partition("==")[2], str(stage), "CPU" if offload else "–"]
        if process.returncode in (0, 1):
            answer = json.loads(process.stdout)
            verdicts = {part["split"]: part for part in answer["splits"]}
            cells += ["; ".join(c["name"] for c in verdicts[s]["causes"]) or "the same" if s in verdicts
                      else "cannot be asked" for s in ZERO_SPLITS]  # fmt: skip
        else:
            cells += [f"exit {process.returncode}: {' '.join(process.stderr.split())[-300:]}"]
        print("| " + " | ".join([*cells, f"{time.monotonic() - start:.0f}"]) + " |", flush=True)


def whole_batch(split: str) -> str:
    """Returns the split that takes the batch of `split` in one pass: no third split is compared."""
    return f"1x1x{math.prod(int(number) for number in split.split('x'))}"


def write_weights(answer: Answer) -> str:
    if not answer.weights:
        return f"residual {answer.residual:.1g}"
    least, most = min(answer.weights), max(answer.weights)
    return f"{least:.4f}" if most - least < 5e-4 else f"{least:.3f} to {most:.3f}"


def write_verdict(answer: Answer) -> str:
    return {True: "the same", False: "not the same", None: "cannot be asked"}[answer.same]


def write_row(case: Case, buggy: Answer, mended: Answer) -> list[str]:
    """Returns the cells of a case."""
    cells = [case.name, case.thread, f"{case.buggy} → {case.mended}", case.split]
    cells += [write_verdict(buggy), buggy.causes, write_weights(buggy)]
    cells += [write_verdict(mended) + ("" if mended.same else f": {mended.causes}")]
    cells += [f"{buggy.seconds:.0f} + {mended.seconds:.0f}"]
    return [cell.replace("|", "/") for cell in cells]


def write_results(cases: list[Case], answered: dict[str, list[str]]) -> str:
    rows = [answered[case.name] for case in cases if case.name in answered]
    for row, case in zip(rows, (case for case in cases if case.name in answered), strict=True):
        causes = row[5].partition(UNNAMED)[0].strip()
        is_named = row[4] == "not the same" and re.search(CAUSES[case.cause], causes, re.IGNORECASE)
        row[5] = causes if is_named else f"{causes} {UNNAMED} {case.cause})".strip()
    verdicts = [(row[4], row[7]) for row in rows]
    located = sum(buggy == "not the same" for buggy, _ in verdicts)
    named = sum(UNNAMED not in row[5] for row in rows)
    alarms = sum(mended.startswith("not the same") for _, mended in verdicts)
    unasked = sum(side.startswith("cannot be asked") for pair in verdicts for side in pair)
    columns = "case|thread|with the bug → mended|split|verdict|cause named|weights|mended|seconds"
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"
    return "\n".join(
        [
            "# `isobatch same` on published bugs",
            "",
            f"> `isobatch same` found {located} of {len(rows)} published bugs and named {named}, with "
            f"{alarms} false alarms on the fixed releases; {unasked} could not be tested.",
            "",
            f"`python bench/same.py run` on {machine}. “Rebuilt” scripts have a thread's fault alone.",
            "",
            "| " + columns.replace("|", " | ") + " |",
            "|" + "---|" * 9,
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
        ]
    )


def run_cases(cases: list[Case], named: list[str], beside: dict[str, str], folder: Path, limit: int) -> None:
    """Asks about the cases that are named, or else have no row yet, and writes each as it is answered."""
    for case in cases:
        rows = {row[0]: row for row in read_table(RESULTS, "case")}
        if case.name not in named if named else case.name in rows:
            continue
        answers = []
        for side in (case.buggy, case.mended):
            answer = ask_side(case, side, gather_releases(side, beside), folder, limit)
            print(f"{case.name:24} {write_verdict(answer):15} {write_weights(answer):16}", answer.causes)
            answers.append(answer)
        rows = {row[0]: row for row in read_table(RESULTS, "case")} | {case.name: write_row(case, *answers)}
        _, *more = RESULTS.read_text().partition("\n## ")  # what a question takes
        RESULTS.write_text(write_results(cases, rows) + "".join(more))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("envs", "run", "zero"))
    parser.add_argument("case", nargs="*")
    parser.add_argument(
        "--folder", type=Path, default=HERE.parent / "build" / "same", help="where the releases are"
    )
    parser.add_argument("--limit", type=int, default=240, help="seconds for each side")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cases = [Case(*cells) for cells in read_table(CASES, "case")]
    beside = dict(read_table(CASES, "release"))
    if options.task == "envs":
        wanted = [case for case in cases if case.name in options.case or not options.case]
        sides = [side for case in wanted for side in (case.buggy, case.mended)]
        releases = sorted({release for side in sides for release in gather_releases(side, beside)})
        failed = install_releases(releases, folder)
        print("not installed:", *failed or ["none"])
        return int(bool(failed))
    if options.task == "zero":
        sweep_zero(beside, folder, options.limit)
        return 0
    run_cases(cases, options.case, beside, folder, options.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
