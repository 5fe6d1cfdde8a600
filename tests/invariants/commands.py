"""Commands on files of strangers end soon with 0, 1 or 2, and write no control character."""

import contextlib
import functools
import io
import json
import os
import random
import sys
import time
from pathlib import Path
from unittest import mock

import yaml

from invariants.files import changed_bytes, grafted, seeds
from isobatch.cli import main
from isobatch.tools.detect import TOOLS, tool_of
from tools.test_reading import PUBLISHED

ROOT = Path(__file__).parents[2]
SLOW = 5.0
"""Seconds of processor time that no command on a file of a few kilobytes may take."""
WRITERS = [name for name in TOOLS if tool_of(name).writer]
SETTINGS = ("--set", "effective_batch=256", "--set", "lr=0.1", "--set", "duration=100st")

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "tool": (
        ("doctor", "FILE", "--gpus", "8"),
        ("plan", "--from", "FILE", "--gpus", "6", "--policy", "grow"),
        ("plan", "--from", "FILE", "--gpus", "8", "--set", "gpus=4", "--set", "dataset_size=5000", "--to",
            "TOOL"),
        ("counts", "--from", "FILE", "--gpus", "1..4"),
    ),
    "recipe": (("plan", "FILE", "--gpus", "8", "--to", "TOOL"), ("counts", "FILE", "--gpus", "1..4"),
        ("doctor", "FILE", "--gpus", "8")),
    "plan": (
        ("explain", "FILE"),
        ("replan", "FILE", "--at-step", "5", "--gpus", "4"),
        ("plan", "FILE", "--to", "TOOL"),
        ("schedule", "FILE"),
        ("schedule", "FILE", "--plot"),
    ),
    "profile": (("plan", *SETTINGS, "--gpus", "8", "--profile", "FILE"),
        ("counts", *SETTINGS, "--gpus", "1..4", "--profile", "FILE")),
    "measurements": (("calibrate", "FILE", "-o", "OUT.json"),),
    "schedule": (("schedule", "FILE"), ("schedule", "FILE", "--plot")),
    "jobs": (
        ("fleet", "FILE", "--gpus", "8", "-o", "OUT.csv"),
        ("fleet", "FILE", "CLUSTERS"),
        ("fleet", "FILE", "--gpus", "8", "--json"),
        ("allocate", "FILE", "64"),
    ),
    "clusters": (("fleet", "JOBS", "FILE", "-o", "OUT.csv"),),
    "pairs": (("fleet", "JOBS", "CLUSTERS", "--pairs", "FILE", "-o", "OUT.csv"),),
    "plans": (("explain", "FILE"), ("explain", "FILE", "--jobs", "JOBS"),
        ("report", "FILE", "--to", "TOOL", "-o", "OUT", "--force")),
    "model": (("estimate", "FILE", "--seq-len", "4096", "--gpu", "H100-80"),),
    "requests": (("plan", "-"), ("fleet", "-", "--gpus", "8")),
}  # fmt: skip
"""Commands for each kind of file."""


@functools.cache
def files() -> dict[str, list[tuple[str, bytes]]]:
    """Whole files of each kind: a suffix, and the bytes."""
    examples = ROOT / "examples"
    published = [(Path(name).suffix, text.encode()) for name, text, *_ in PUBLISHED.values()]
    configs = [(path.suffix, path.read_bytes()) for path in sorted((examples / "configs").iterdir())]
    own = {
        kind: [(suffix, text) for text in whole]
        for kind, (suffix, whole) in seeds().items()
        if kind in ("plan", "profile", "measurements", "schedule")
    }
    jobs, clusters = ((examples / name).read_bytes() for name in ("jobs.csv", "clusters.csv"))
    _, plans, _ = run_command(["fleet", str(examples / "jobs.csv"), str(examples / "clusters.csv")])
    first = {
        name: text.split(b"\n")[1].split(b",")[0] for name, text in (("job", jobs), ("cluster", clusters))
    }
    request = {"recipe": {"effective_batch": 256, "lr": 0.1, "duration": "10st"}, "gpus": 8, "explain": True}
    return {
        "tool": [*published, *configs],
        "recipe": [(".toml", (examples / "job.toml").read_bytes())]
        + [(f".{kind.partition('.')[2]}", text) for kind,
            (_, whole) in seeds().items() for text in whole if "recipe" in kind],
        **own,
        "jobs": [(".csv", jobs), (".jsonl",
            b'{"job": "a", "effective_batch": 256, "lr": 0.1, "betas": [0.9, 0.99]}\n' * 3)],
        "clusters": [(".csv", clusters)],
        "pairs": [(".csv", b"job,cluster\n" + first["job"] + b"," + first["cluster"] + b"\n")],
        "plans": [(".csv", plans.encode())],
        "model": [(".json", (examples / "models" / "llama-3-8b.json").read_bytes())],
        "requests": [(".jsonl", json.dumps(request).encode() + b"\n")],
    }  # fmt: skip


