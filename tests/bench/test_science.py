"""bench/science: its optimizers are torch's, a part that was cut off goes on as if it had not been, and its tables say what its trials say."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "bench" / "science"
MODULES = ("choosing", "optimizers", "run", "scales", "stack", "table", "tasks")


@pytest.fixture(scope="module")
def science():
    """The modules of the folder by name, which are importable beside one another only."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(FOLDER))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are small
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def torchs(name, weights, lr):
    from probing.tiny import Lion

    return {
        "sgd": lambda: torch.optim.SGD(weights, lr=lr, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(weights, lr=lr, weight_decay=0.0),
        "lion": lambda: Lion(weights, lr),
        "muon": lambda: torch.optim.Muon(weights, lr=lr, weight_decay=0.0),
    }[name]()


# Muon orthogonalizes in bfloat16 in torch: three digits.
@pytest.mark.parametrize(("name", "error"), [("sgd", 1e-5), ("adamw", 1e-5), ("lion", 1e-6), ("muon", 0.02)])
def test_each_optimizer_is_torchs(science, name, error):
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    draw = torch.Generator().manual_seed(0)
    lrs, shapes = (0.1, 0.01, 0.003), ((8, 5), (4, 8))
    stacked = [torch.randn(len(lrs), *shape, generator=draw) for shape in shapes]
    alone = [[torch.nn.Parameter(weight[i].clone()) for weight in stacked] for i in range(len(lrs))]
    theirs = [torchs(name, weights, lr) for weights, lr in zip(alone, lrs, strict=True)]
    ours = science["optimizers"].Stepper(name, stacked)
    for _ in range(20):
        gradients = [torch.randn(weight.shape, generator=draw) for weight in stacked]
        ours.step(gradients, torch.tensor(lrs)[:, None, None])
        for i, optimizer in enumerate(theirs):
            for weight, gradient in zip(alone[i], gradients, strict=True):
                weight.grad = gradient[i].clone()
            optimizer.step()
    for i, weights in enumerate(alone):
        for mine, other in zip(stacked, weights, strict=True):
            assert torch.allclose(mine[i], other.detach(), atol=error)


def stack(science, arms=None, **changes):
    Arm, Stack = science["stack"].Arm, science["stack"].Stack
    arms = arms or [Arm(0.05), Arm(0.2)]
    fields = {"seeds": 2, "batch": 2, "samples": 2 * 130, "device": "cpu"} | changes
    return Stack(science["tasks"].Source(), changes.pop("optimizer", "adamw"), arms, **fields)


def test_a_network_in_a_stack_is_that_network_alone(science):
    Arm = science["stack"].Arm
    both = stack(science, [Arm(0.01), Arm(0.04, betas=(0.8, 0.95), eps=1e-6)])
    one = stack(science, [Arm(0.04, betas=(0.8, 0.95), eps=1e-6)])
    both.train(until=0.2)
    one.train(until=0.2)
    assert abs(both.losses()[:, 1] - one.losses()[:, 0]).max() < 1e-4
    assert abs(both.losses()[:, 0] - both.losses()[:, 1]).max() > 1e-3
    assert abs(both.losses()[0] - both.losses()[1]).max() > 1e-3  # seeds differ


def test_a_training_that_is_cut_off_goes_on_as_if_it_had_not_been(science, tmp_path):
    whole, file = stack(science), tmp_path / "cell.part"
    whole.train()
    cuts = 0
    while True:
        try:
            # A deadline that has passed: each part ends at the first look at the clock.
            part = stack(science)
            part.train(deadline=-1.0, file=file)
            break
        except science["stack"].TimeUp:
            cuts += 1
            assert part.done == cuts * science["stack"].CHECKED and file.exists()
    assert cuts == 2 and not file.exists()
    assert (part.losses() == whole.losses()).all()


def test_a_noise_scale_is_that_of_many_gradients(science):
    found = stack(science)
    found.train(until=0.1)
    scale, error = found.noise(16)
    assert scale > 0 and 0 < error < scale


@pytest.fixture
def rehearsed(science, monkeypatch, tmp_path):
    """An edition of a few steps, in parts that are over at once until all is done."""
    run = science["run"]
    small = {
        "tasks": {"source": science["tasks"].TASKS["source"]},
        "ks": [2.0],
        "samples": 256,
        "seeds": 2,
        "dear": 10**9,
    }
    monkeypatch.setitem(run.EDITIONS, "small", small)
    monkeypatch.setattr(run, "START", {"sgd": 0.1, "adamw": 4e-3})
    file = tmp_path / "small.jsonl"
    monkeypatch.setattr(run.Work, "tuned", once(run.Work.tuned, science["stack"].TimeUp))
    parts = 0
    while True:
        try:
            run.Work(file, "small", "cpu", float("inf")).all()
            return file, parts
        except science["stack"].TimeUp:
            parts += 1


def once(tuned, time_up):
    """Ends a part behind each case's first tuning, once."""
    seen = set()

    def cut(self, task, optimizer):
        found = tuned(self, task, optimizer)
        if (task, optimizer) not in seen:
            seen.add((task, optimizer))
            raise time_up
        return found

    return cut


@pytest.mark.slow
def test_an_edition_rehearsed_in_parts(science, rehearsed):
    file, parts = rehearsed
    assert parts == 2
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    trials = [(row["optimizer"], row["k"], row["arm"], row["seed"]) for row in rows if "arm" in row]
    assert len(set(trials)) == len(trials), "a trial was made twice"
    assert {row["optimizer"] for row in rows if "noise_scale" in row} == {"sgd", "adamw"}
    assert {"none", "sqrt", "linear"} <= {arm for _, k, arm, _ in trials if k == 2.0}
    assert {"half_life", "sde", "sde_smooth"} <= {
        arm for name, k, arm, _ in trials if (name, k) == ("adamw", 2.0)
    }


def test_the_noise_scale_is_the_latest_that_is_not_lost_in_its_error(science):
    noise_of = science["scales"].noise_of
    half = {"noise_scale": 900.0, "noise_error": 500.0}
    early = {"noise_scale": 60.0, "noise_error": 3.0, "at": 0.0625, "draws": 64}
    later = {"noise_scale": 400.0, "noise_error": 40.0, "at": 0.25, "draws": 64}
    lost = {"noise_scale": None, "noise_error": None, "at": 0.5, "draws": 64}
    assert noise_of([half]) == (None, 0.5) == noise_of([]) == noise_of([half, lost])
    assert noise_of([half, later, early, lost]) == (400.0, 0.25)
    assert noise_of([{**half, "noise_error": 449.0}, later]) == (900.0, 0.5)
    lines = science["table"].noises({("t", "sgd"): [half, early, later, lost]})
    assert lines[-1] == "| t | sgd | 60 ± 3 | **400 ± 40** | ∞ |"


def made_row(science, task, k, gaps, **changes):
    fields = {
        "optimizer": "sgd",
        "noise": 100.0,
        "ratio": k,
        "ends": (0.8 * k, 1.2 * k),
        "lowest": 1.0,
        "error": 0.0,
    }
    return science["table"].Row(task=task, k=k, gaps=gaps, **fields | changes)


def test_a_rule_is_judged_on_a_task_that_did_not_choose_it(science):
    """Linear is right on two tasks and diverges on the third: chosen there by the others, it costs the most that a cell counts for."""
    right = {"none": 0.3, "sqrt": 0.1, "linear": 0.0, "saturating": 0.2, "surge": 0.3, "muon": 0.3}
    wrong = right | {"linear": float("inf"), "sqrt": 0.0}
    rows = [made_row(science, task, 4.0, gaps) for task, gaps in (("a", right), ("b", right), ("c", wrong))]
    choosing = science["choosing"]
    assert (
        choosing.choose(rows[:2], choosing.PLAIN) == "linear"
        and choosing.choose(rows, choosing.PLAIN) == "sqrt"
    )
    assert choosing.cost(rows, "linear") == pytest.approx(1 / 3)
    lines = choosing.left_out(rows)
    assert "on a / b / c " in "".join(lines)
    assert lines[-1] == (
        "| sgd | k > 1 | 0.300 / 0.300 / 0.300 | 0.100 / 0.100 / 0.000 | 0.000 / 0.000 / 1.000 | 0.200 / 0.200 / 0.200 | "
        "0.300 / 0.300 / 0.300 | 0.300 / 0.300 / 0.300 |"
    )
    known, unknown = (line for line in lines if line.startswith(("| known", "| unknown")))
    assert known.startswith(
        "| known | sgd | k > 1 | sqrt 0.067 | a: sqrt 0.100; `auto`: saturating 0.200 · b:"
    )
    assert unknown.endswith("c: = `auto` 1.000 |")


def test_a_rule_lies_in_the_interval_or_not(science):
    row = made_row(science, "a", 4.0, {}, noise=None)
    inside = science["choosing"].lies_inside
    assert inside(row, "linear") and not inside(row, "sqrt") and inside(row, "saturating") is None
    assert inside(row, "auto")  # linear, where no noise scale is known
    counted = science["choosing"].inside([row, made_row(science, "b", 0.5, {}, ends=(0.4, 1.0))])
    # A recipe with a noise scale: saturating, which is 0.63 here.
    assert counted[-2:] == [
        "| `auto` | k < 1 | 1 of 1 | – | – | – | 1 of 1 |",
        "| `auto` | k > 1 | 1 of 1 | – | – | – | 1 of 1 |",
    ]


def test_the_table_is_what_the_trials_say(science, tmp_path):
    """Composed trials whose loss is a parabola around a best learning rate that grows by √k."""
    file, rows = (
        tmp_path / "made.jsonl",
        [{"task": "t", "optimizer": "adamw", "k": 1.0, "noise_scale": 100.0, "noise_error": 1.0}],
    )
    scales = science["scales"].scales(4.0, 100.0)
    arms = {1.0: {f"{o}": 2.0**o for o in range(-2, 3)}, 4.0: {f"{o}": 2.0**o for o in range(-1, 4)} | scales}
    for k, named in arms.items():
        for name, lr in named.items():
            loss = 1.0 + 0.1 * (torch.tensor(lr / k**0.5).log2().item()) ** 2
            losses = [] if name == "linear" else [loss] * 32
            rows += [
                {
                    "task": "t",
                    "optimizer": "adamw",
                    "k": k,
                    "arm": name,
                    "lr": lr,
                    "seed": s,
                    "losses": losses,
                }
                for s in (0, 1)
            ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row,) = science["table"].rows_of(*science["table"].load(file))
    assert (row.k, row.noise, row.auto) == (4.0, 100.0, "sqrt") and row.over == 2.56
    assert row.ratio == pytest.approx(2.0) and row.ends == pytest.approx((2.0, 2.0))
    assert row.gaps["sqrt"] == pytest.approx(0.0, abs=1e-9) and row.gaps["none"] == pytest.approx(0.1)
    assert row.gaps["linear"] == float("inf")
    meta = {
        "edition": "tiny",
        "samples": 1,
        "seeds": 2,
        "base_batch": 64,
        "torch": "0",
        "python": "3",
        "device": "d",
        "machine": "m",
    }
    text = science["table"].markdown([row], meta)
    assert "| adamw | sqrt **0.000**; = `auto` (1 tasks) |" in text
    assert (
        "| t | adamw | 100 | 4 | 2.6 | 2.00 (2.00 to 2.00) | 1.000 ± 0.000 | 0.100 | **0.000**† | ✗ |" in text
    )
