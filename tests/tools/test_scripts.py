"""Python training scripts as data: the same as the real class, or as the same values in a file; nothing is
executed.
"""

import inspect
import json
import textwrap

import pytest

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.errors import InputError
from isobatch.tools.page import Unknown
from isobatch.tools.scripts import script_settings
from isobatch.tools.signatures import FIRST
from isobatch.tools.tool import Weight
from tools.test_reading import has

HEAD = (
    "from transformers import Seq2SeqTrainingArguments, TrainingArguments\nfrom trl import GRPOConfig, "
    "SFTConfig\n"
)
FIELDS = (
    "effective_batch lr duration warmup schedule weight_decay optimizer clip_norm betas save_every precision"
)
VALUES = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "learning_rate": 2e-5,
    "max_steps": 1000,
    "warmup_steps": 100,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
    "save_steps": 500,
}


def arguments(values):
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


REST = "max_steps=1000, warmup_steps=100, lr_scheduler_type='cosine', weight_decay=0.01, save_steps=500"
SCRIPTS = {
    "literals": f"args = TrainingArguments({arguments(VALUES)})",
    "names and sums": """
        BATCH, STEPS = 32, 1000
        LR = 2e-5
        args = Seq2SeqTrainingArguments("out", per_device_train_batch_size=BATCH // 8,
            gradient_accumulation_steps=2 * 4, learning_rate=LR, max_steps=STEPS, warmup_steps=STEPS // 10,
            lr_scheduler_type="cosine", weight_decay=1 / 100, save_steps=500)
    """,
    "a table": """
        COMMON = dict(gradient_accumulation_steps=8, learning_rate=2e-5)
        def main():
            config = {**COMMON, "max_steps": 1000, "warmup_steps": 100, "lr_scheduler_type": "cosine"}
            return TrainingArguments(output_dir="out", per_device_train_batch_size=4, weight_decay=0.01,
                save_steps=500, **config)
        if __name__ == "__main__":
            main()
    """,
    "argparse": """
        import argparse
        def parse():
            parser = argparse.ArgumentParser()
            parser.add_argument("--batch-size", "-b", type=int, default=4)
            parser.add_argument("--lr", type=float, default=2e-5)
            parser.add_argument("--out", required=True)
            return parser.parse_args()
        def main(args):
            training = TrainingArguments(output_dir=args.out, per_device_train_batch_size=args.batch_size,
                gradient_accumulation_steps=8, learning_rate=args.lr, REST)
        if __name__ == "__main__":
            main(parse())
    """,
    "a function named parse_args": """
        from argparse import ArgumentParser
        def parse_args():
            parser = ArgumentParser()
            group = parser.add_argument_group("training")
            group.add_argument("--learning-rate", dest="lr", type=float, default=2e-5)
            parser.add_argument("--batch", type=int, default=4)
            args = parser.parse_args()
            return args
        args = parse_args()
        def main():
            return TrainingArguments("out", per_device_train_batch_size=args.batch,
                gradient_accumulation_steps=8, learning_rate=args.lr, REST)
        main()
    """,
    "a dataclass": """
        from dataclasses import dataclass, field
        from transformers import HfArgumentParser
        @dataclass
        class Script:
            lr: float = 2e-5
            batch: int = field(default=4, metadata={"help": "of a GPU"})
        parser = HfArgumentParser(Script)
        script, = parser.parse_args_into_dataclasses()
        args = TrainingArguments("out", per_device_train_batch_size=script.batch,
            gradient_accumulation_steps=8, learning_rate=script.lr, REST)
    """,
}


def script(tmp_path, text, name="train.py"):
    file = tmp_path / name
    file.write_text(HEAD + textwrap.dedent(text).replace("REST", REST))
    return file


def refused(tmp_path, text, says, *, gpus=1, **fields):
    with pytest.raises(InputError, match=says):
        ib.Recipe.read(script(tmp_path, text), gpus=gpus, **fields)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_the_same_values_in_a_file(tmp_path, name):
    beside = tmp_path / "args.json"
    beside.write_text(json.dumps(VALUES))
    assert ib.Recipe.read(script(tmp_path, SCRIPTS[name]), gpus=2) == ib.Recipe.read(beside, gpus=2)


def test_a_script_is_what_the_real_class_has(tmp_path):
    transformers = pytest.importorskip("transformers")
    values = VALUES | {"output_dir": str(tmp_path), "adam_beta2": 0.95, "max_grad_norm": 0.5, "use_cpu": True}
    file = script(tmp_path, f"args = TrainingArguments({arguments(values)}, report_to='none')")
    real = ib.Recipe.read(transformers.TrainingArguments(**values, report_to="none"), gpus=2)
    read = ib.Recipe.read(file, gpus=2)
    has(read, {name: getattr(real, name) for name in FIELDS.split()})


