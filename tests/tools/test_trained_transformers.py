"""From a user's file to a training by the plan's file: two processes, step by step."""

import json
import sys

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="trains")
pytest.importorskip("transformers", reason="trains in transformers' Trainer")

# The Trainer warns of devices that are not there.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TUNED = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "num_train_epochs": 2,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.03,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
}


def planned(tmp_path, gpus, changes, **fields):
    """Arguments of a run on four GPUs, planned for others, and the file of the new arguments."""
    source = tmp_path / "args.json"
    source.write_text(json.dumps({**TUNED, **changes}))
    plan = ib.plan(ib.Recipe.read(source, gpus=4, **fields), gpus)
    file = tmp_path / "new.yaml"
    plan.to("transformers").save(file)
    return plan, file


SLOW = [
    {"lr_scheduler_type": "linear", "warmup_steps": 0.1},
    {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3},
    {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-5}},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}},
    {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 4},
    {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 5}},
    {"optim": "sgd", "lr_scheduler_type": "linear"},
    {"gradient_accumulation_steps": 2, "max_steps": 15, "warmup_ratio": 0.3},
]


@pytest.mark.parametrize("changes", [{}, *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW)])
def test_the_trainer_trains_what_the_plan_says(tmp_path, two, changes):
    from ddp import exported

    plan, file = planned(tmp_path, 2, changes, dataset_size=160)
    assert not any("differs" in note for note in plan.to("transformers").notes)
    rates = [plan.lr_at(step) for step in range(plan.total_steps)]
    for report in two(exported.transformers, str(file), 160):
        assert report["batch"] == plan.effective_batch
        assert report["steps"] == report["done"] == plan.total_steps
        assert report["lr"] == pytest.approx(rates, rel=1e-12, abs=1e-18)
        # Every step but the last of an epoch holds the whole batch.
        assert report["samples"].count(plan.effective_batch) >= plan.total_steps - 2


@pytest.mark.slow
def test_a_checkpoint_resumes_on_other_gpus(tmp_path, two, monkeypatch, ran):
    """A run of two processes, moved to one after its checkpoint: the arguments come from the folder alone."""
    from ddp import exported
    from ddp.pool import Pool

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    plan, file = planned(tmp_path, 2, {"warmup_ratio": 0.1}, dataset_size=160)
    out = str(tmp_path / "run")
    saving = {"output_dir": out, "save_strategy": "steps", "save_steps": 7}
    two(exported.transformers, str(file), 160, extra=saving)
    folder = f"{out}/checkpoint-7"
    recipe = ib.Recipe.read(folder)
    assert (recipe.gpus, recipe.micro_batch, recipe.accumulation, recipe.lr) == (2, 4, 2, 1e-3)
    text = ran(["replan", "--from", folder, "--gpus", "1"]).out
    new = tmp_path / "resumed.yaml"
    new.write_text(text[text.index("# isobatch") :])
    alone = Pool(1)
    try:
        saving = {"output_dir": out, "save_strategy": "no"}
        (report,) = alone(exported.transformers, str(new), 160, extra=saving)
    finally:
        alone.close()
    assert (report["batch"], report["steps"], report["done"]) == (plan.effective_batch, 20, 20)
    assert report["lr"] == pytest.approx([plan.lr_at(step) for step in range(7, 20)], rel=1e-9)
    # 7 of the 10 steps of the first epoch are done: 3 and the 10 of the second are left, all of them whole.
    assert report["samples"] == [16] * 13


PLAIN = "per_device_train_batch_size: 4\nlearning_rate: 2.0e-5\nmax_steps: 9\nwarmup_steps: 3\n"


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("learning_rate: 2e-5", "learning_rate: 2.0e-05"),
        ("max_steps: 1e3", "max_steps: 1000"),
        ("weight_decay: '0.1'", "weight_decay: 0.1"),
        ("save_strategy: no", 'save_strategy: "no"'),
        ("warmup_ratio: 0.03", "warmup_steps: 0.03"),
        ("learning_rate: 2.0e-5", None),
        ("learning_rate: .00002", None),
        ('save_strategy: "no"', None),
        ("bf16: no", None),
    ],
)
def test_a_line_that_stops_transformers_own_parser_stops_doctor(tmp_path, line, written):
    """HfArgumentParser reads YAML 1.1, and converts nothing; the line that doctor gives passes."""
    from transformers import HfArgumentParser, TrainingArguments

    from isobatch.doctor.examine import examine

    def starts(text):
        key = text.partition(":")[0]
        rest = [each for each in PLAIN.splitlines() if not each.startswith((key, "warmup"))]
        file.write_text("\n".join([*rest, text, f"output_dir: {tmp_path}"]))
        try:
            (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(file))
        except (TypeError, ValueError):
            return False
        return not isinstance(getattr(arguments, key), str) or key == "save_strategy"

    file = tmp_path / "args.yaml"
    assert starts(line) is (written is None)
    stops = [
        finding for finding in examine(file, 8, tuned_gpus=8).findings if finding.weight == "Stops the run"
    ]
    assert [finding.change.partition(", or")[0] for finding in stops] == ([written] if written else [])
    assert written is None or starts(written)
