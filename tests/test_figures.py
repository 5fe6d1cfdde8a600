"""The documents' figures show what the package, its tables and the evidence script give."""

import importlib.util
import re
from pathlib import Path

import pytest

import isobatch as ib

ROOT = Path(__file__).parent.parent


def load(file):
    """Imports a script of bench."""
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), ROOT / "bench" / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_of(figure):
    """Returns the texts of a figure of docs."""
    drawn = (ROOT / "docs" / figure).read_text(encoding="utf-8")
    return [re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<text[^>]*>(.*?)</text>", drawn)]


def test_the_moving_figure_has_the_split_of_the_readmes_plan():
    tuned = ib.Recipe.read(ROOT / "examples/training_args.json", gpus=4, dataset_size=52_002)
    texts = [
        f"{plan.world_size} GPUs: {plan.micro_batch} samples × {plan.accumulation} pass"
        f"{'es' * (plan.accumulation > 1)} × {plan.data_parallel} = {plan.effective_batch} a step"
        for plan in (ib.plan(tuned, 4), ib.plan(tuned, 32))
    ]
    assert words_of("split.svg") == texts
    drawn = (ROOT / "docs/split.svg").read_text(encoding="utf-8")
    (how,) = re.findall(r"animation: spread (.*?) \}", drawn)
    assert how == "4s cubic-bezier(.6, 0, .3, 1) both", "one pass, and then it stands still"
    assert "@media (prefers-reduced-motion: reduce) { .samples use { animation: none }" in drawn


def test_keep_or_grow_has_the_tutorials_plans():
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    names = {"ib": ib}
    exec(re.search(r"```python\n(.*?)```", tutorial, re.DOTALL)[1], names)
    shown = " ".join(words_of("keep-or-grow.svg"))
    for gpus, policy in ((8, "keep"), (64, "keep"), (64, "grow")):
        plan = ib.plan(names["recipe"], gpus, policy=policy)
        batch = f"{gpus} GPUs × {plan.micro_batch} = {plan.effective_batch:,}"
        assert re.search(rf"{batch}\D*learning rate {plan.lr:g}\b.*? {plan.total_steps:,} steps", shown)


def test_the_picture_of_sample_weights_is_the_page_of_same():
    weights = re.search(r"\n  2 × 2 × 2 +((?:\d\.\d\d ){8})", (ROOT / "docs/same.md").read_text("utf-8"))
    drawn = [text for text in words_of("same.svg") if re.fullmatch(r"\d\.\d\d", text)]
    assert drawn[:4] == ["1.00"] * 4 and sorted(drawn[4:]) == sorted(set(weights[1].split()))


def test_the_picture_of_rules_is_drawn_of_its_table():
    picture = load("science_picture.py")
    cells = picture.read_cells()
    assert len(cells) == 99
    drawn = (ROOT / "docs/science.svg").read_text(encoding="utf-8")
    assert picture.draw(cells) == drawn, "run python bench/science_picture.py"


# Muon orthogonalizes in bfloat16 in torch: two digits.
@pytest.mark.parametrize(("name", "error"), [("sgd", 1e-5), ("adamw", 1e-5), ("muon", 0.02)])
def test_the_evidences_optimizers_are_torchs(name, error):
    torch = pytest.importorskip("torch")
    rates, draw = (0.1, 0.01), torch.Generator().manual_seed(0)
    networks = load("science.py").Networks("digits", name, list(rates), seeds=1)
    alone = [
        [torch.nn.Parameter(weight[at].detach().clone()) for weight in networks.weights] for at in (0, 1)
    ]
    make = {
        "sgd": lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9),
        "adamw": lambda weights, lr: torch.optim.AdamW(weights, lr=lr, weight_decay=0.0),
        "muon": lambda weights, lr: torch.optim.Muon(weights, lr=lr, weight_decay=0.0),
    }[name]
    optimizers = [make(weights, lr) for weights, lr in zip(alone, rates, strict=True)]
    for _ in range(10):
        gradients = [torch.randn(weight.shape, generator=draw) for weight in networks.weights]
        networks.step(gradients, networks.rates)
        for at, optimizer in enumerate(optimizers):
            for weight, gradient in zip(alone[at], gradients, strict=True):
                weight.grad = gradient[at].clone()
            optimizer.step()
    for at, weights in enumerate(alone):
        for stacked, weight in zip(networks.weights, weights, strict=True):
            assert torch.allclose(stacked[at], weight, atol=error)