@pytest.mark.parametrize(
    "change",
    ["x = c.update(learning_rate=2)", "c.update(**load())", "lr = c.pop('learning_rate')", "c[f()] = 3",
     "c['max_steps'] = 5", "other = c", "def change(): c.clear()", "del c['max_steps']"],
)  # fmt: skip
def test_a_table_that_another_statement_may_change_is_asked_for(tmp_path, change):
    text = f"c = dict(learning_rate=1e-4, max_steps=9)\n{change}\nargs = TrainingArguments('o', **c)"
    says = r"learning_rate may be in \*\*c \(line {}\), which may be changed in line 4"
    refused(tmp_path, text, f"{says.format(5)}: give lr a value")
    inside = text.replace(f"{change}\n", "").replace("'o'", "c.update(learning_rate=2)")
    refused(tmp_path, inside, says.format(4))
    read = text.replace(change, "print(c['max_steps'])")
    assert ib.Recipe.read(script(tmp_path, read), gpus=1).lr == 1e-4


CHANGED = {
    "a method": "class Cfg:\n    lr = 1e-4\n    @classmethod\n    def setup(cls): cls.lr = 3e-5\n"
                "Cfg.setup()\nargs = TrainingArguments(learning_rate=Cfg.lr)",
    "its own update": "class Cfg:\n    lr = 1e-4\n    @classmethod\n    def update(cls, lr): cls.lr = lr * "
                      "2\nCfg.update(lr=1e-3)\nargs = TrainingArguments(learning_rate=Cfg.lr)",
    "keywords last": "kw.update({'learning_rate': 2e-4}, learning_rate=3e-5)",
    "dict.update": "dict.update(kw, learning_rate=3e-5)",
    "an alias": "other = kw\nother |= {'learning_rate': 3e-5}",
    "a setting of its own": "args.adam_beta1 = 0.8",
    "object.__setattr__": "object.__setattr__(args, 'learning_rate', 3e-5)",
    "global": "def get(): \n    global lr\n    lr = 3e-5\nget()\nargs = TrainingArguments(learning_rate=lr)",
    "a decorator": "def twice(f): return lambda: 2 * f()\n@twice\ndef get(): return 1e-4\n"
                   "args = TrainingArguments(learning_rate=get())",
    "a function of two names": "def get(): return 1e-4\nget = lambda: 3e-5\n"
                               "args = TrainingArguments(learning_rate=get())",
    "a caller's name": "def get(): return lr\ndef main(lr=3e-5): "
                       "return TrainingArguments(learning_rate=get())"
                       "\nargs = main()",
    "a comprehension's name": "args = [TrainingArguments(learning_rate=lr) for lr in (3e-5,)][0]",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_values_read_are_those_of_python(name):
    class Arguments:
        max_grad_norm = 1.0

        def __init__(self, **settings):
            vars(self).update(settings)

    table, source = "kw = dict(learning_rate=1e-4, max_steps=9)\n", "args = TrainingArguments(**kw)\n"
    start = "lr = 1e-4" if "args = " in CHANGED[name] else f"lr, lrs = 1e-4, [1e-4]\n{table}{source}"
    text = f"{start}\n{CHANGED[name]}\n"
    if "kw" in CHANGED[name]:
        text = f"{table}{CHANGED[name]}\n{source}"
    names = {"TrainingArguments": Arguments, "__name__": "__main__"}
    exec(text, names)
    read, _ = script_settings(text, "t.py", "", [])
    real = vars(names["args"])
    wrong = {key for key, value in read.items() if not isinstance(value, Unknown) and real.get(key) != value}
    assert read and not wrong, (read, real)
    assert {*real} <= {*read}


CLASSES = """
    bs = 2
    class C:
        lr = 1e-4
        bs = 8
    class D(C):
        pass
    args = TrainingArguments('o', per_device_train_batch_size=C.bs, gradient_accumulation_steps={},
        learning_rate={}, max_steps=9)
"""


def test_the_names_of_a_class_are_its_own(tmp_path):
    assert ib.Recipe.read(script(tmp_path, CLASSES.format("C.bs", "C.lr")), gpus=1).effective_batch == 64
    refused(
        tmp_path,
        CLASSES.format("bs", "D.lr"),
        r"gradient_accumulation_steps is bs \(line 10\), which is set in lines 4, 7: (.|\n)*is D.lr",
    )
    inside = "class C:\n    args = TrainingArguments('o')\ndef f():\n    TrainingArguments('o')\n"
    refused(tmp_path, inside, "2 configurations")


def test_trl_is_read_as_trl(tmp_path, ran):
    text = "args = RLOOConfig(output_dir='o', per_device_train_batch_size=8, learning_rate=1e-6, max_steps=9)"
    values = {"per_device_train_batch_size": 8, "num_generations": 2, "learning_rate": 1e-6, "max_steps": 9}
    file, beside = script(tmp_path, text), tmp_path / "grpo.json"
    beside.write_text(json.dumps(values))
    assert ib.Recipe.read(file, gpus=2) == ib.Recipe.read(beside, tool="trl", gpus=2)
    errors = ran(["plan", "--from", str(file), "--set", "gpus=2", "--gpus", "4"]).err
    assert "read as TRL" in errors and "num_generations 2: a batch must be" in errors, "RLOO's own default"


def test_computed_values_are_asked_for_in_one_message(tmp_path):
    text = """
        import os
        args = SFTConfig(output_dir="o", per_device_train_batch_size=int(os.environ.get("BS", 4)),
            learning_rate=get_lr(), max_steps=100)
    """
    with pytest.raises(InputError) as caught:
        ib.Recipe.read(script(tmp_path, text), gpus=1)
    message = str(caught.value)
    read = "per_device_train_batch_size is int(os.environ.get('BS', 4)) (line 5)"
    assert f"{read}, which cannot be read from the script: give batch_per_gpu" in message
    assert (
        "learning_rate is get_lr() (line 6), which cannot be read from the script: give lr a value" in message
    )
    assert message.endswith("Give each with --set (in Python as a keyword), or have all of it read exactly "
                            "by starting the script: "
        "isobatch doctor -- COMMAND")  # fmt: skip
    assert ib.Recipe.read(script(tmp_path, text), gpus=1, batch_per_gpu=4, lr=1e-4).effective_batch == 4


@pytest.mark.parametrize(
    "change",
    [
        "args.learning_rate = 1e-3", "if debug: args.learning_rate = 1e-3",
        "for rate in rates: args.learning_rate = rate",
        "args.learning_rate = rate()", "setattr(args, 'learning_rate', rate())", "args.learning_rate = args",
        "vars(args).update(learning_rate=args)", "setattr(find(), 'learning_rate', 3)",
        "setattr(args, name, 3)",
        "if debug: setattr(args, 'learning_rate', 3)", "def later(): args.learning_rate = 1",
        "find(args).learning_rate = 3",
        "try: load()\nexcept E: args.learning_rate = 3", "args.set_training(learning_rate=3)",
        "args.set_optimizer(beta2=0.5)",
        "a = args\na.learning_rate += 1", "del args.learning_rate", "args.__dict__['learning_rate'] = 3",
        "object.__setattr__(args, name, 3)",
        "(args.learning_rate, x) = f()", "with f() as args.learning_rate: pass",
    ],
)  # fmt: skip
def test_values_set_afterwards_are_asked_for_by_name_and_line(tmp_path, change):
    text = (
        "args = TrainingArguments('o', per_device_train_batch_size=4, learning_rate=2e-5, max_steps=9)\n"
        f"\n{change}\n"
    )
    line = 6 if "\n" in change else 5
    refused(tmp_path, text, rf"learning_rate may be set by .* \(line {line}\): give lr a value")


def test_several_configurations_are_listed_and_one_is_chosen(tmp_path):
    text = """
        first = SFTConfig("a", per_device_train_batch_size=4, learning_rate=2e-5, max_steps=9)
        second = TrainingArguments("b", per_device_train_batch_size=8, learning_rate=2e-5, max_steps=9)
    """
    file = script(tmp_path, text)
    refused(tmp_path, text, r"has 2 configurations: line 4 \(SFTConfig\), line 5 \(TrainingArguments\)")
    assert ib.Recipe.read(f"{file}:5", gpus=1).effective_batch == 8
    with pytest.raises(InputError, match="no configuration in line 7"):
        ib.Recipe.read(f"{file}:7", gpus=1)


LIGHTNING = """
import lightning as L
import torch
from torch.utils.data import DataLoader

class Model(L.LightningModule):
    def __init__(self, lr=1e-3):
        self.lr = lr
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

def main():
    train, valid = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, 64)
    trainer = L.Trainer(max_steps=500, devices=4, accumulate_grad_batches=2, precision="bf16-mixed",
        gradient_clip_val=1.0)
    trainer.fit(Model(), train)

main()
"""


def test_lightnings_trainer_is_the_same_in_its_own_file(tmp_path):
    file, beside = tmp_path / "run.py", tmp_path / "run.yaml"
    file.write_text(LIGHTNING)
    trainer = {"max_steps": 500, "devices": 4, "accumulate_grad_batches": 2, "precision": "bf16-mixed"}
    trainer |= {"gradient_clip_val": 1.0}
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
    beside.write_text(json.dumps({"trainer": trainer, "optimizer": optimizer, "data": {"batch_size": 16}}))
    read = ib.Recipe.read(file)
    assert read == ib.Recipe.read(beside) and read.effective_batch == 128 and read.momentum == 0.9


IN_A_TRAINER = """
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
args = TrainingArguments("out", per_device_train_batch_size=8, max_steps=500, learning_rate=1e-4,
    weight_decay=0.3)
o = torch.optim.AdamW(p, lr=0.1)
trainer = Trainer(model, args, optimizers=(o, {}))
"""
IN_LIGHTNING = LIGHTNING.replace(
    "return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)",
    """o = torch.optim.AdamW(self.parameters(), lr=0.1)
        s = torch.optim.lr_scheduler.{}
        return {{"optimizer": o, "lr_scheduler": {{"scheduler": s, "interval": "step"}}}}""",
)


@pytest.mark.parametrize(
    ("source", "peak"),
    [
        ("OneCycleLR(o, max_lr=0.03, total_steps=500)", 0.03),
        ("OneCycleLR(o, 0.03, epochs=5, steps_per_epoch=100, pct_start=0.1, div_factor=10, "
         "final_div_factor=100)", 0.03),
        ("OneCycleLR(o, max_lr=3e-2, total_steps=250 * 2, anneal_strategy='linear', three_phase=True)", 0.03),
        ("CosineAnnealingLR(o, 400, eta_min=1e-3)", 0.1),
    ],
)  # fmt: skip
def test_a_scheduler_of_torch_is_that_of_the_real_class(tmp_path, source, peak):
    torch = pytest.importorskip("torch")
    recipe = ib.Recipe.read(script(tmp_path, IN_LIGHTNING.format(source)), gpus=4)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    real = eval(f"torch.optim.lr_scheduler.{source}", {"torch": torch, "o": optimizer})
    rates = []
    for step in range(500):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < 499:
            real.step()
    plan = ib.plan(recipe, 4)
    assert (recipe.lr, recipe.weight_decay, plan.total_steps) == (peak, 0.01, 500)
    assert [plan.lr_at(step) for step in range(500)] == pytest.approx(rates, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("listed", ['[{"scheduler": s, "interval": "step"}]', "[s]", '[{"scheduler": s}]'])
def test_schedulers_in_a_list_are_read_as_in_a_table(tmp_path, listed):
    """Lightning takes both; a scheduler alone, or without an interval, is stepped once an epoch."""
    table = IN_LIGHTNING.format("CosineAnnealingLR(o, 500)")
    start, _, _ = table.partition("return {")
    text = f"{start}return [o], {listed}{table[table.rindex('}}') + 2 :]}"
    if "interval" in listed:
        assert ib.Recipe.read(script(tmp_path, text), gpus=4) == ib.Recipe.read(
            script(tmp_path, table), gpus=4
        )
    else:
        refused(
            tmp_path,
            text,
            "whose steps the script decides: give schedule a value, as in --set schedule=cosine",
        )


STEPS = "self.trainer.estimated_stepping_batches"


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        (f"OneCycleLR(o, 0.03, total_steps={STEPS})", {"schedule": "one_cycle(rise=30%)", "lr": 0.03}),
        (f"CosineAnnealingLR(o, T_max={STEPS}, eta_min=0.01)", {"schedule": "cosine", "min_lr": 0.01}),
        (f"LinearLR(o, 1.0, 0.0, {STEPS})", {"schedule": "linear"}),
        (f"get_cosine_schedule_with_warmup(o, int(0.1 * {STEPS}), {STEPS})",
         {"schedule": "cosine", "warmup": "10%"}),
        (f"get_linear_schedule_with_warmup(o, 40, {STEPS})", {"schedule": "linear", "warmup": "40st"}),
        (f"CosineAnnealingLR(o, T_max={STEPS} / 2)", "over other steps than the run's cannot be planned"),
    ],
)  # fmt: skip
def test_a_scheduler_over_a_run_of_epochs_is_read(tmp_path, source, fields):
    text = IN_LIGHTNING.format(source).replace("max_steps=500", "max_epochs=4")
    text = text.replace("lr_scheduler.get_", "get_") if "get_" in source else text
    if isinstance(fields, str):
        refused(tmp_path, text, fields, gpus=4, dataset_size=9000)
    else:
        has(ib.Recipe.read(script(tmp_path, text), gpus=4, dataset_size=9000), fields)


