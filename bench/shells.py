"""Shell scripts as read by isobatch beside bash's own commands: published scripts, and mutations of small
ones.

    python bench/shells.py FOLDER... > bench/results/shells.md    # each folder a checkout with launch scripts
    python bench/shells.py --fuzz 1000000                         # mutations of small scripts, many in one
    bash

Needs bash and root, or a user that may change to nobody: each script runs as nobody, in an empty folder, with
an empty environment, and its PATH has nothing but programs that write their arguments down.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from isobatch.errors import InputError
from isobatch.tools.shells.execution import Execution
from isobatch.tools.shells.launches import Launch
from isobatch.tools.shells.state import Shell, is_mark
from isobatch.tools.shells.training import candidates, is_training, kinds, trainings

BASH = "/bin/bash"
NOBODY = 65534
NAMES = [
    "torchrun",
    "python",
    "python3",
    "srun",
    "mpirun",
    "deepspeed",
    "accelerate",
    "swift",
    "megatron",
    "singularity",
    "nohup",
    "bash",
    "sh",
    "sbatch",
    "ray",
    "uv",
]
STUB = r"""#!/bin/bash
unset BASH_ENV
{ printf '%s\0' "${0##*/}" "$@"; printf '\1\0'; } >> "$STUB_LOG"
for ((i = 1; i < $#; i++)); do
  j=$((i + 1)); name=${!i##*/}
  if [[ ( $name = bash || $name = sh ) && ${!j} = -*c* ]]; then BASH_ENV=$STUB_ENV exec /bin/bash "${@:j}"; fi
done
if [[ ( ${0##*/} = bash || ${0##*/} = sh ) && $1 = -*c* ]]; then BASH_ENV=$STUB_ENV exec /bin/bash "$@"; fi
last=${0##*/}; [ $# -gt 0 ] && last=${!#}
if [[ ${0##*/} = sbatch || ${last##*/} = bash || ${last##*/} = sh ]] && [ ! -t 0 ]; then
  BASH_ENV=$STUB_ENV exec /bin/bash
fi
exit 0
"""
NOT_THERE = "command_not_found_handle() { return 0; }; source() { return 0; }; cd() { return 0; }\n"
"""Commands that are not there, files that are not beside the script: they do nothing, well."""
FILE = re.compile(r"\.(sh|slurm|sbatch|bash)$")
TRAINS = re.compile(
    r"--(micro-batch-size|global-batch-size|per_device_train_batch_size|learning_rate|lr)\b"
    r"|\b(train_batch_size|optim\.lr)="
)


class Sandbox:
    """A folder for scripts, with programs to write down their arguments and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work, self.log = folder, folder / "work", folder / "log"
        (folder / "bin").mkdir()
        for name in NAMES:
            (folder / "bin" / name).write_text(STUB)
            (folder / "bin" / name).chmod(0o755)
        for name in ("expr", "mkdir", "date", "dirname", "basename"):
            (folder / "bin" / name).symlink_to(f"/usr/bin/{name}")
        (folder / "env").write_text(NOT_THERE)
        folder.chmod(0o755)

    def launches(self, text: str, environment: dict[str, str], arguments: Sequence[str]) -> list[list[str]]:
        """Returns bash's commands."""
        subprocess.run(["rm", "-rf", self.work], check=True)
        self.work.mkdir()
        self.log.write_bytes(b"")
        script = self.folder / "script.sh"
        script.write_text(text)
        for path in (self.work, self.log):
            os.chown(path, NOBODY, NOBODY)
        variables = {
            **environment,
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.work),
            "BASH_ENV": str(self.folder / "env"),
        }
        variables |= {"STUB_LOG": str(self.log), "STUB_ENV": str(self.folder / "env")}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [BASH, str(script), *arguments],
                env=variables, cwd=self.work, user=NOBODY, group=NOBODY, timeout=10, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, check=False,
            )  # fmt: skip
        records = self.log.read_bytes().decode(errors="surrogateescape").split("\1\0")
        return [record.split("\0")[:-1] for record in records[:-1]]


def read(text: str, environment: dict[str, str], arguments: tuple[str, ...] | None) -> Execution:
    """Follows a script in this environment."""
    execution = Execution()
    execution.run(text, Shell(variables=dict(environment), exported=set(environment), arguments=arguments))
    return execution


def agrees(words: Sequence[str], bash: Sequence[str]) -> bool:
    """Tells whether known words equal bash's; an unknown word may be any, or none."""
    out = []
    for number, word in enumerate(words):
        if word and all(map(is_mark, word)):
            out.append("(?:[^\0]*\0)*?")
        else:
            word = word.rpartition("/")[2] if number == 0 else word
            plain = "".join(".*?" if is_mark(char) else re.escape(char) for char in word)
            out.append(plain.replace(".*?\\ ", "(?:.*?\\ )?") + "\0")
    return re.fullmatch("".join(out), "".join(f"{word}\0" for word in bash), re.DOTALL) is not None


def judge(sandbox: Sandbox, text: str) -> tuple[str, str]:
    """One script: equal, refused, of no training, or wrong; and why."""
    try:
        first = read(text, {}, None)
        launches = trainings(first, None)
    except InputError as error:
        return "refused", re.sub(r"line \d+", "line N", str(error))[:60]
    if not launches:
        return "no training", ""
    missing = {
        reason.source.strip("${}")
        for reason in first.marks.reasons
        if reason.why == "which is not set in this file"
    }
    heads = {re.match(r"\w*", name)[0] for name in missing}  # type: ignore[index]
    names = heads - {""} - set(first.expansion.defaults)
    verdicts = [_one(sandbox, text, {}, (), launches)]
    environment = dict.fromkeys(sorted(names), "8")
    try:
        second = read(text, environment, ("8",) * 9)
        verdicts.append(_one(sandbox, text, environment, ("8",) * 9, candidates(second)))
    except InputError:
        pass
    wrong = next((why for verdict, why in verdicts if verdict == "wrong"), None)
    if wrong is not None:
        return "wrong", wrong
    return (
        ("equal", "")
        if any(verdict == "equal" for verdict, _ in verdicts)
        else ("bash trains nothing here", verdicts[0][1])
    )


def _one(
    sandbox: Sandbox,
    text: str,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    read: Sequence[Launch],
) -> tuple[str, str]:
    every = [Launch(0, tuple(words), ()) for words in sandbox.launches(text, environment, arguments) if words]
    ran = [launch.words for launch in every if is_training(launch)] or [
        launch.words for launch in every if kinds(launch)
    ]
    if not ran:
        return "stopped", ""
    for words in ran:
        if not any(agrees(launch.words, words) for launch in read):
            return "wrong", (f"bash: {' '.join(words)[:3000]}\n  read: {[launch.words for launch in read]}")[
                :6000
            ]
    return "equal", ""


def scripts(folder: Path) -> Iterator[tuple[str, str]]:
    """The launch scripts of a checkout."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and FILE.search(path.name):
            text = path.read_text(errors="replace")
            if TRAINS.search(text):
                yield str(path.relative_to(folder)), text


def published(folders: Sequence[Path]) -> None:
    """Prints a row for each folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        sandbox = Sandbox(Path(place))
        print(
            "| scripts of | scripts | equal | bash trains nothing here | no training | refused | wrong |\n"
            "|---|---|---|---|---|---|---|"
        )
        reasons: Counter[str] = Counter()
        for folder in folders:
            counts: Counter[str] = Counter()
            for name, text in scripts(folder):
                verdict, why = judge(sandbox, text)
                counts[verdict] += 1
                if verdict == "refused":
                    reasons[
                        re.sub(r"starts \d+ trainings.*", "starts several trainings: they are listed", why)
                    ] += 1
                elif verdict != "equal":
                    print(f"{verdict}: {name} {why}", file=sys.stderr)
            cells = [
                counts[outcome]
                for outcome in ("equal", "bash trains nothing here", "no training", "refused", "wrong")
            ]
            print(f"| {folder.name} | {sum(counts.values())} | {' | '.join(map(str, cells))} |")
        print("\nRefused:", "; ".join(f"{why} ({count})" for why, count in reasons.most_common()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.fuzz:
        from shells_fuzz import fuzz

        fuzz(args.fuzz, random.Random(args.seed))
    else:
        published(args.folders)


if __name__ == "__main__":
    main()
