"""A command's real settings beside its words: each test starts commands."""

import shlex
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.equivalence.commands.recipe import differences, recipe_of, text_of, unseen_end
from isobatch.equivalence.commands.running import observe
from isobatch.errors import InputError

pytest.importorskip("torch")
pytest.importorskip("transformers")

PLAIN = """
import argparse, importlib.util
importlib.util.find_spec("torch")  # as transformers does, before it imports torch
import torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--scale", action="store_true")
arguments = parser.parse_args()
data = TensorDataset(torch.randn(96, 5), torch.randn(96, 1))
model = torch.nn.Linear(5, 1)
rate = arguments.base_lr * (arguments.batch / 16 if arguments.scale else 1)
optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
for step, (x, y) in enumerate(DataLoader(data, arguments.batch)):
    ((model(x) - y) ** 2).mean().backward()
    if (step + 1) % arguments.accum == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
"""
PREPARED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(gradient_accumulation_steps=3)
data = TensorDataset(torch.randn(96, 5), torch.randn(96, 1))
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 20))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, 4), scheduler)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(((model(x) - y) ** 2).mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""
TRAINER = """
import sys, torch, transformers
arguments, own = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(
    return_remaining_strings=True
)
config = transformers.LlamaConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
model = transformers.LlamaForCausalLM(config)
optimizers = (None, None)
if own:
    arguments.gradient_accumulation_steps = 3
    arguments.max_grad_norm = 0.5
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    optimizers = (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
data = [dict(input_ids=[row % 50] * 6, labels=[row % 50] * 6) for row in range(60)]
transformers.Trainer(model, arguments, train_dataset=data, optimizers=optimizers).train()
"""
LOOPS = """
import sys, torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
kind = sys.argv[1]
data = TensorDataset(torch.randn(61, 5))
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 1))
judge = torch.nn.Linear(5, 1)
rates = (0.1, 0.01) if kind == "groups" else (0.1, 0.1)
optimizer = torch.optim.SGD([dict(params=part.parameters(), lr=lr) for part, lr in zip(net, rates)])
second = torch.optim.SGD(judge.parameters(), 0.3)
sampler = BatchSampler(RandomSampler(data), 6, kind == "dropping")
for _ in range(3):
    for (x,) in DataLoader(data, batch_sampler=sampler):
        if kind == "turns":  # a GAN's: the judge's passes, then the net's over what the judge has of it
            judge(x).mean().backward()
            second.step()
            second.zero_grad()
            for sign in (1, -1):
                (sign * judge(x * net(x))).mean().backward()
        else:
            for chunk in x.split(2 if kind == "chunks" else 6):
                net(chunk).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        second.zero_grad()
"""
FLAGS = (
    "--output_dir {folder}/o --report_to none --per_device_train_batch_size 4 --gradient_accumulation_steps "
    "2 --learning_rate 1e-3 --num_train_epochs 4 --warmup_steps 4 --weight_decay 0.1 --bf16 True"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each command's run."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in (("plain", PLAIN), ("prepared", PREPARED), ("trainer", TRAINER), ("loops", LOOPS)):
        (folder / f"{name}.py").write_text(text)
    flags = FLAGS.format(folder=folder)
    lines = {
        "plain": f"python {folder}/plain.py --batch 4 --accum 3",
        "typed": f"python {folder}/plain.py --batch 4 --accum 3 --base-lr 0.2",
        "scaled": f"python {folder}/plain.py --batch 4 --accum 3 --base-lr=0.2 --scale",
        "prepared": f"accelerate launch --num_processes 2 {folder}/prepared.py",
        "trainer": f"torchrun --nproc-per-node 1 {folder}/trainer.py {flags}",
        "overriding": f"python {folder}/trainer.py {flags} --own",
    } | {kind: f"python {folder}/loops.py {kind}" for kind in ("turns", "chunks", "dropping", "groups")}
    with ThreadPoolExecutor(2) as pool:
        observed = pool.map(lambda line: observe(shlex.split(line)), lines.values())
        return dict(zip(lines, observed, strict=True))


def test_a_loop_of_ones_own_shows_its_batch_optimizer_and_schedule(runs):
    run = runs["plain"]
    assert (run.ranks, run.accumulation, run.micro_batch, run.effective_batch) == (1, 3, 4, 12)
    assert (run.dataset_size, run.optimizer, run.clip_norm, run.parameters) == (96, "SGD", 1.5, 6)
    assert run.rates[0] == (0, 0.05)
    assert run.rates[-1][0] == 29
    assert not [*differences(run)]
    recipe = recipe_of(run)
    assert (recipe.effective_batch, recipe.lr, recipe.optimizer, recipe.momentum) == (12, 0.05, "sgd", 0.9)
    assert (recipe.weight_decay, recipe.clip_norm, recipe.dataset_size) == (1e-4, 1.5, 96)
    at = ib.plan(msgspec.structs.replace(recipe, duration="30st"), 1).lr_at
    assert [at(step) for step, _ in run.rates] == pytest.approx([rate for _, rate in run.rates])
    assert "nothing to compare the run with" in text_of(run, ())


def test_a_script_that_scales_its_own_rate_is_told_that_it_scales_a_plans(runs):
    says = "--base-lr 0.2: the optimizer starts with 0.05. If the script scales its rate"
    assert says in text_of(runs["scaled"], ()) and runs["scaled"].lr == 0.05
    assert "the optimizer starts with" not in text_of(runs["typed"], ()) + text_of(runs["plain"], ())


def test_a_scheduler_that_moves_twice_a_step_is_named(runs):
    run = runs["prepared"]
    assert (run.ranks, run.accumulation, run.micro_batch, run.effective_batch) == (2, 3, 4, 24)
    assert [rate for _, rate in run.rates[:3]] == pytest.approx([1e-3, 0.9e-3, 0.8e-3])
    (scheduler,) = differences(run)
    assert (scheduler.field, scheduler.observed) == ("scheduler", "2 steps")
    message = "schedule of LambdaLR was not recognized in the run: give --set schedule=NAME"
    with pytest.raises(InputError, match=message):
        recipe_of(run)
    assert recipe_of(run, {"schedule": "linear"}).effective_batch == 24


def test_the_trainer_runs_as_its_flags_say(runs):
    run = runs["trainer"]
    assert not [*differences(run)]
    assert run.total_steps == 32
    assert run.rates[1] == (1, pytest.approx(1e-3 / 4))
    assert {group["weight_decay"] for group in run.groups} == {0.1, 0.0}
    recipe = recipe_of(run)
    length = recipe.duration, recipe.warmup, recipe.schedule
    assert (*length, recipe.weight_decay) == ("4ep", "4st", "linear", 0.1)
    assert (recipe.convention, recipe.precision, recipe.clip_norm) == ("transformers", "bf16", 1.0)
    text = text_of(run, ())
    assert "A step has 8 samples: 1 rank × 2 passes × 4 samples" in text
    assert "for the CPU: bf16 false" in text
    assert text.endswith("As the command says.")


def test_a_script_that_overrides_its_flags_is_caught(runs):
    run = runs["overriding"]
    fields = {difference.field: (difference.stated, difference.observed) for difference in differences(run)}
    assert fields["accumulation"] == ("2 (gradient_accumulation_steps)", "3")
    assert fields["clip_norm"] == ("1 (max_grad_norm)", "0.5")
    assert fields["weight_decay"] == ("0.1 (weight_decay)", "0.01")
    assert fields["learning rate"] == ("0 at step 1 (linear, warmup 4st)", "0.002")
    recipe = recipe_of(run)  # of what runs
    assert (recipe.effective_batch, recipe.lr, recipe.schedule, recipe.warmup) == (12, 2e-3, "constant", None)


def test_the_command_plans_from_the_run_and_saves_its_recipe(tmp_path, capsys):
    script, saved = tmp_path / "plain.py", tmp_path / "recipe.toml"
    script.write_text(PLAIN)
    words = ["--", "python", str(script), "--batch", "4", "--accum", "3"]
    assert main(["doctor", "--gpus", "6", "-o", str(saved), "--set", "duration=30st", *words]) == 0
    shown = capsys.readouterr().out
    assert "A step has 12 samples: 1 rank × 3 passes × 4 samples" in shown
    assert "6 GPUs: micro-batch 2 × accumulation 1 × 6 replicas = 12 samples per step." in shown
    assert ib.Recipe.load(saved).duration == "30st"


def test_a_batch_counts_once_however_many_passes_go_back_over_the_batch(runs):
    turns, chunks = runs["turns"], runs["chunks"]
    assert (turns.parameters, turns.accumulation, turns.micro_batch, turns.effective_batch) == (57, 1, 6, 6)
    assert "2 passes in a step over 1 batch of the loader: a batch counts once" in turns.notes
    assert (chunks.accumulation, chunks.micro_batch, chunks.effective_batch) == (3, 2, 6)


def test_an_epochs_dropped_rows_are_in_the_recipe(runs):
    recipe = recipe_of(runs["dropping"])
    assert recipe.drop_last is True
    assert ib.plan(recipe, 1).steps_per_epoch == 10
    assert recipe_of(runs["chunks"]).drop_last is False


def test_parameter_groups_of_several_rates_are_asked_about(runs):
    run = runs["groups"]
    message = "have 2 values of learning rate: 0.1, 0.01; a recipe has one: give --set lr=0.1, and scale"
    with pytest.raises(InputError, match=message):
        recipe_of(run)
    assert recipe_of(run, {"lr": 0.1}).lr == 0.1


def test_a_command_that_takes_no_step_is_refused_with_its_last_lines(capsys):
    assert main(["doctor", "--", "python", "-c", "print('as far as here'); raise SystemExit(3)"]) == 2
    error = capsys.readouterr().err
    assert "ended with exit code 3 before an optimizer of torch took a step:\nas far as here" in error


def test_the_scripts_own_last_lines_are_shown_not_torchruns(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nraise SystemExit('no data')\n")
    message = "ended with exit code 1 before an optimizer of torch took a step:\nno data$"
    with pytest.raises(InputError, match=message):
        observe(["torchrun", "--nproc-per-node", "1", str(script)])


def test_a_command_is_written_as_it_runs():
    with pytest.raises(InputError, match=r"write a number in the place of \{accumulation\}"):
        observe(["python", "t.py", "{micro_batch}", "{accumulation}"])
    with pytest.raises(InputError, match="the command is missing"):
        observe([])


def test_a_configuration_or_a_command_is_asked_for(capsys):
    assert main(["doctor"]) == 2
    assert "file is missing: name a configuration, or a training command after --" in capsys.readouterr().err


WARMED = """
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))
for rows in torch.utils.data.DataLoader(torch.randn(64, 2), 8):
    net(rows).mean().backward()
    optimizer.step()
    schedule.step()
"""


def test_a_given_schedule_is_compared_with_the_runs_rates(tmp_path, capsys):
    script, recipe = tmp_path / "train.py", tmp_path / "r.toml"
    script.write_text(WARMED)
    words = ["doctor", "-o", str(recipe), "--set", "schedule=constant", "--set", "warmup=4st"]
    assert main([*words, "--", "python", str(script)]) == 1
    messages = capsys.readouterr().err
    assert "at step 1 the recipe has learning rate 0 (constant, warmup 4st), and the run 0.025" in messages
    assert "the run's length was not seen: give it by --set duration=3ep" in messages
    assert ib.Recipe.load(recipe).warmup == "4st"


def test_an_epochs_last_passes_are_said_where_they_are_no_whole_step(runs):
    run, recipe = runs["plain"], recipe_of(runs["plain"])
    assert unseen_end(run, recipe) is None  # 24 passes are 8 steps of 3
    cut = msgspec.structs.replace(run, dataset_size=100)
    assert "an epoch has 25 passes, no whole number of steps of 3: planned with a last step of 1 pass" in str(
        unseen_end(cut, recipe)
    )
    assert unseen_end(cut, msgspec.structs.replace(recipe, convention="exact")) is None