def test_an_argument_without_a_name_is_that_of_the_real_class():
    torch, transformers, accelerate = map(pytest.importorskip, ("torch", "transformers", "accelerate"))
    places = (torch.optim, torch.optim.lr_scheduler, torch.utils.data, torch.nn.utils)
    places += (transformers, accelerate)
    for name, arguments in FIRST.items():
        real = next((getattr(place, name) for place in places if hasattr(place, name)), None)
        if real is not None and name != "Adafactor":  # of two packages
            assert list(inspect.signature(real).parameters)[: len(arguments)] == arguments, name


@pytest.mark.parametrize("source", ["None", "OneCycleLR(o, 0.03, total_steps=500)", "f(o)"])
def test_an_optimizer_that_the_trainer_is_given_is_asked_for(tmp_path, source):
    file = script(tmp_path, IN_A_TRAINER.format(source))
    with pytest.raises(InputError) as caught:
        ib.Recipe.read(file, gpus=4)
    for setting, field in (
        ("learning_rate", "lr"),
        ("optim", "optimizer"),
        ("lr_scheduler_type", "schedule"),
    ):
        says = f"{setting} is not the Trainer's: it is given optimizers=(…): give {field} a value"
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("AdamW(p, 1e-3, (.8, .9), 1e-6, .3)",
         {"lr": 1e-3, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}),
        ("AdamW(p, lr=1e-3)", {"betas": None, "eps": None, "weight_decay": 0.01}),
        ("SGD(p, 0.1, 0.9)", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
        ("SGD(p, 0.1, f())", r"momentum is f\(\)"),
        ("SGD(p, 0.1, 0.9, 0, 0, False, None)", "lr may be an argument without a name"),
        ("SGD(p, *rates)", "lr may be an argument without a name"),
        ("SGD(p, **load())", r"momentum may be in \*\*load\(\)"),
    ],
)  # fmt: skip
def test_an_optimizer_of_the_script_is_read_whole(tmp_path, source, fields):
    text = LIGHTNING.replace("SGD(self.parameters(), lr=0.1, momentum=0.9)", source)
    if isinstance(fields, str):
        refused(tmp_path, text, fields, gpus=None)
    else:
        has(ib.Recipe.read(script(tmp_path, text)), fields)


