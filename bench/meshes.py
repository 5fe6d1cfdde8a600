"""Asks `isobatch same --across` about right scripts of two dimensions, and about published faults.

python bench/meshes.py [CASE...]    writes bench/results/meshes.md; with names it asks these anew
"""

import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from isobatch.equivalence.commands.runs import Recorded
from isobatch.equivalence.meshes.ask import MeshRuns, read_across
from isobatch.equivalence.result import Same
from isobatch.errors import InputError

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "meshes.md"
STORE = HERE.parent / "build" / "meshes.json"
TORCHRUN = ("torchrun", "--nproc-per-node", "{world}")


class Case(NamedTuple):
    """A script: what it is asked, its words, and of a fault the thread, and the name to be read."""

    name: str
    across: str
    words: str
    thread: str = ""
    cause: str = ""


HAND = "mesh_by_hand.py --tp {tp} --cp {cp} --ep {ep} --pp {pp}"
TORCH = "mesh_torch.py --tp {tp} --pp {pp} --kind"
RIGHT = [
    Case("tensor × context", "tp=2,cp=2", HAND),
    Case("tensor, sequence-parallel norm, × context", "tp=2,cp=2", f"{HAND} --sp"),
    Case("tensor × pipeline", "tp=2,pp=2", HAND),
    Case("context × pipeline, tied", "cp=2,pp=2", f"{HAND} --tied"),
    Case("tensor × pipeline, tied", "tp=2,pp=2", f"{HAND} --tied"),
    Case("experts × tensor", "ep=2,tp=2", f"{HAND} --moe"),
    Case("experts × context", "ep=2,cp=2", f"{HAND} --moe"),
    Case("experts × pipeline", "ep=2,pp=2", f"{HAND} --moe"),
    Case("tensor × data", "dp=2,tp=2", HAND),
    Case("context × data", "dp=2,cp=2", HAND),
    Case("pipeline × data", "dp=2,pp=2", HAND),
    Case("experts × data", "dp=2,ep=2", f"{HAND} --moe"),
    Case("DTensor × DDP", "dp=2,tp=2", f"{TORCH} ddp"),
    Case("DTensor × FSDP2", "dp=2,tp=2", f"{TORCH} fsdp2"),
    Case("DTensor × HSDP", "dp=2,tp=2", f"{TORCH} hsdp"),
    Case("DTensor, sequence-parallel, × FSDP2", "dp=2,tp=2", f"{TORCH} sequence"),
    Case("DTensor, parallel loss, × DDP", "dp=2,tp=2", f"{TORCH} loss"),
    Case("torch's GPipe × DDP", "dp=2,pp=2", f"{TORCH} gpipe"),
    Case("torch's 1F1B × DDP", "dp=2,pp=2", f"{TORCH} 1f1b"),
    Case("torch's GPipe × DTensor", "tp=2,pp=2", f"{TORCH} gpipe"),
]
FAULTS = [
    Case(
        "final norm", "tp=2", f"{HAND} --sp --fault sequence-norm", "Megatron-LM #1446", "not reduced: norm."
    ),
    Case(
        "norm of heads",
        "tp=2",
        f"{HAND} --fault head-norm",
        "Megatron-LM #7452",
        "not reduced: layers.*.attention.head_norm",
    ),
    Case("no reduction backward", "tp=2", f"{HAND} --fault no-copy", "torchtitan #1805", "not reduced"),
    Case("loss × cp", "cp=2", f"{HAND} --fault times-cp", "Megatron-LM #906", "× cp"),
    Case("loss / cp", "cp=2", f"{HAND} --fault over-cp", "SkyRL #1420", "1/cp"),
    Case("a term / cp", "cp=2", f"{HAND} --fault term-over-cp", "Megatron-LM #3943", "1/cp: next_head"),
    Case("replicas apart", "cp=2", f"{HAND} --fault no-reduce", "AReaL #313", "not reduced"),
    Case(
        "experts × ep",
        "ep=2",
        f"{HAND} --moe --fault experts-times-ep",
        "pytorch #160285",
        "× ep: layers.*.mlp.experts",
    ),
    Case(
        "norm of some experts",
        "ep=2",
        f"{HAND} --moe --fault norm-shards",
        "Megatron-LM #5916",
        "norm without",
    ),
    Case("norm of copies", "tp=2", f"{HAND} --fault norm-copies", "NeMo-RL #3788", "norm that counts copies"),
    Case("norm of a stage", "pp=2", f"{HAND} --fault norm-shards", "torchtitan #596", "norm without"),
    Case("tied embeddings", "pp=2", f"{HAND} --tied --fault tied", "piper #13", "not reduced: embed.weight"),
    Case("passes wiped", "pp=2", f"{HAND} --fault lost-passes", "Automodel #3530", "lost passes"),
    Case("step counted early", "tp=2", f"{HAND} --fault under-update", "Megatron-LM #5974", "another update"),
    Case(
        "replicas start apart",
        "tp=2",
        f"{HAND} --fault start-apart",
        "Automodel #3822",
        "weights differ between ranks: norm.weight",
    ),
]


