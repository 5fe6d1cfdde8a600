"""One answer to one question: a recipe's plan on a GPU count is the same in every command, JSON and page."""

import csv
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from invariants.commands import run_command

ROOT = Path(__file__).parents[2]
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
COLUMNS = (
    "micro_batch",
    "accumulation",
    "effective_batch",
    "lr",
    "total_steps",
    "hours",
    "cost",
    "memory_gib",
)
"""Columns that every command shows of a plan that works."""
MODELS = ("llama-3-8b.json --seq-len 4096 --shards 8", "llama-3-8b.json --seq-len 2048 --tensor-parallel 2")
HARDWARE = ("--gpu", "--price-per-gpu-hour", "--inter-gb-s")
"""Options that a table of clusters has as columns."""
Answer = dict[str, Any] | None
"""The columns of a plan; None where the count cannot be planned."""


class Case(NamedTuple):
    """A recipe, saved in `folder`, its options and GPU counts."""

    folder: Path
    recipe: dict[str, Any]
    options: list[str]
    gpus: list[int]
    deadline: list[str]

    @property
    def file(self) -> str:
        return str(self.folder / "recipe.json")


def typed(*words: str) -> tuple[int, str, str]:
    """Runs a command in this process: its exit code, output and messages."""
    return run_command([*words])


def made(rng: random.Random, folder: Path) -> Case:
    """Draws a case: every kind of length, policy and limit, with a profile or without."""
    gpus, micro = rng.choice((1, 2, 4, 8, 12, 16)), rng.choice((1, 2, 3, 4, 8, 16))
    passes, parallel = rng.choice((1, 1, 2, 3, 4, 8)), rng.choice((1, 1, 1, 2, 4))
    recipe: dict[str, Any] = {
        "effective_batch": gpus * micro * passes,
        "lr": rng.choice((1e-4, 3e-4, 0.1)),
        "optimizer": rng.choice(("adamw", "sgd", "adam", "lamb", "muon")),
        "schedule": rng.choice(("cosine", "linear", "constant")),
        "duration": rng.choice(("1000st", "3ep", "50000sp", "777st")),
        "convention": rng.choice(("torch", "transformers", "lightning", "exact")),
        "dataset_size": rng.choice((1_000, 52_002, 1_281_167)),
        "drop_last": rng.choice((False, True)),
    }
    recipe |= rng.choice(({}, {"warmup": "10%"}, {"warmup": "50st"}, {"noise_scale": 400.0}))
    recipe |= rng.choice(({}, {}, {"expert_parallel": 2}, {"coupled": "negatives"}, {"batch_norm": True}))
    if rng.random() < 0.8:
        recipe |= {"gpus": gpus * parallel, "micro_batch": micro, "accumulation": passes}
        recipe |= {"model_parallel": parallel} if parallel > 1 else {}
    options = rng.choice((
        *([],) * 4, ["--policy", "grow"], ["--policy", "grow", "--rule", "linear"], ["--policy", "384"],
        ["--batch-tolerance", "0.05"], ["--max-micro-batch", "4"], ["--split", "ragged"],
        ["--max-batch", "256"],
        ["--policy", "grow", "--max-batch", "96"], ["--split", "uneven"], ["--batch-multiple", "8"],
        ["--accumulation-multiple", "2"], ["--policy", "grow", "--rule", "sqrt", "--duration-scale", "2"],
    ))  # fmt: skip
    options, deadline = [*options], []
    if rng.random() < 0.4:
        options += ["--profile", str(profile(folder, rng.choice(MODELS))), "--gpu", "H100-80"]
        options += ["--price-per-gpu-hour", "2.5", *rng.choice((["--inter-gb-s", "50"], []))]
        recipe |= {"seq_len": 4096 if "4096" in options[options.index("--profile") + 1] else 2048}
        options += ["--budget", rng.choice(("100", "2000", "50000"))] if rng.random() < 0.3 else []
        deadline = ["--deadline-hours", rng.choice(("1", "10", "100"))] if rng.random() < 0.5 else []
    options += ["--gpus-per-node", "4"] if rng.random() < 0.2 else []
    (folder / "recipe.json").write_text(json.dumps(recipe))
    return Case(folder, recipe, options, sorted(rng.sample(COUNTS, 8)), deadline)


def profile(folder: Path, model: str) -> Path:
    """Estimates a model's profile once."""
    words = model.split()
    path = folder / f"profile-{words[2]}-{words[4]}.json"
    if not path.exists():
        model_file = str(ROOT / "examples/models" / words[0])
        assert typed("estimate", model_file, "--gpu", "H100-80", *words[1:], "-o", str(path))[0] == 0
    return path


# ---- each command's answers, by GPU count ----