def check_commands(seed: int, commands: int, folder: Path, kinds: tuple[str, ...] = tuple(COMMANDS)) -> int:
    """Changes files and runs a command on each. The file at hand stays in the folder."""
    draw = random.Random(seed)
    (folder / "jobs.csv").write_bytes((ROOT / "examples" / "jobs.csv").read_bytes())
    (folder / "clusters.csv").write_bytes((ROOT / "examples" / "clusters.csv").read_bytes())
    for number in range(commands):
        kind = kinds[number % len(kinds)]
        suffix, text = draw.choice(files()[kind])
        changed = changed_file(draw, suffix, text)
        path = folder / f"{draw.choice(['file', 'file', 'training_args', chr(27) + '[2J'])}{suffix}"
        path.write_bytes(changed)
        words = [
            word.replace("FILE", str(path)).replace("OUT", str(folder / "out")).replace("JOBS",
                str(folder / "jobs.csv"))
            .replace("CLUSTERS", str(folder / "clusters.csv")).replace("TOOL", draw.choice(WRITERS))
            for word in draw.choice(COMMANDS[kind])
        ]  # fmt: skip
        started = time.process_time()
        code, out, err = run_command(words, changed)
        took = time.process_time() - started
        fault = fault_of(words, code, out, err) or (f"{took:.1f} s" if took > SLOW else "")
        if fault:
            copy = folder / f"finding-{seed}-{number}{suffix}"
            copy.write_bytes(changed)
            raise AssertionError(f"{' '.join(words)}: {fault}: seed {seed}, {copy}\n{changed[:300]!r}")
    return commands


def run_command(words: list[str], stdin: bytes = b"") -> tuple[int, str, str]:
    """Runs a command in this process: its exit code, stdout and stderr."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        mock.patch.object(sys, "stdin", source),
        mock.patch.dict(os.environ, {"ISOBATCH_TRACEBACK": "1"}),
    ):
        code = main(words)
    out, err = (stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in streams)
    return code, out, err


DATA = ("fleet", "allocate", "estimate")
"""Commands with a stdout of data, which is as it came; so is that of `plan -`."""


def fault_of(words: list[str], code: int, out: str, err: str) -> str:
    """Describes a command's forbidden acts; None if there are none."""
    if code not in (0, 1, 2) or "Traceback" in err:
        return f"exit {code}: {err[-1500:]}"
    if code == 2 and not err:
        return "exit 2 without a word"
    for name, text in (("stdout", "" if words[0] in DATA or words[1:2] == ["-"] else out), ("stderr", err)):
        if hidden := sorted({c for c in text if not c.isprintable() and c not in "\n\t"}):
            return f"control characters {hidden} on {name}"
    return ""


VALUES = (
    "x", "[]", "{}", "[[1]]", "{a: {b: [1]}}", "null", "true", "-1", "0", "1e999", ".nan", "9" * 400,
    '"\\e[2J"', '"\\u001b[2J"', '""', "",
    "2020-01-01", "!!bool x", "!!timestamp foo", "!!set [a]", "!!map [a]", "!!binary x", "!!int [a]",
    "&a [*a]", "'", '"', "1,5", "@", "0x",
    "\u2028", "s3://KEY:SECRET@bucket/x", "\x1b]0;x\x07",
)  # fmt: skip


def changed_file(draw: random.Random, suffix: str, text: bytes) -> bytes:
    """A file changed in a few places: as a tree, a line at a time, or as bytes."""
    how = draw.random()
    if suffix in (".json", ".yaml", ".yml") and how < 0.5:
        with contextlib.suppress(yaml.YAMLError, RecursionError, ValueError):
            tree = grafted(
                draw,
                json.loads(text)
                if suffix == ".json"
                else yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)),
            )
            return (json.dumps(tree) if suffix == ".json" else yaml.safe_dump(tree)).encode(
                errors="backslashreplace"
            )
    if how < 0.8:
        lines = text.decode(errors="replace").split("\n")
        for _ in range(draw.choice([1, 1, 2, 4])):
            at = draw.randrange(len(lines))
            lines[at] = _changed_line(draw, lines, lines[at])
        return "\n".join(lines).encode(errors="replace")
    return changed_bytes(draw, [text], text)


def _changed_line(draw: random.Random, lines: list[str], line: str) -> str:
    """Another value behind one of a line's names, another cell, the line twice, or another line."""
    ends = [place for place, character in enumerate(line) if character in ":=, "]
    kind = draw.randrange(6)
    if kind < 4 and ends:
        place = draw.choice(ends)
        rest = line[place + 1 :]
        after = rest[min((rest.find(mark) for mark in ",}" if mark in rest), default=len(rest)) :]
        return f"{line[: place + 1]} {draw.choice(VALUES)}{after}"
    return f"{line}\n{line}" if kind == 4 else draw.choice(lines)
