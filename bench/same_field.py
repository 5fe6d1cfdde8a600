"""Asks `isobatch same` about training scripts of the field, each started as its own documents start it.

    python bench/same_field.py [NAME...] [--cache FOLDER] [--split RxAxM] [--plain]

Without names: all that have no answer yet. `same_field.toml` lists the scripts. The cache holds an
environment for each group of packages (over those of this Python), the sources at a commit, tiny models and
data (`same_field_data.py`, `same_field_models.py`), and the answers, of which bench/results/same_field.md is
written. A script is started where its document starts it, with models and data beside it by the document's
names.
"""

import argparse
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = tomllib.loads((HERE / "same_field.toml").read_text())
RESULTS = HERE / "results" / "same_field.md"
HUB = "https://github.com/"
DESK = "desk"
"""The cache's folder of models and data, where commands without a source start."""


@dataclass(frozen=True)
class Script:
    name: str
    folder: str
    """Of the sources."""
    command: str
    """As the document writes it."""
    added: str = ""
    """Put in the place of `…`, else at the end."""
    expected: str = "the same"
    """Or a word of the cause."""
    check: str = ""
    """How that is known without isobatch."""
    environment: str = "hf"
    stopped: str = ""
    """Why it cannot start on a CPU: the line that stops it."""
    open: str = ""
    """A limit of the compared steps: the verdict is not counted as checked."""

    @property
    def words(self) -> list[str]:
        command = self.command if "…" in self.command else f"{self.command} …"
        return command.replace("…", self.added).split()

    @property
    def head(self) -> str:
        """The command up to its first setting."""
        return " ".join(itertools.takewhile(lambda word: "=" not in word and word[:2] != "--", self.words))

    @property
    def names_added(self) -> str:
        settings = [word for word in self.added.split() if "=" in word or word.startswith("--")]
        names = dict.fromkeys(re.split("[.=]", word)[0] for word in settings)
        return f"added: {' '.join(names)}" if names else "unchanged"


@dataclass(frozen=True)
class Answer:
    """The answer of `isobatch same`; `same` is None where it could not be tested."""

    same: bool | None
    causes: list[str]
    split: str
    """The split asked for; empty: the command's own."""
    text: str
    seconds: float
    commit: str = ""
    """Of isobatch; empty: an earlier one."""

    @property
    def verdict(self) -> str:
        if self.same is None:
            return "not tested"
        return "the same" if self.same else f"not the same: {', '.join(self.causes)}"

    def is_right(self, script: Script) -> bool:
        named = script.expected in self.verdict if script.expected != "the same" else self.same is True
        return self.same is not None and named


def run(words: list[str]) -> None:
    subprocess.run(words, check=True)


def make_environment(name: str, cache: Path) -> Path:
    """Makes an environment over the packages of this Python, once; returns its folder of commands."""
    folder = cache / f"env-{name}"
    if not folder.exists():
        packages = TABLE["environments"][name]
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
        run([*pip, *packages["packages"].split()])
        if "alone" in packages:
            run([*pip, "--no-deps", *packages["alone"].split()])
        for command in (folder / "bin" / "torchrun", folder / "bin" / "accelerate"):
            if not command.exists():  # one of the shared packages', which would start their Python
                shared = Path(sysconfig.get_path("scripts"), command.name).read_text().partition("\n")[2]
                command.write_text(f"#!{folder / 'bin' / 'python'}\n{shared}")
                command.chmod(0o755)
    return folder / "bin"


def place_source(folder: str, cache: Path) -> Path:
    """Checks a source out at its commit, once, and puts the models and data beside the script."""
    if folder == DESK:
        return cache / DESK
    name = folder.partition("/")[0]
    repository, commit, path = TABLE["sources"][name]
    clone = cache / "src" / name
    if not clone.exists():
        run(["git", "clone", "-q", "--filter=blob:none", "--no-checkout", f"{HUB}{repository}", str(clone)])
        run(["git", "-C", str(clone), "checkout", "-q", commit, "--", path])
    place = cache / "src" / folder
    run(["cp", "-rn", f"{cache / DESK}/.", str(place)])
    return place