@pytest.mark.parametrize(
    ("imported", "source"),
    [
        ("from torch.optim.lr_scheduler import *", "StepLR(o, 100, f())"),
        ("import torch.optim.lr_scheduler as s", "s.StepLR(o, 100, f())"),
        ("from torch.optim import lr_scheduler as s", "s.StepLR(o, 100, f())"),
        ("from transformers import get_cosine_schedule_with_warmup as g", "g(o, 10, 100)"),
        ("from mine import s", "s(o)"),
        ("ms = [100, 200]; ms.append(300)", "torch.optim.lr_scheduler.MultiStepLR(o, ms)"),
    ],
)
@pytest.mark.parametrize("text", [IN_A_TRAINER, IN_LIGHTNING], ids=["transformers", "lightning"])
def test_a_scheduler_of_any_name_is_asked_for(tmp_path, text, imported, source):
    text = text.replace("torch.optim.lr_scheduler.{}", "{}").format(source)
    refused(tmp_path, f"{imported}\n{text}", "give schedule", gpus=4)


LOOP = """
    BATCH, STEPS = 16, 1000
    def main(model, data):
        accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
        train, valid = DataLoader(data, batch_size=BATCH, shuffle=True), DataLoader(data, batch_size=64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
        scheduler = get_cosine_schedule_with_warmup(optimizer, 100, num_training_steps=STEPS)
        for batch in train:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
    main(m, d)
"""


