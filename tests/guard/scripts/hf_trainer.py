"""transformers' Trainer as the language-modeling examples use it: blocks of text whose labels are the input,
the Trainer's own AdamW and schedule, evaluation, checkpoints and workers.
"""

import torch
import torch.distributed as dist
import transformers as hf

VOCABULARY, BLOCK = 32, 8


class Blocks(torch.utils.data.Dataset):
    """Grouped texts; `padded`: of different lengths, filled up with a label that does not count; `classes`:
    each has one of two.
    """

    def __init__(self, size, padded, classes):
        self.tokens = torch.randint(VOCABULARY, (size, BLOCK), generator=torch.Generator().manual_seed(1))
        self.padded, self.classes = padded, classes

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        if self.classes:
            return {"input_ids": tokens, "labels": tokens[0] % 2}
        labels, mask = tokens.clone(), torch.ones_like(tokens)
        if self.padded:
            labels[BLOCK - index % 4 :] = -100
            mask[BLOCK - index % 4 :] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def tiny(name):
    """A model of a few thousand parameters."""
    if name == "llama":
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
        config = hf.LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, **sizes)
        return hf.LlamaForCausalLM(config)
    if name == "bert":
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        bert = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=VOCABULARY, hidden_size=16, **sizes))
        bert.accepts_loss_kwargs = False  # its loss ignores num_items_in_batch
        return bert
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_positions=BLOCK, n_embd=16, n_layer=1, n_head=2)
    return hf.GPT2LMHeadModel(config)


class Focal(hf.Trainer):
    """A loss of one's own in the model's place."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        losses = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        loss = ((1 - torch.exp(-losses)) ** 2 * losses).mean()
        return (loss, outputs) if return_outputs else loss


class Summed(hf.Trainer):
    """A loss of the script's own, over the labels counted by the Trainer."""

    processes = 1

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits, labels = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        loss = loss / (1 if num_items_in_batch is None else num_items_in_batch) * self.processes
        return (loss, outputs) if return_outputs else loss


class SummedOverAll(Summed):
    """The same, multiplied by the processes, since the Trainer counts the labels of all of them."""

    processes = property(lambda self: self.accelerator.num_processes)


class ClipByValue(hf.TrainerCallback):
    """Clips by value: the Trainer has no argument for it."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)


class Stop(hf.TrainerCallback):
    """Ends the training after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def main(
    plan,
    guard,
    folder,
    *,
    model="llama",
    clip="norm",
    padded=False,
    kind="Trainer",
    per_device=1,
    stop=None,
    path=None,
    **more,
):
    """Trains by the Trainer; to the step `stop`, with checkpoints in `path`, or on from there; `more` are
    further arguments of it.
    """
    hf.set_seed(42)
    size = plan.recipe.dataset_size
    arguments = hf.TrainingArguments(
        path or str(folder),
        per_device_train_batch_size=plan.micro_batch * per_device,
        gradient_accumulation_steps=plan.accumulation,
        learning_rate=plan.lr,
        weight_decay=plan.weight_decay,
        warmup_steps=plan.warmup_steps,
        lr_scheduler_type="cosine",
        num_train_epochs=plan.total_steps / plan.steps_per_epoch,
        max_grad_norm=(plan.recipe.clip_norm or 1.0) if clip == "norm" else 0.0,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=stop or 3,
        save_total_limit=1,
        logging_steps=1,
        dataloader_num_workers=2,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        **more,
    )
    kinds = {"Trainer": hf.Trainer, "Focal": Focal, "Summed": Summed, "SummedOverAll": SummedOverAll}
    trainer = kinds[kind](
        model=tiny(model),
        args=arguments,
        train_dataset=Blocks(size, padded, model == "bert"),
        eval_dataset=Blocks(20, padded, model == "bert"),
        callbacks=[guard(plan).transformers(), *([ClipByValue()] if clip == "value" else []), Stop(stop)],
    )
    trainer.train(resume_from_checkpoint=True if path and not stop else None)
    dist.barrier()
