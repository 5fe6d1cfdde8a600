"""Asks `isobatch same` about published bugs: is each reported, and is its mended release let through?

    python bench/same.py envs             installs the releases of bench/same/cases.md under build/same
    python bench/same.py run [CASE...]    asks about both sides of each case, writes bench/results/same.md

A release is a folder of its own on PYTHONPATH, installed without its dependencies on today's torch. `run`
keeps each answer in a file beside them; it asks again where a case is named.
"""

import argparse
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
BATCH = ("--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accumulation}")
CAUSES = {  # a cause of the table, and what names it in an answer
    "means of passes": r"micro-batch(es)?\b.*mean|pass(es)?('s?)?\b.*mean|mean.*(micro-batch|pass)",
    "means of ranks": r"ranks?\b.*mean|mean.*rank",
    "accumulation": r"accumulation",
    "last window": r"accumulation|last|window|passes",
    "one over ranks": r"1/ranks|ranks",
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
    """What `isobatch same` said of one side; `same` is None where it could not be asked."""

    same: bool | None
    causes: str
    weights: list[float]
    residual: float
    seconds: float


def read_table(heading: str) -> list[list[str]]:
    """Returns the cells of the Markdown table whose first column is called `heading`."""
    lines = iter(CASES.read_text().splitlines())
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


def ask_side(case: Case, side: str, releases: list[str], folder: Path, limit: int) -> Answer:
    """Asks `isobatch same` whether the script of a case trains the same at its split with these releases."""
    paths = [str(locate_release(release, folder)) for release in releases]
    inherited = os.environ.get("PYTHONPATH")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths + ([inherited] if inherited else [])),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}" + os.environ["PATH"],
    }
    script, *arguments = case.script.split()
    options = [word for word in side.split() if "==" not in word]
    question = f"--split {case.split} --split {whole_batch(case.split)} --json --limit {limit} --"
    command = [sys.executable, "-m", "isobatch", "same", *question.split()]
    command += ["python", str(HERE / "same" / script), *arguments, *options, *BATCH]
    start = time.monotonic()
    process = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    seconds = time.monotonic() - start
    if process.returncode not in (0, 1):
        words = " ".join((process.stderr or process.stdout).split())
        return Answer(None, f"exit {process.returncode}: {words[-300:]}", [], 0.0, seconds)
    answer = json.loads(process.stdout)
    split = next(part for part in answer["splits"] if part["split"] == case.split)
    causes = "; ".join(f"{cause['name']}: {cause['text']}" for cause in split["causes"])
    return Answer(split["same"], causes, split["weights"] or [], split["residual"] or 0.0, seconds)


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


def write_results(cases: list[Case], answers: dict[tuple[str, ...], Answer]) -> str:
    located = named = alarms = 0
    lines = []
    for case in cases:
        buggy, mended = answers[case.name, "buggy"], answers[case.name, "mended"]
        right = buggy.same is False and re.search(CAUSES[case.cause], buggy.causes, re.IGNORECASE) is not None
        located += buggy.same is False
        named += right
        alarms += mended.same is False
        releases = f"{case.buggy} → {case.mended}"
        seconds = f"{buggy.seconds:.0f} + {mended.seconds:.0f}"
        cells = [case.name, case.thread, releases, case.split, write_verdict(buggy), buggy.causes]
        cells += [case.cause + ("" if right else " (not named)"), write_weights(buggy)]
        cells += [
            write_verdict(mended) + ("" if mended.same else f": {mended.causes}"),
            write_weights(mended),
            seconds,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    columns = "case|thread|with the bug → mended|split|verdict|cause named|cause expected|weights"
    columns += "|mended|weights|seconds"
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"
    unasked = sum(answer.same is None for answer in answers.values())
    return "\n".join(
        [
            "# `isobatch same` on published bugs",
            "",
            f"> `isobatch same` found {located} of {len(cases)} published bugs and named {named}, with "
            f"{alarms} false alarms on the fixed releases; {unasked} could not be tested.",
            "",
            f"`python bench/same.py run` on {machine}. Each case is a script of `bench/same/` with a release",
            "that has the bug, and with one that fixes it.",
            "",
            "| " + columns.replace("|", " | ") + " |",
            "|" + "---|" * 11,
            *lines,
            "",
        ]
    )


def run_cases(cases: list[Case], named: list[str], beside: dict[str, str], folder: Path, limit: int) -> None:
    """Asks about the cases that are named, or else have no answer yet, and writes the results."""
    store = folder / "answers"
    store.mkdir(exist_ok=True)
    for case in cases:
        if named and case.name not in named:
            continue
        for label, side in (("buggy", case.buggy), ("mended", case.mended)):
            path = store / f"{case.name} {label}.json"
            if path.exists() and not named:
                continue
            answer = ask_side(case, side, gather_releases(side, beside), folder, limit)
            print(
                f"{case.name:24} {label:6} {write_verdict(answer):15} {write_weights(answer):16}",
                answer.causes,
                flush=True,
            )
            path.write_text(json.dumps(vars(answer)))
    answers = {tuple(path.stem.split()): Answer(**json.loads(path.read_text())) for path in store.iterdir()}
    whole = [case for case in cases if {(case.name, "buggy"), (case.name, "mended")} <= answers.keys()]
    answers = {key: answer for key, answer in answers.items() if key[0] in {case.name for case in whole}}
    RESULTS.write_text(write_results(whole, answers))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("envs", "run"))
    parser.add_argument("case", nargs="*")
    parser.add_argument(
        "--folder", type=Path, default=HERE.parent / "build" / "same", help="where the releases are"
    )
    parser.add_argument("--limit", type=int, default=240, help="seconds for each side")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cases = [Case(*cells) for cells in read_table("case")]
    beside = dict(read_table("release"))
    if options.task == "envs":
        sides = [side for case in cases for side in (case.buggy, case.mended)]
        releases = sorted({release for side in sides for release in gather_releases(side, beside)})
        failed = install_releases(releases, folder)
        print("not installed:", *failed or ["none"])
        return int(bool(failed))
    run_cases(cases, options.case, beside, folder, options.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