EXAMPLE = """
    from torch.optim.lr_scheduler import OneCycleLR
    MOST = 16
    def loaders(accelerator, batch_size):
        return DataLoader(data, shuffle=True, batch_size=batch_size), DataLoader(held_out, batch_size=32)
    def train(config, args):
        batch_size = int(config["batch_size"])
        accelerator = Accelerator(cpu=args.cpu)
        accumulation = 1
        if batch_size > MOST and accelerator.distributed_type != DistributedType.XLA:
            accumulation, batch_size = batch_size // MOST, MOST
        first, second = loaders(accelerator, batch_size)
        optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-5)
        lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=900)
        for batch in first:
            optimizer.step()
            lr_scheduler.step()
            print({"lr": lr_scheduler.get_last_lr()[0]})
    train({"batch_size": 16}, parse())
"""


def test_a_script_of_accelerates_own_shape_is_read(tmp_path):
    """Arguments of a function are asked for; a scheduler's own methods make no other scheduler."""
    says = r"batch_size is batch_size \(line 7\), which is set in lines 6, 9, 13: give batch_per_gpu"
    refused(tmp_path, EXAMPLE, says, gpus=2)
    recipe = ib.Recipe.read(script(tmp_path, EXAMPLE), gpus=2, duration="900st", batch_per_gpu=16)
    assert (recipe.effective_batch, recipe.lr, recipe.schedule) == (32, 2e-5, "linear")


def test_missing_and_computed_values_are_asked_for_together(tmp_path):
    with pytest.raises(InputError) as caught:
        ib.Recipe.read(script(tmp_path, LOOP.replace("STEPS = 16, 1000", "STEPS = 16, len(data)")))
    text = str(caught.value)
    assert "3 faults" in text and "give duration" in text and "give warmup" in text
    says = (
        "gpus is missing: the GPUs that it was tuned on (DataLoader.batch_size counts per GPU); --set gpus=N"
    )
    assert says in text


SCHEDULED = """
    accelerator = Accelerator({arguments})
    loader = DataLoader(data, batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = {scheduler}
    model, optimizer, loader{prepared} = accelerator.prepare(model, optimizer, loader{prepared})
"""
PREPARED = ", scheduler"
COSINE = "get_scheduler('cosine', optimizer=optimizer, num_warmup_steps={0}{1}, num_training_steps={2}{1})"
LINEAR = "torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=10000)"
PER_PROCESS = " * accelerator.num_processes"


