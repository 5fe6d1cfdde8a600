"""Runs the census: each head in a fork of one process that has imported what all need."""

import hashlib
import json
import multiprocessing
import os
import re
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from census import losses, trl_heads
from census.ask import ask_head
from census.heads import ORDER, ROUTED, Head, list_heads

ANSWERS = Path(__file__).resolve().parents[1] / "results" / "census.jsonl"
SECONDS, MEMORY = 240, 6 << 30
"""Limits of a head: wall time, since other work may share the cores, and address space above today's."""
BUILDER = ("tiny.py", "families.py", "rows.py", "ask.py")


def digest() -> str:
    """Digests the files that build and ask a head."""
    content = b"".join((Path(__file__).parent / name).read_bytes() for name in BUILDER)
    return hashlib.sha256(content).hexdigest()[:8]


def read_answers() -> dict[str, dict[str, Any]]:
    """Reads the answers that there are, by head."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines() if ANSWERS.exists() else []
    return {record["head"]: record for record in map(json.loads, lines)}


def run(pattern: str, limit: float) -> None:
    """Asks heads without an answer of this release and builder, until all have one or the time is over."""
    began, answers = time.monotonic(), read_answers()
    for name, package, ask in _questions(answers, pattern):
        if time.monotonic() - began > 60 * limit:
            break
        record = {"head": name, "package": package, "release": version(package), "builder": digest()}
        record |= _ask_apart(ask)
        answers[name] = record
        _write(answers)
        print(
            f"{time.monotonic() - began:6.0f} s  {name}: {record.get('verdict') or record.get('why')}",
            flush=True,
        )


def add_same_code() -> None:
    """Judges heads that were not run by those with the same loss code, where all that were run agree."""
    answers, groups = read_answers(), defaultdict(list)
    for head in list_heads():
        groups[head.code].append(head.name)
    for names in groups.values():
        run = [answers[name] for name in names if answers.get(name, {}).get("asked") == "run"]
        if len({(record["verdict"], record["cause"], record["ranks"]) for record in run}) != 1:
            continue
        shared = {
            name: run[0][name] for name in ("package", "release", "builder", "verdict", "cause", "ranks")
        }
        for name in names:
            if answers.get(name, {}).get("asked") != "run":
                weights = {"weights": {}, "as": run[0]["head"]}
                answers[name] = {"head": name, **shared, "asked": "same code", **weights}
    _write(answers)


def ask_one(name: str) -> dict[str, Any]:
    """Asks one head in this process."""
    questions = {question[0]: question[2] for question in _all_questions({})}
    if name not in questions:
        raise SystemExit(f"no head {name!r}: its name is as in bench/results/census.jsonl")
    return questions[name]()


Question = tuple[str, str, Callable[[], dict[str, Any]]]


def _all_questions(answers: dict[str, dict[str, Any]]) -> Iterator[Question]:
    """Yields every head: losses, one of each loss code of transformers, and the rest, among them TRL's."""
    yield from losses.questions()
    trainers = trl_heads.questions()
    for number, head in enumerate(_in_order(list_heads())):
        yield head.name, "transformers", partial(ask_head, head)
        if answers.get(head.name, {}).get("router"):
            yield head.name + ROUTED, "transformers", partial(ask_head, head, routed=True)
        if number % 3 == 0:
            yield from islice(trainers, 1)
    yield from trainers


def _questions(answers: dict[str, dict[str, Any]], pattern: str) -> Iterator[Question]:
    current = digest()
    for name, package, ask in _all_questions(answers):
        known = answers.get(name)
        is_known = (
            known is not None
            and known["asked"] != "same code"
            and known["release"] == version(package)
            and known["builder"] == current
        )
        if not is_known and re.search(pattern, name):
            yield name, package, ask


def _in_order(heads: list[Head]) -> list[Head]:
    """Orders heads: codes by their number of heads, a code's heads in turn: few runs judge many."""
    by_code: dict[str, list[Head]] = {}
    for head in heads:
        by_code.setdefault(head.code, []).append(head)
    codes = sorted(by_code.values(), key=lambda group: (-len(group), group[0].kind not in ORDER))
    turns = max(map(len, codes))
    return [group[turn] for turn in range(turns) for group in codes if turn < len(group)]


def _ask_apart(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Asks in a fork with limits of time and memory: whatever happens there is a record here."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_answer_to, args=(writer, ask))
    process.start()
    writer.close()
    try:
        record = reader.recv() if reader.poll(SECONDS) else {"why": f"took more than {SECONDS} s"}
    except EOFError:
        process.join()
        record = {"why": f"ended with exit code {process.exitcode}"}
    if process.is_alive():
        process.join(1)
        _end_group(process.pid)
    process.join()
    return {"asked": "not built", **record}


def _end_group(pid: int | None) -> None:
    """Ends a head's process and its ranks."""
    try:
        os.killpg(pid or 0, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _answer_to(writer: Any, ask: Callable[[], dict[str, Any]]) -> None:
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, -1))
    with Path(os.devnull).open("wb") as quiet:
        os.dup2(quiet.fileno(), 1)
        os.dup2(quiet.fileno(), 2)
    try:
        record = ask()
    except BaseException as error:  # whatever a head raises is its answer
        record = {"why": f"{type(error).__name__}: {str(error)[:160]}"}
    writer.send(record)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _write(answers: dict[str, dict[str, Any]]) -> None:
    """Writes all answers, whole or not at all."""
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in answers.values()]
    part = ANSWERS.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(ANSWERS)
