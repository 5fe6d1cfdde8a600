"""The end of a streamed epoch: a Trainer's incomplete window goes into the next epoch's first step."""

import torch
import transformers


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ({"x": torch.tensor(float(row))} for row in (1, 2, 3, 4, 5, 6))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return {"loss": (self.weight * x).mean()}  # the gradient is the mean of the rows


class Show(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        print(f"step {state.global_step + 1}: {model.weight.grad.item():.2f}")


for micro_batch, accumulation in ((4, 1), (2, 2)):
    print(f"micro-batch {micro_batch}, accumulation {accumulation}")
    args = transformers.TrainingArguments(
        "/tmp/found",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        max_steps=3,
        max_grad_norm=0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    transformers.Trainer(Net(), args, train_dataset=Rows(), callbacks=[Show()]).train()