@pytest.mark.parametrize(
    ("scheduler", "prepared", "arguments", "is_changed"),
    [
        (COSINE.format(100, "", 3000), PREPARED, "", True),
        (COSINE.format(100, PER_PROCESS, 3000), PREPARED, "", False),
        (COSINE.format(100, "", 3000).replace("=3000", "=3000" + PER_PROCESS), PREPARED, "", True),
        (COSINE.format(100, "", 3000), "", "", False),
        (COSINE.format(100, "", 3000), PREPARED, "step_scheduler_with_optimizer=False", False),
        (COSINE.format(100, "", 3000), PREPARED,
         "dataloader_config=DataLoaderConfiguration(split_batches=True)", False),
        (COSINE.format(100, "", "steps()"), PREPARED, "", False),
        (LINEAR, PREPARED, "", True),
        (LINEAR, "", "", False),
        ("torch.optim.lr_scheduler.StepLR(optimizer, 30)", PREPARED, "", True),
        ("get_scheduler('constant', optimizer)", PREPARED, "", False),
    ],
)  # fmt: skip
def test_a_prepared_scheduler_changes_the_training_where_its_steps_are_not_multiplied(
    tmp_path, scheduler, prepared, arguments, is_changed
):
    file = script(tmp_path, SCHEDULED.format(scheduler=scheduler, prepared=prepared, arguments=arguments))
    changes, alone = (
        [
            issue.what
            for issue in examine(file, gpus, tuned_gpus=gpus).findings
            if issue.weight is Weight.CHANGES
        ]
        for gpus in (4, 1)
    )
    assert any("takes 4 steps for each step" in what for what in changes) == is_changed
    assert bool(changes) == is_changed and not alone


def test_a_scheduler_of_all_processes_steps_is_right_on_these_processes(tmp_path):
    text = SCHEDULED.format(scheduler=COSINE.format(400, "", 12000), prepared=PREPARED, arguments="")
    for gpus, is_healthy in ((4, True), (8, False)):
        examination = examine(script(tmp_path, text), gpus, tuned_gpus=gpus, duration="3000st")
        assert examination.healthy == is_healthy


@pytest.mark.parametrize(
    ("warmup", "total"), [(100, 3000), (50, 700), (10, 300), (200, 6000), (500, 15000), (7, 901)]
)
def test_steps_of_warmup_stay_whole(tmp_path, warmup, total):
    text = SCHEDULED.format(scheduler=COSINE.format(warmup, "", total), prepared=PREPARED, arguments="")
    recipe = ib.Recipe.read(script(tmp_path, text), gpus=4, duration=f"{total}st")
    assert ib.plan(recipe, 4).warmup_steps == warmup


@pytest.mark.parametrize(
    ("scheduler", "prepared"),
    [(COSINE.format(100, PER_PROCESS, 3000), PREPARED), (COSINE.format(100, "", 3000), "")],
)
def test_a_length_that_the_scheduler_gives_is_said(tmp_path, scheduler, prepared):
    text = SCHEDULED.format(scheduler=scheduler, prepared=prepared, arguments="")
    recipe = ib.Recipe.read(script(tmp_path, text), gpus=4)
    plan = ib.plan(recipe, 4)
    assert (recipe.schedule, plan.total_steps, plan.warmup_steps) == ("cosine", 3000, 100)


SPLIT = "gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(split_batches=True)"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (SCHEDULED.format(scheduler=COSINE.format(100, "", 3000), prepared=PREPARED, arguments=SPLIT),
         {"duration": "3000st"}),
        (SCHEDULED.format(scheduler="None", prepared="", arguments="split_batches=True"),
         {"schedule": "constant", "effective_batch": 32}),
        (LOOP, {"effective_batch": 256, "lr": 3e-4, "weight_decay": 0.1, "clip_norm": 0.5,
                "schedule": "cosine",
                "warmup": "10%", "precision": "bf16", "optimizer": "adamw"}),
        (LOOP.replace("gradient_accumulation_steps=4", "parallelism_config=ParallelismConfig(tp_size=2), "
                      "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4)"),
         {"effective_batch": 128, "accumulation": 4, "model_parallel": 2}),
    ],
)  # fmt: skip
def test_a_loop_around_an_accelerator_is_read(tmp_path, text, fields):
    given = {} if "duration" in fields else {"duration": "500st"}
    recipe = ib.Recipe.read(script(tmp_path, text), gpus=4, **given)
    has(recipe, fields)
    assert ("is ignored since accelerate 1.0" in str(recipe.notes)) == (
        "(split_batches" in text and SPLIT not in text
    )


def test_the_peak_of_a_one_cycle_is_its_own(tmp_path):
    """Imported by its bare name; the optimizer's learning rate is where it begins."""
    cycle = "OneCycleLR(optimizer=optimizer, max_lr=0.03, total_steps=900)"
    old = "get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=900)"
    read = ib.Recipe.read(
        script(tmp_path, EXAMPLE.replace(old, cycle)), gpus=2, duration="900st", batch_per_gpu=16
    )
    assert (read.lr, read.schedule, read.min_lr) == (0.03, "one_cycle(rise=30%)", pytest.approx(0.03 / 25e4))
    refused(
        tmp_path,
        EXAMPLE.replace(old, cycle[:-1] + ", three_phase=True)"),
        "OneCycleLR with these arguments cannot be planned: give schedule",
        gpus=2,
    )
    optimizer = "return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)"
    source = f"{optimizer[7:]}; torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.7)"
    assert ib.Recipe.read(script(tmp_path, LIGHTNING.replace(optimizer, source)), schedule="cosine").lr == 0.7


AFTER = """
    for group in optimizer.param_groups:
        group['lr'] = rate(step)
"""
STEADY = "TrainingArguments('o', per_device_train_batch_size=B, learning_rate=2e-5, max_steps=9)"
PLAIN = SCHEDULED.format(scheduler="None", prepared="", arguments="")