def by_plan(case: Case) -> dict[int, Answer]:
    """`isobatch plan --json`, and its text, which has to say the same split."""
    answers = dict[int, Answer]()
    for gpus in case.gpus:
        words = ("plan", case.file, "--gpus", str(gpus), *case.options, *case.deadline)
        code, output, _ = typed(*words, "--json")
        plan = json.loads(output) if output else {}
        answers[gpus] = {name: plan.get(name) for name in COLUMNS} if code == 0 else None
        text = typed(*words)[1]
        split = re.search(r"micro-batch ([\d,]+) × accumulation ([\d,]+) × [\d,]+ replicas? = ([\d,]+)", text)
        if split and code == 0 and "ragged" not in case.options:
            numbers = [int(number.replace(",", "")) for number in split.groups()]
            assert numbers == [plan[name] for name in COLUMNS[:3]], f"{words}: {text}"
    return answers


def by_counts(case: Case) -> dict[int, Answer]:
    """`isobatch counts --json`."""
    code, output, messages = typed(
        "counts", case.file, *listed(case), *case.options, *case.deadline, "--json"
    )
    rows = [json.loads(line) for line in output.splitlines()]
    works = {
        row["gpus"]: {name: row[name] for name in COLUMNS} for row in rows if row["status"] != "infeasible"
    }
    assert code in (0, 2) or not works, messages
    return {gpus: works.get(gpus) for gpus in case.gpus}


def by_short_counts(case: Case) -> dict[int, Answer]:
    """`isobatch counts --json --short`: the counts alone."""
    words = ("counts", case.file, *listed(case), *case.options, *case.deadline, "--json", "--short")
    output = typed(*words)[1]
    works = json.loads(output)["gpus"] if output else []
    return {gpus: {} if gpus in works else None for gpus in case.gpus}


def by_page(case: Case) -> dict[int, Answer]:
    """The slider of `isobatch counts -o page.html`: the counts alone."""
    page = case.folder / "page.html"
    page.unlink(missing_ok=True)
    typed("counts", case.file, *listed(case), *case.options, *case.deadline, "-o", str(page))
    if not page.exists():
        return dict.fromkeys(case.gpus)
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert data is not None
    choices = json.loads(data[1])
    rows = dict(zip(choices["counts"], choices["plans"], strict=True))
    works = {gpus for gpus, row in rows.items() if row[0][0] != "infeasible"}
    return {gpus: {} if gpus in works else None for gpus in case.gpus}


