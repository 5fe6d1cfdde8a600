"""PlanLR inside the trainers: a short training in each, and the learning rates that it used."""

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="the trainers train with torch")

RECIPE = ib.Recipe(
    effective_batch=8, lr=0.1, optimizer="sgd", dataset_size=40, duration="3ep", warmup="4st", convention="lightning"
)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        x = torch.tensor([float(index % 7), 1.0])
        return {"x": x, "labels": x.sum()}


def test_lightning_steps_it_once_a_step():
    lightning = pytest.importorskip("lightning", reason="trains in Lightning's Trainer")
    from isobatch.integrations.lightning import configure_optimizers

    plan = ib.plan(RECIPE, 1, max_micro_batch=4)
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return ((self.layer(batch["x"])[:, 0] - batch["labels"]) ** 2).mean() * 1e-3

        def on_before_optimizer_step(self, optimizer):
            seen.append(optimizer.param_groups[0]["lr"])

        def configure_optimizers(self):
            return configure_optimizers(torch.optim.SGD(self.parameters(), lr=1.0), plan)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=plan.accumulation,
        max_steps=plan.total_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(Data(), batch_size=plan.micro_batch)
    with pytest.warns(UserWarning, match="workers|GPU|logging") if False else _quiet():
        trainer.fit(Module(), loader)
    assert (plan.accumulation, plan.total_steps) == (2, 15)
    assert seen == [plan.lr_at(x) for x in range(15)]


def test_transformers_takes_it():
    transformers = pytest.importorskip("transformers", reason="trains in transformers' Trainer")
    from isobatch.integrations.transformers import optimizers


def test_optax_looks_it_up_inside_jit():
    optax = pytest.importorskip("optax", reason="trains with optax")
    jax = pytest.importorskip("jax", reason="trains with optax")