def scheduled(scheduler, prepared=PREPARED, arguments=""):
    return SCHEDULED.format(scheduler=scheduler, prepared=prepared, arguments=arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # a script of transformers
        (f"B = 4\nfor B in range(3):\n    args = {STEADY}", r"per_device_train_batch_size is B \(line \d\)"),
        (f"B = 4\nwhile B := more():\n    args = {STEADY}", r"per_device_train_batch_size is B \(line \d\)"),
        (f"B = 4\nfor i in x:\n    B = B * 2\n    args = {STEADY}",
         r"per_device_train_batch_size is B \(line \d\)"),
        ("return TrainingArguments('o')", "'return' outside function"),
        ("args = TrainingArguments('o', learning_rate=2e-5, max_steps=9, **load('a.yaml'))",
         r"per_device_train_batch_size may be in \*\*load\('a.yaml'\) \(line 3\)"),
        ("args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()",
         "takes its arguments from the command line"),
        ("def f(): return f()\nTrainingArguments(learning_rate=f())", r"learning_rate is f\(\)"),
        # Lightning's schedulers
        (IN_LIGHTNING.format("OneCycleLR(o, 0.03, total_steps=count())"),
         r"an argument that is count\(\) \(line 13\)"),
        (IN_LIGHTNING.format("OneCycleLR(o, 0.03)"), "OneCycleLR .*total_steps.*give schedule"),
        (IN_LIGHTNING.replace('"step"', '"epoch"').format("OneCycleLR(o, 0.03, 9)"),
         r"lr_scheduler.class_path is OneCycleLR \(line 13\), whose steps the script decides: give schedule"),
        (IN_LIGHTNING.format("ReduceLROnPlateau(o)"), "give schedule"),
        # a loop
        ("loader = DataLoader(data, batch_size=16)\nAdamW(p, lr=1e-3)",
         r"effective_batch=N\s+DataLoader.batch_size 16 ×.*\n\s+--set lr=0.001"),
        (LOOP.replace("BATCH, STEPS = 16", "BATCH, STEPS = size()"),
         "DataLoader.batch_size is BATCH.*give batch_per_gpu"),
        (LOOP.replace("steps=4,", "steps=4, dataloader_config=DataLoaderConfiguration(split_batches=f()),"),
         "Accelerator.dataloader_config.split_batches is f.*give effective_batch"),
        (LOOP.replace("steps=4,", "steps=4, deepspeed_plugin=p,"),
         "Accelerator.deepspeed_plugin.*give accumulation"),
        (LOOP.replace("(optimizer, 100", "(optimizer, steps()"), "num_warmup_steps is steps.*give warmup"),
        (LOOP.replace("optimizer = ", "torch.optim.SGD(p, lr=1); optimizer = "),
         "makes AdamW and SGD: give optimizer"),
        (LOOP.replace("get_cosine_schedule_with_warmup", "torch.optim.lr_scheduler.CyclicLR"),
         "CyclicLR.*give schedule"),
        (LOOP.replace("scheduler = ", "get_scheduler('linear', optimizer); scheduler = "),
         "get_cosine.* and get_scheduler: give schedule"),
        (textwrap.dedent(PLAIN) + AFTER.replace("\n    ", "\n").replace("  group", "    group"),
         r"AdamW.lr is not all: group\['lr'\]"),
        (scheduled(COSINE.format(100, "", 3000)),
         "get_scheduler counts steps of its own.*give duration a value"),
        (scheduled(COSINE.format(100, "", 3000), "", "gradient_accumulation_steps=2"),
         "give duration a value"),
        (scheduled("get_constant_schedule_with_warmup(optimizer, 100)"), "give warmup a value"),
        (scheduled(COSINE.format(100, "", f"3000{PER_PROCESS}")), "give warmup a value"),
    ],
)  # fmt: skip
def test_open_values_of_a_script_are_asked_for(tmp_path, text, says):
    refused(tmp_path, text, says, gpus=2)


@pytest.mark.parametrize(
    ("text", "tool", "says"),
    [
        ("from transformers import Trainer\nTrainer(model=m)", "transformers",
         "has no call that configures transformers TrainingArguments"),
        ("BATCH = 4", "axolotl", "has no call that configures axolotl"),
        (LIGHTNING, "transformers", "configures Lightning, not transformers"),
    ],
)  # fmt: skip
def test_a_script_without_the_named_tool_is_refused(tmp_path, text, tool, says):
    refused(tmp_path, text, says, tool=tool)


