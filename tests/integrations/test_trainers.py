"""The plan's learning rate inside the trainers: a short training in each, and the rates that it used."""

import sys

import numpy as np
import pytest

import isobatch as ib
from ddp.quiet import LIGHTNING

torch = pytest.importorskip("torch", reason="the trainers train with torch")

# The trainers warn of workers, GPUs and loggers that a test has no use for.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

RECIPE = {"effective_batch": 8, "lr": 0.1, "optimizer": "sgd", "dataset_size": 42}
RECIPE |= {"duration": "3ep", "warmup": "4st"}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 42

    def __getitem__(self, index):
        x = torch.tensor([float(index % 7), 1.0])
        return {"x": x, "labels": x.sum()}


def lightning_run(plan, configure):
    """Trains in Lightning; gives the learning rate of every optimizer step."""
    lightning = pytest.importorskip("lightning", reason="trains in Lightning's Trainer")
    rates = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return ((self.layer(batch["x"])[:, 0] - batch["labels"]) ** 2).mean() * 1e-3

        def on_before_optimizer_step(self, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

        def configure_optimizers(self):
            return configure(torch.optim.SGD(self.parameters(), lr=1.0), plan)

    trainer = lightning.Trainer(
        **LIGHTNING, devices=1, accumulate_grad_batches=plan.accumulation, max_steps=plan.total_steps
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Numbers(), batch_size=plan.micro_batch))
    return rates


def test_lightning_steps_it_once_a_step():
    from isobatch.integrations.lightning import configure_optimizers

    plan = ib.plan(ib.Recipe(**RECIPE, convention="lightning"), 1, max_micro_batch=4)
    assert (plan.accumulation, plan.total_steps) == (2, 18)
    assert lightning_run(plan, configure_optimizers) == [plan.lr_at(x) for x in range(18)]


def test_lightnings_default_of_once_an_epoch_is_loud():
    from isobatch.integrations.torch import PlanLR

    plan = ib.plan(ib.Recipe(**RECIPE, convention="lightning"), 1, max_micro_batch=4)
    with pytest.raises(ib.InputError, match="took 6 steps since"):
        lightning_run(plan, lambda optimizer, plan: ([optimizer], [PlanLR(optimizer, plan)]))


def test_transformers_trainer_takes_it_and_resumes(tmp_path, monkeypatch):
    # Saving a checkpoint would load it, where it is installed.
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    transformers = pytest.importorskip("transformers", reason="trains in transformers' Trainer")
    from isobatch.integrations.transformers import optimizers

    plan = ib.plan(ib.Recipe(**RECIPE, convention="transformers"), 1, max_micro_batch=4)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    data = [dict.fromkeys(("input_ids", "labels"), torch.tensor([i % 11, 1, 2])) for i in range(42)]
    rates = []

    class Watch(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_, optimizer=None, **__):
            rates.append(optimizer.param_groups[0]["lr"])

    def trainer(stop):
        model = transformers.GPT2LMHeadModel(config)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=plan.micro_batch,
            gradient_accumulation_steps=plan.accumulation, max_steps=stop, save_steps=5, use_cpu=True,
            report_to=[], disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        pair = optimizers(torch.optim.SGD(model.parameters(), lr=1.0), plan)
        return transformers.Trainer(
            model, arguments, train_dataset=data, optimizers=pair, callbacks=[Watch()]
        )

    trainer(5).train()
    trainer(plan.total_steps).train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert plan.total_steps == 18
    assert rates == [plan.lr_at(x) for x in range(18)]