def ask(runs: MeshRuns, case: Case) -> tuple[Same | None, str, float]:
    """Asks one case; returns the answer, its causes or the reason for none, and the seconds."""
    began = time.monotonic()
    words = [*TORCHRUN, *f"{HERE / 'same'}/{case.words}".split()]
    try:
        answer = runs.ask(words, *_meshes(case, words))
    except InputError as error:
        return None, " ".join(str(error).split())[-600:], time.monotonic() - began
    names = dict.fromkeys(cause.name for split in answer.splits for cause in split.causes)
    causes = "; ".join(names) or "; ".join(f"{mesh}: {why}" for mesh, why in answer.unasked.items())
    return answer, causes, time.monotonic() - began


def _meshes(case, words):
    without, *meshes = read_across(case.across, words)
    return without, meshes


def write_results(rows: dict[str, tuple[str, str, float]]) -> str:
    right = [case for case in RIGHT if rows[case.name][0] == "the same"]
    alarms = [case for case in RIGHT if rows[case.name][0] == "not the same"]
    differing = [case for case in FAULTS if rows[case.name][0] == "not the same"]
    named = [case for case in differing if case.cause in rows[case.name][1]]
    lines = [
        "# `isobatch same --across` on meshes",
        "",
        f"> Of {len(RIGHT)} right scripts {len(right)} are the same, {len(alarms)} false alarms; of "
        f"{len(FAULTS)} published faults {len(differing)} are found and {len(named)} named.",
        "",
        f"`python bench/meshes.py` on {os.cpu_count()} cores, Python {platform.python_version()}, torch "
        f"{version('torch')}, gloo. The faults are rebuilt in `bench/same/mesh_by_hand.py`, one at a time.",
        "",
        "| right script, the same | across | seconds |",
        "|---|---|---|",
    ]
    for case in RIGHT:
        verdict, causes, seconds = rows[case.name]
        text = f": {verdict}: {causes}" if verdict != "the same" else ""
        lines.append(f"| {case.name}{text} | {case.across} | {seconds:.0f} |")
    lines += ["", "| thread, not the same | across | named | seconds |", "|---|---|---|---|"]
    for case in FAULTS:
        verdict, causes, seconds = rows[case.name]
        shown = "; ".join(cause.replace(",", " …,").split(",")[0] for cause in causes.split("; "))
        shown = shown if verdict == "not the same" else f"{verdict}: {shown}"
        missed = "" if case.cause in causes else " (not named)"
        lines.append(f"| {case.thread} | {case.across} | {shown}{missed} | {seconds:.0f} |")
    return "\n".join([*lines, ""])


def main() -> int:
    rows = json.loads(STORE.read_text()) if STORE.exists() else {}
    STORE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = MeshRuns(Recorded(folder, 1, entries=True), 300)
        try:
            for case in RIGHT + FAULTS:
                if case.name not in sys.argv[1:] if sys.argv[1:] else case.name in rows:
                    continue
                answer, causes, seconds = ask(runs, case)
                verdict = {True: "the same", False: "not the same", None: "not measured"}[
                    answer and answer.same
                ]
                rows[case.name] = verdict, causes, seconds
                STORE.write_text(json.dumps(rows))
                print(f"{seconds:4.0f} s  {case.name:45} {verdict:14} {causes[:600]}", flush=True)
        finally:
            runs.close()
    if all(case.name in rows for case in RIGHT + FAULTS):
        RESULTS.write_text(write_results(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