PARSED = """
    import argparse
    from transformers import HfArgumentParser
    def parse_args(argv=None):
        p = argparse.ArgumentParser()
        p.add_argument("--lr", type=float, default=1e-4)
        p.add_argument("--batch-size", type=int, default=8)
        return p.parse_args(argv)
    def main(args):
        targs = TrainingArguments("out", per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr, max_steps=9)
    if __name__ == "__main__":
        args = parse_args()
        main(args)
"""


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        ("(argv)", "(args=argv)"),
        ("return p.parse_args(argv)", "args, rest = p.parse_known_args(argv)\n        return args"),
        ("argv=None", "argv"),
        ("p.parse_args(argv)", "p.parse_args(sys.argv[1:])"),
    ],
)
def test_a_function_named_as_the_parsers_method_is_followed(tmp_path, change):
    recipe = ib.Recipe.read(script(tmp_path, PARSED.replace(*change)), gpus=4)
    assert (recipe.effective_batch, recipe.lr) == (32, 1e-4)
    changed = PARSED.replace("p.parse_args(argv)", "p.parse_args(['--lr', '1'])")
    refused(tmp_path, changed, "learning_rate is args.lr")


def test_a_launch_line_gives_its_script_arguments_and_processes(tmp_path):
    file, launch = script(tmp_path, PARSED), tmp_path / "launch.sh"
    launch.write_text("torchrun --nproc_per_node 4 train.py --lr 3e-4 --batch-size 16\n")
    for paths in ([launch, file], [file, launch]):
        recipe = ib.Recipe.read(paths)
        assert (recipe.gpus, recipe.effective_batch, recipe.lr) == (4, 64, 3e-4)
    with pytest.raises(InputError, match=r"no tool is recognized(.|\n)*--from .*launch.sh --from train.py"):
        ib.Recipe.read(launch)
    launch.write_text("torchrun --nproc_per_node 4 train.py --grad_accum 4\n")
    with pytest.raises(InputError, match="--grad-accum 4 is not declared by the script: give accum"):
        ib.Recipe.read([launch, file])
    assert ib.Recipe.read([launch, file], accumulation=4).effective_batch == 128


def test_a_launch_line_has_all_settings_of_a_script_that_parses_them(tmp_path):
    file, launch = (
        script(tmp_path, "a, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()"),
        tmp_path / "l.sh",
    )
    launch.write_text(
        "torchrun --nproc_per_node 4 train.py --per_device_train_batch_size 4 --learning_rate 1e-4 "
        "--max_steps 9\n"
    )
    assert ib.Recipe.read([launch, file]) == ib.Recipe.read(launch)


def test_a_launch_line_has_the_processes_of_a_configuration(tmp_path):
    launch, beside = tmp_path / "l.sh", tmp_path / "args.json"
    beside.write_text(json.dumps(VALUES))
    for command in (
        "torchrun --nnodes 2 --nproc_per_node 8 t.py args.json",
        "accelerate launch --num_processes 16 t.py --config args.json",
    ):
        launch.write_text(f"{command}\n")
        assert ib.Recipe.read([launch, beside]).effective_batch == 4 * 8 * 16


SUBCLASS = '''
    @dataclass
    class Arguments(TrainingArguments):
        """Arguments of this script."""
        cache: str = field(default=None)
        optim: str = field(default="adafactor")
        model_max_length: int = 512
    args = Arguments(output_dir="o", per_device_train_batch_size=64, learning_rate=3e-5, max_steps=9)
'''


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("args = SentenceTransformerTrainingArguments(output_dir='o', per_device_train_batch_size=64, "
         "learning_rate=3e-5, max_steps=9)",
         {"effective_batch": 256, "optimizer": "adamw"}),
        ("args = CrossEncoderTrainingArguments('o', per_device_train_batch_size=64, learning_rate=3e-5, "
         "max_steps=9)",
         {"effective_batch": 256}),
        ("args = TrainingArguments('o', per_gpu_train_batch_size=32, learning_rate=3e-5, max_steps=9)",
         {"effective_batch": 128}),  # of transformers 4
        (SUBCLASS, {"effective_batch": 256, "optimizer": "adafactor", "seq_len": 512}),
        (SUBCLASS.replace("512", "512\n        def __post_init__(self): self.learning_rate *= 2"),
         "optim may be set by Arguments, which is more than its fields"),
    ],
)  # fmt: skip
def test_a_subclass_that_adds_fields_is_the_trainers(tmp_path, text, fields):
    if isinstance(fields, str):
        refused(tmp_path, text, fields, gpus=4)
    else:
        has(ib.Recipe.read(script(tmp_path, text), gpus=4), fields)
        assert "" not in script_settings(textwrap.dedent(text), "t.py", "", [])[0], "no docstring is a field"


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "open('hacked', 'w')\n" + SCRIPTS["literals"] + "\nopen('hacked', 'w')\n"
    assert ib.Recipe.read(script(tmp_path, text), gpus=2).effective_batch == 64
    assert not (tmp_path / "hacked").exists()


def test_an_interval_that_is_computed_stops_no_plan(tmp_path):
    """alpaca-lora's script, and its many copies."""
    text = (
        "args = TrainingArguments('o', per_device_train_batch_size=64, learning_rate=3e-5, max_steps=9,\n"
        "    eval_steps=200 if validation_rows > 0 else None)"
    )
    recipe = ib.Recipe.read(script(tmp_path, text), gpus=4)
    has(recipe, {"effective_batch": 256, "eval_every": None})
    assert any("eval_steps is 200 if" in note for note in recipe.notes), recipe.notes