def test_accelerates_step_for_every_process_is_loud():
    accelerate = pytest.importorskip("accelerate", reason="steps through Accelerate's scheduler")
    from isobatch.integrations.torch import PlanLR

    plan = ib.plan(ib.Recipe(**RECIPE), 1)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1.0)
    accelerator = accelerate.Accelerator(cpu=True)
    scheduler = PlanLR(optimizer, plan)
    prepared, stepper = accelerator.prepare(optimizer, scheduler)
    with pytest.raises(ib.InputError, match="AcceleratedOptimizer cannot be watched"):
        PlanLR(prepared, plan)
    prepared.step()
    stepper.step()  # one process: as it should be
    assert scheduler.last_epoch == 1
    prepared.step()
    accelerate.state.PartialState().num_processes = 2
    try:
        with pytest.raises(ib.InputError, match="nor for every process"):
            stepper.step()
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_optax_looks_it_up_inside_jit():
    optax = pytest.importorskip("optax", reason="trains with optax")
    import jax
    import jax.numpy as jnp

    from isobatch.integrations.optax import schedule

    plan = ib.plan(ib.Recipe(**RECIPE), 1)
    optimizer = optax.sgd(schedule(plan))
    weight = jnp.zeros(())
    state = optimizer.init(weight)

    @jax.jit
    def step(weight, state):
        updates, state = optimizer.update(jnp.ones(()), state)
        return optax.apply_updates(weight, updates), state

    changes = []
    for _ in range(plan.total_steps + 2):
        after, state = step(weight, state)
        changes.append(float(weight - after))
        weight = after
    rates = plan.schedule.values(range(plan.total_steps + 2))
    assert changes == pytest.approx(rates, abs=1e-6)  # differences of a float32 sum
    at = schedule(plan)
    assert [np.float32(at(x)) for x in range(plan.total_steps)] == list(rates[:-2].astype(np.float32))
    assert float(at(10**9)) == float(np.float32(rates[-1]))


# ---- a GlobalLoader in them: the same samples in each step after a restart ----


def steps_in_lightning(state, micro, stop, folder):
    """Returns the samples of each step of Lightning's Trainer until a step, and its own checkpoint."""
    lightning = pytest.importorskip("lightning.pytorch")
    from isobatch.integrations.torch import GlobalLoader

    loader, steps = GlobalLoader(range(50), 12, max_micro_batch=micro, equal_passes=True), {}

    class Restart(lightning.Callback):
        def on_train_start(self, trainer, *_):
            trainer.fit_loop.epoch_loop.restarting = False

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            if not loader.stand_in:
                steps.setdefault(self.global_step, []).extend(batch.tolist())
            return self.model(batch[:, None].float()).mean() * loader.weight * loader.passes

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        **LIGHTNING, devices=1, accumulate_grad_batches=loader.passes, max_steps=stop, max_epochs=-1,
        callbacks=[Restart()], default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), loader, ckpt_path=state, weights_only=False)
    trainer.save_checkpoint(folder / f"{stop}.ckpt")
    return steps, folder / f"{stop}.ckpt"


def steps_in_accelerate(state, micro, stop, folder):
    """Returns the same of a loop with Accelerate."""
    accelerate = pytest.importorskip("accelerate")
    from isobatch.integrations.torch import GlobalLoader

    loader, steps, step = GlobalLoader(range(50), 12, max_micro_batch=micro, equal_passes=True), {}, 0
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.gradient_accumulation_steps = loader.passes
    model = torch.nn.Linear(1, 1)
    model, optimizer, prepared = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-4), loader
    )
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    if state is not None:
        accelerator.load_state(str(state))
        accelerator.step, step = 0, int(state.name)
    while step < stop:
        for batch in loader:
            if not loader.stand_in:
                steps.setdefault(step, []).extend(batch.tolist())
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[:, None].float()).mean() * loader.weight * loader.passes)
                optimizer.step()
                optimizer.zero_grad()
            assert accelerator.sync_gradients == loader.last
            step += loader.last
            if step == stop:
                break
    accelerator.save_state(str(folder / str(stop)))
    return steps, folder / str(stop)


@pytest.mark.parametrize("trained", [steps_in_lightning, steps_in_accelerate])
def test_a_trainer_goes_on_in_a_step_of_another_number_of_micro_batches(trained, tmp_path):
    """As on another number of ranks, where a rank's micro-batches of a step are more or fewer."""
    expected, _ = trained(None, 2, 8, tmp_path)
    steps, state = trained(None, 2, 3, tmp_path)
    assert len(steps) == 3
    for micro, stop in ((3, 6), (4, 8)):
        later, state = trained(state, micro, stop, tmp_path)
        steps |= later
    assert {step: sorted(ids) for step, ids in steps.items()} == {
        step: sorted(ids) for step, ids in expected.items()
    }
