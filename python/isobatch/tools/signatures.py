"""Classes and functions to configure a training in Python scripts, and the order of their arguments."""

import re

TRAINER = re.compile(r"\w*TrainingArguments")
"""The Trainer's arguments and its subclasses', by their usual names."""
TRL = re.compile(
    "(SFT|DPO|GRPO|RLOO|KTO|ORPO|CPO|BCO|Reward|PRM|GKD|OnlineDPO|XPO|NashMD|IterativeSFT)Config"
)
OPTIMIZERS = ("AdamW", "Adam", "SGD", "RMSprop", "Adafactor", "Lion", "LAMB", "Muon")
TABLES = ("ParallelismConfig", "AcceleratorConfig", "DataLoaderConfiguration", "GradientAccumulationPlugin")
"""Classes of Accelerate for arguments of others: each is a table of its own arguments."""
OTHERS = ("Accelerator", "DataLoader", "clip_grad_norm_")
_SCHEDULERS = re.compile(
    r".*(lr_scheduler|get_scheduler|_schedule_with_warmup).*|([A-Z]\w+LR|CosineAnnealingWarmRestarts"
    "|ChainedScheduler|ReduceLROnPlateau)"
)
"""Full names, and torch's own after `from torch.optim.lr_scheduler import *`."""
_ARGUMENTS = """
    Accelerator: device_placement split_batches mixed_precision gradient_accumulation_steps
    DataLoader: dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last
    Adam AdamW: params lr betas eps weight_decay amsgrad
    SGD: params lr momentum dampening weight_decay nesterov
    RMSprop: params lr alpha eps weight_decay momentum centered
    Lion: params lr betas weight_decay
    Adafactor LAMB Muon: params lr
    clip_grad_norm_: parameters max_norm norm_type
    OneCycleLR: optimizer max_lr total_steps epochs steps_per_epoch pct_start anneal_strategy
    CosineAnnealingLR: optimizer T_max eta_min
    CosineAnnealingWarmRestarts: optimizer T_0 T_mult eta_min
    StepLR: optimizer step_size gamma
    MultiStepLR: optimizer milestones gamma
    ExponentialLR: optimizer gamma
    LinearLR: optimizer start_factor end_factor total_iters
    ConstantLR: optimizer factor total_iters
    PolynomialLR: optimizer total_iters power
    get_scheduler: name optimizer num_warmup_steps num_training_steps
    get_constant_schedule: optimizer
    get_constant_schedule_with_warmup: optimizer num_warmup_steps
    get_linear_schedule_with_warmup get_cosine_schedule_with_warmup:
        optimizer num_warmup_steps num_training_steps
"""
FIRST = {
    name: arguments.split()
    for names, arguments in re.findall(r"(\w[\w ]*):\s+(.*)", _ARGUMENTS)
    for name in names.split()
}
"""The first arguments of each, in order, as torch 2 and transformers have them; others are asked for."""
OPEN = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type",
    "max_steps", "num_train_epochs", "warmup_steps", "weight_decay", "optim", "max_grad_norm",
)  # fmt: skip
"""Names that matter to a plan, and that an unknown table after `**` may hold."""


def is_trainers(name: str) -> bool:
    """Tells whether a class has the arguments of the Trainer, or of one of TRL's."""
    return bool(TRAINER.fullmatch(name) or TRL.fullmatch(name))


def first_arguments(name: str) -> list[str]:
    """Lists the arguments of a class in their order."""
    return ["output_dir"] if is_trainers(name) else FIRST.get(name, [])


def configures(full: str) -> bool:
    """Tells whether a call by this full name configures a training."""
    package, _, rest = full.partition(".")
    last = full.rpartition(".")[2]
    if last == "Trainer":
        return package in ("lightning", "pytorch_lightning")
    if last in OPTIMIZERS:
        return not rest or package in ("torch", "lion_pytorch", "transformers", "bitsandbytes", "optim")
    if (is_trainers(last) and package != "setfit") or last in OTHERS:
        return True
    # Neither lr_scheduler.step() nor lr_scheduler.get_last_lr() makes a scheduler.
    is_maker = last[:1].isupper() or (last.startswith("get_") and "schedule" in last)
    return is_maker and _SCHEDULERS.fullmatch(full) is not None
