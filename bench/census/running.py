"""Runs the census: each head in a fork of one process that has imported what all need."""

import ast
import gc
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
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from census import by_hand, losses, page, trl_heads
from census.ask import ask_head
from census.heads import ORDER, ROUTED, Head, list_heads

ANSWERS = Path(__file__).resolve().parents[1] / "results" / "census.jsonl"
SECONDS, PROCESSOR, MEMORY = 300, 120, 6 << 30
"""Limits of a head: seconds on the wall and of processor, and address space above today's."""
WORKERS = 2
UNASKED = {"package": "transformers", "builder": "none", "asked": "not built", "why": "not asked yet"}
SHARED = ("package", "release", "builder", "verdict", "cause", "ranks")
"""Fields that heads of one loss code share."""
BUILDERS = {
    "transformers": ("tiny.py", "families.py", "rows.py"),
    "trl": ("trl_heads.py",),
    "peft": ("trl_heads.py",),
}
"""Files by package that build its heads; others are built by losses.py."""
BY_HAND = ("by_hand.py", *BUILDERS["transformers"])


def digest(package: str, head: str) -> str:
    """Digests the code, without comments, that builds and asks a head."""
    return _digest(BY_HAND if head in by_hand.BUILDS else BUILDERS.get(package, ("losses.py",)))


@cache
def _digest(names: tuple[str, ...]) -> str:
    folder = Path(__file__).parent
    trees = [ast.parse((folder / name).read_text(encoding="utf-8")) for name in (*names, "ask.py")]
    return hashlib.sha256("".join(map(ast.dump, trees)).encode()).hexdigest()[:8]


def read_answers() -> dict[str, dict[str, Any]]:
    """Reads the answers that there are, by head."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines() if ANSWERS.exists() else []
    return {record["head"]: record for record in map(json.loads, lines)}


def run(pattern: str, limit: float) -> None:
    """Asks heads without an answer of this release and builder, until all have one or the time is over."""
    began, answers, forks = time.monotonic(), read_answers(), {}
    questions = _questions(answers, pattern)
    _import_all()
    while True:
        while len(forks) < WORKERS and time.monotonic() - began < 60 * limit:
            if (question := next(questions, None)) is None:
                break
            start = _Asked(*question)
            forks[start.reader] = start
        if not forks:
            return
        ready = wait(list(forks), timeout=1)
        for reader, head in list(forks.items()):
            if reader in ready or time.monotonic() - head.began > SECONDS:
                record = forks.pop(reader).end()
                answers[record["head"]] = record
                _write(answers)
                answer = record.get("verdict") or record.get("why")
                print(f"{time.monotonic() - began:6.0f} s  {record['head']}: {answer}", flush=True)


def add_same_code() -> None:
    """Judges heads that were not run by those with the same loss code, where all that were run agree."""
    answers, groups = read_answers(), defaultdict(list)
    for head in list_heads():
        groups[head.code].append(head.name)
    for code, names in groups.items():
        for name in names:
            answers.get(name, {})["code"] = code
        run = [answers[name] for name in names if answers.get(name, {}).get("asked") == "run"]
        run = [record for record in run if not record["cause"].endswith(page.UNKNOWN)] or run
        agree = len({(record["verdict"], record["cause"], record["ranks"]) for record in run}) == 1
        for name in names:
            known = answers.get(name, {"asked": "same code"})
            if known["asked"] == "same code" or known["builder"] == "none":
                answers.pop(name, None)
                known = {"asked": "same code"}
            if agree and known["asked"] != "run":
                shared = {field: run[0][field] for field in SHARED}
                judged = {"head": name, **shared, "asked": "same code", "code": code, "as": run[0]["head"]}
                answers[name] = judged | ({"why": known["why"]} if "why" in known else {})
            elif name not in answers:
                answers[name] = {"head": name, **UNASKED, "release": version("transformers")}
    _write(answers)


def ask_one(name: str) -> dict[str, Any]:
    """Asks one head in this process."""
    for known, _, ask in _all_questions(read_answers()):
        if known == name:
            return ask()
    raise SystemExit(f"no head {name!r}: its name is as in bench/results/census.jsonl")


Question = tuple[str, str, Callable[[], dict[str, Any]]]


def _all_questions(answers: dict[str, dict[str, Any]]) -> Iterator[Question]:
    """Yields one head of each loss code of transformers and the rest, among them TRL's, then losses."""
    trainers = trl_heads.questions()
    heads = _in_order(list_heads())
    for number, head in enumerate(heads):
        is_by_hand = head.name in by_hand.BUILDS
        yield head.name, "transformers", partial(by_hand.ask_by_hand if is_by_hand else ask_head, head)
        if number % 3 == 0:
            yield from islice(trainers, 1)
    yield from trainers
    yield from losses.questions()
    for head in heads:
        if answers.get(head.name, {}).get("router"):
            yield head.name + ROUTED, "transformers", partial(ask_head, head, routed=True)


def _questions(answers: dict[str, dict[str, Any]], pattern: str) -> Iterator[Question]:
    for name, package, ask in _all_questions(answers):
        known = answers.get(name)
        is_known = (
            known is not None
            and known["asked"] != "same code"
            and known["release"] == version(package)
            and known["builder"] == digest(package, name)
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


def _import_all() -> None:
    """Imports what heads need before they are forked, out of reach of their collections of garbage."""
    for name in ("isobatch.equivalence.models", "torch.distributed", "accelerate.state", "datasets", "trl"):
        import_module(name)
    gc.collect()
    gc.freeze()


class _Asked:
    """A head asked in a fork with limits of time and memory: whatever happens there is a record here."""

    def __init__(self, name: str, package: str, ask: Callable[[], dict[str, Any]]) -> None:
        self.record = {
            "head": name,
            "package": package,
            "release": version(package),
            "builder": digest(package, name),
            "asked": "not built",
        }
        context = multiprocessing.get_context("fork")
        self.reader, writer = context.Pipe(duplex=False)
        self.process = context.Process(target=_answer_to, args=(writer, ask))
        self.began = time.monotonic()
        self.process.start()
        writer.close()

    def end(self) -> dict[str, Any]:
        """Reads the answer, and ends the fork."""
        try:
            answer = self.reader.recv() if self.reader.poll() else {"why": f"took more than {SECONDS} s"}
            self.process.join(1)
        except EOFError:
            self.process.join()
            answer = {"why": f"ended with exit code {self.process.exitcode}"}
        _end_group(self.process.pid)
        self.process.join()
        self.reader.close()
        return self.record | answer


def _end_group(pid: int | None) -> None:
    """Ends a head's process and its ranks."""
    try:
        os.killpg(pid or 0, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _answer_to(writer: Any, ask: Callable[[], dict[str, Any]]) -> None:
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + PROCESSOR, -1))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, -1))
    with Path(os.devnull).open("wb") as quiet:
        os.dup2(quiet.fileno(), 1)
        os.dup2(quiet.fileno(), 2)
    try:
        record = ask()
    except BaseException as error:  # whatever a head raises is its answer
        record = {"why": f"{type(error).__name__}: {str(error)[:160]}"}
    used = os.times()
    seconds = used.user + used.system + used.children_user + used.children_system
    writer.send({**record, "seconds": round(seconds, 2)})


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _write(answers: dict[str, dict[str, Any]]) -> None:
    """Writes all answers, whole or not at all."""
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in answers.values()]
    part = ANSWERS.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(ANSWERS)