def by_fleet(case: Case) -> dict[int, Answer]:
    """`isobatch fleet`: one job on the clusters of a table."""
    jobs, clusters, plans = (case.folder / name for name in ("jobs.csv", "clusters.csv", "plans.csv"))
    with jobs.open("w", newline="") as file:
        csv.writer(file).writerows((["job", *case.recipe], ["a", *case.recipe.values()]))
    each = 4 if "--gpus-per-node" in case.options else 8
    nodes = [
        (gpus, *((1, gpus) if gpus <= each or gpus % each else (gpus // each, each))) for gpus in case.gpus
    ]
    with clusters.open("w", newline="") as file:
        where = dict(zip(case.options[::2], case.options[1::2], strict=True))
        hardware = {option: where[option] for option in HARDWARE if option in where}
        names = ("cluster", "nodes", "gpus_per_node", *(name[2:].replace("-", "_") for name in hardware))
        csv.writer(file).writerows([names, *((*node, *hardware.values()) for node in nodes)])
    options = without(case.options, "--gpus-per-node", *HARDWARE)
    plans.unlink(missing_ok=True)
    code, _, messages = typed("fleet", str(jobs), str(clusters), *options, *case.deadline, "-o", str(plans))
    assert code == 0, messages
    with plans.open(newline="") as file:
        rows = {int(row["cluster"]): row for row in csv.DictReader(file)}
    return {
        gpus: None if row["status"] == "infeasible" else {name: number(row[name]) for name in COLUMNS}
        for gpus, row in rows.items()
        if not is_part(case, gpus)
    }


def by_exec(case: Case) -> dict[int, Answer]:
    """`isobatch exec`: the numbers in the command's braces."""
    names = ("micro_batch", "accumulation", "effective_batch", "lr", "total_steps")
    answers = dict[int, Answer]()
    for gpus in case.gpus if "--split" not in case.options else ():  # no brace has every rank's number
        with (
            mock.patch.dict(os.environ, {"WORLD_SIZE": str(gpus), "RANK": "0", "TMPDIR": str(case.folder)}),
            mock.patch("os.execvpe") as becomes,
        ):
            words = ["{micro_batch}", "{accumulation}", "{effective_batch}", "{lr}", "{total_steps}"]
            typed("exec", case.file, *case.options, *case.deadline, "--", "true", *words)
        answers[gpus] = None
        if becomes.called:
            answers[gpus] = dict(zip(names, map(number, becomes.call_args[0][1][1:]), strict=True))
    return answers


def by_doctor(case: Case) -> dict[int, Answer]:
    """`isobatch doctor` on the Trainer's arguments of the same run, beside `isobatch plan --from` them."""
    if (
        "gpus" not in case.recipe
        or case.options
        or case.recipe["gpus"] % 2
        or "model_parallel" in case.recipe
    ):
        return {}
    file = case.folder / "args.json"
    run = {"per_device_train_batch_size": case.recipe["micro_batch"], "learning_rate": case.recipe["lr"]}
    run |= {"gradient_accumulation_steps": case.recipe["accumulation"], "max_steps": 1000}
    file.write_text(json.dumps(run | {"optim": {"sgd": "sgd"}.get(case.recipe["optimizer"], "adamw_torch")}))
    gpus_set = ("--set", f"gpus={case.recipe['gpus']}")
    for gpus in case.gpus:
        code, output, _ = typed("doctor", str(file), *gpus_set, "--gpus", str(gpus), "--json")
        answer = json.loads(output)
        planned, plan, _ = typed("plan", "--from", str(file), *gpus_set, "--gpus", str(gpus), "--json")
        text = f"doctor on {gpus} GPUs, {run}: {output}"
        assert answer["tuned_batch"] == case.recipe["effective_batch"], text
        assert (code == 0) == (answer["batch"] == answer["tuned_batch"] and planned == 0), text
        for finding in answer["findings"] if planned == 0 else ():
            if finding["setting"] == "per_device_train_batch_size" and finding["level"] == "changes":
                rows = dict(part.split(": ") for part in finding["mend"].split("; ") if ": " in part)
                split = json.loads(plan)
                assert rows == {
                    "per_device_train_batch_size": str(split["micro_batch"]),
                    "gradient_accumulation_steps": str(split["accumulation"]),
                }, text
            if finding["setting"] == "learning_rate":
                to_batch = ("--policy", str(answer["batch"]))
                words = ("plan", "--from", str(file), *gpus_set, "--gpus", str(gpus), *to_batch, "--json")
                rate = json.loads(typed(*words)[1])["lr"]
                assert number(finding["mend"].split()[1]) == number(f"{rate:.6g}"), f"{text} plan: {rate}"
    return {}


def by_allocate(case: Case) -> dict[int, Answer]:
    """`isobatch allocate`: the plan of a job that has all GPUs of its pool."""
    if (
        "--profile" not in case.options
        or case.deadline
        or {"--policy", "--split", "--budget"} & {*case.options}
    ):
        return {}
    jobs = case.folder / "pool-jobs.csv"
    answers = dict[int, Answer]()
    for gpus in case.gpus:
        if gpus > 8 or "--gpus-per-node" in case.options:
            continue
        columns = {**case.recipe, "min_gpus": gpus}
        with jobs.open("w", newline="") as file:
            csv.writer(file).writerows((["job", *columns], ["a", *columns.values()]))
        options = without(case.options, *HARDWARE)
        code, output, messages = typed("allocate", str(jobs), str(gpus), *options, "--json")
        assert code in (0, 1), messages
        (row,) = json.loads(output)["jobs"]
        names = ("micro_batch", "accumulation", "effective_batch", "lr")
        answers[gpus] = {name: row[name] for name in names} if row["gpus"] == gpus else None
    return answers


COMMANDS = {
    "counts --json": by_counts,
    "counts --json --short": by_short_counts,
    "counts -o page.html": by_page,
    "fleet": by_fleet,
    "exec": by_exec,
    "doctor": by_doctor,
    "allocate": by_allocate,
}


def contradictions(case: Case) -> Iterator[str]:
    """Yields each answer that is not `isobatch plan --json`'s."""
    expected = by_plan(case)
    for command, ask in COMMANDS.items():
        try:
            answers = ask(case)
        except AssertionError as error:
            yield f"{command}: {error}"
            continue
        for gpus, answer in answers.items():
            planned = expected[gpus]
            wrong = (answer is None) != (planned is None)
            if answer and planned:
                wrong = any(not alike(answer[name], planned[name]) for name in answer)
            if wrong:
                yield (
                    f"{gpus} GPUs, {json.dumps(case.recipe)} {' '.join(case.options + case.deadline)}\n"
                    f"  plan: {planned}\n  {command}: {answer}"
                )


def check_answers(seed: int, size: int, folder: Path) -> int:
    """Plays `size` recipes on eight GPU counts each; the number of answers of one command to one count."""
    rng, differences, answers = random.Random(seed), list[str](), 0
    for _ in range(size):
        case = made(rng, folder)
        differences += contradictions(case)
        answers += len(case.gpus)
    assert not differences, f"{len(differences)} contradictions\n" + "\n".join(differences)
    return answers


# ---- small parts ----


def listed(case: Case) -> tuple[str, str]:
    return "--gpus", ",".join(map(str, case.gpus))


def is_part(case: Case, gpus: int) -> bool:
    """Tells whether a count fills no whole nodes, which a table of clusters may have and `--gpus` may not."""
    each = 4 if "--gpus-per-node" in case.options else 8
    needs_nodes = "--profile" in case.options or "--gpus-per-node" in case.options
    return needs_nodes and gpus > each and gpus % each > 0


def without(options: list[str], *names: str) -> list[str]:
    """Leaves options and their values out."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for name, value in pairs if name not in names for word in (name, value)]


def number(text: Any) -> float | None:
    return None if text in ("", None) else float(text)


def alike(first: Any, second: Any) -> bool:
    """Compares two numbers, one of which may have been written as text."""
    if first is None or second is None:
        return first is second
    return abs(first - second) <= 1e-9 * max(abs(first), abs(second))