def ask(script: Script, cache: Path, split: str, *, plain: bool = False) -> Answer:
    """Asks about a script, or starts it alone (`plain`) to see that it trains."""
    commands = make_environment(script.environment, cache)
    for script_name in ("same_field_data.py", "same_field_models.py"):
        run([str(make_environment("hf", cache) / "python"), str(HERE / script_name), str(cache / DESK)])
    place = place_source(script.folder, cache)
    output = cache / "answers" / f"{script.name}.same.json"
    output.unlink(missing_ok=True)
    environment = os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "AXOLOTL_DO_NOT_TRACK": "1",
        "NANOCHAT_BASE_DIR": str(cache / DESK / "nanochat_base"),
        "PYTHONPATH": os.environ.get("PYTHONPATH") or str(HERE.parent / "python"),
    }
    question = [
        sys.executable,
        "-m",
        "isobatch",
        "same",
        "-o",
        str(output),
        *(["--split", split] if split else []),
    ]
    command = script.words if plain else [*question, "--", *script.words]
    start = time.monotonic()
    process = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True)
    seconds = time.monotonic() - start
    splits = json.loads(output.read_text())["splits"] if output.exists() else []
    causes = [*dict.fromkeys(cause["name"] for part in splits for cause in part["causes"])]
    same = {0: True, 1: False}.get(process.returncode)
    text = f"{process.stdout}\n{process.stderr}".strip()
    return Answer(same, causes, split, text, seconds, head_commit())


def head_commit() -> str:
    words = ["git", "-C", str(HERE), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def write_results(scripts: list[Script], answers: dict[str, Answer]) -> str:
    answered = [script for script in scripts if script.name in answers]
    right = [script for script in answered if answers[script.name].is_right(script)]
    checked = [script for script in right if script.check]
    unchanged = [script for script in checked if not script.added]
    wrong = [script for script in answered if answers[script.name].same is not None and script not in right]
    unasked = [script.name for script in scripts if script not in answered]
    lines = []
    for script in answered:
        answer = answers[script.name]
        place = "right" if script in right else "WRONG" if script in wrong else script.stopped or "not tested"
        check = (script.check or script.open) if script in right else ""
        check = "reading" if check.startswith("reading:") else check  # the file of scripts says of what
        named = f"{script.name}: " if script.name not in script.head else ""
        cells = (f"{named}`{script.head}`", script.names_added, answer.verdict)
        cells += (
            f"{place}: {check}" if check else place,
            f"{answer.seconds:.0f}{'' if answer.commit else '*'}",
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(
        [
            "# `isobatch same` on scripts of the field",
            "",
            f"> {len(answered)} scripts answered: {len(right)} right, {len(checked)} of them checked without "
            f"isobatch and {len(unchanged)} of these unchanged; {len(wrong)} wrong.",
            "",
            f"`python bench/same_field.py`, {os.cpu_count()} cores with other work on them, Python "
            f"{platform.python_version()} (*: asked at an earlier commit). bench/same_field.toml has "
            "commands as documents write them, commits, packages, and the code that was read. Seconds are of "
            "all splits, two scripts at a time.",
            "",
            "| script | what was added | verdict | checked by | s |",
            "|---|---|---|---|---|",
            *lines,
            "",
            *([f"Not asked yet: {', '.join(unasked)}.", ""] if unasked else []),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "field")
    parser.add_argument("--split", default="", help="instead of the command's own")
    parser.add_argument(
        "--plain", action="store_true", help="start each alone, without isobatch, and show its words"
    )
    options = parser.parse_args()
    cache = options.cache.resolve()
    folder = cache / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    scripts = [Script(**{key: value.strip() for key, value in row.items()}) for row in TABLE["scripts"]]
    for script in scripts:
        place = folder / f"{script.name}.json"
        if script.name not in options.name if options.name else place.exists():
            continue
        answer = ask(script, cache, options.split, plain=options.plain)
        print(f"=== {script.name}: {answer.verdict} ({answer.seconds:.0f} s)\n{answer.text}\n", flush=True)
        if not options.plain:
            place.write_text(json.dumps(asdict(answer)))
    answers = {
        script.name: Answer(**json.loads(place.read_text()))
        for script in scripts
        if (place := folder / f"{script.name}.json").exists()
    }
    RESULTS.write_text(write_results(scripts, answers))


if __name__ == "__main__":
    main()
