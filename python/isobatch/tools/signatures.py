"""The classes and methods of Python scripts that configure a training, and their arguments in order."""

import ast

TRAINER = ("TrainingArguments", "Seq2SeqTrainingArguments")
TRL = (
    "SFTConfig", "DPOConfig", "GRPOConfig", "RLOOConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "BCOConfig", "RewardConfig", "PRMConfig",
    "GKDConfig", "OnlineDPOConfig", "XPOConfig", "NashMDConfig", "IterativeSFTConfig",
)  # fmt: skip
OPTIMIZERS = ("AdamW", "Adam", "SGD", "RMSprop", "Adafactor", "Lion", "LAMB", "Muon")
_SCHEDULERS = ("lr_scheduler", "get_scheduler", "_schedule_with_warmup")
OF_TORCH = (
    "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "CyclicLR", "StepLR", "MultiStepLR", "ExponentialLR", "LinearLR",
    "ConstantLR", "PolynomialLR", "LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau",
)  # fmt: skip
"""What `from torch.optim.lr_scheduler import *` gives."""
TABLES = ("ParallelismConfig", "AcceleratorConfig", "DataLoaderConfiguration", "GradientAccumulationPlugin")
"""Classes of Accelerate that are arguments of others: each is a table of its own arguments."""
FIRST = {
    name: arguments.split()
    for names, arguments in {
        " ".join((*TRAINER, *TRL)): "output_dir",
        "Accelerator": "device_placement split_batches mixed_precision gradient_accumulation_steps",
        "DataLoader": "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last",
        "Adam AdamW": "params lr betas eps weight_decay amsgrad",
        "SGD": "params lr momentum dampening weight_decay nesterov",
        "RMSprop": "params lr alpha eps weight_decay momentum centered",
        "Lion": "params lr betas weight_decay",
        "Adafactor LAMB Muon": "params lr",
        "clip_grad_norm_": "parameters max_norm norm_type error_if_nonfinite foreach",
        "OneCycleLR": "optimizer max_lr total_steps epochs steps_per_epoch pct_start anneal_strategy cycle_momentum base_momentum "
        "max_momentum div_factor final_div_factor three_phase last_epoch",
        "CosineAnnealingLR": "optimizer T_max eta_min last_epoch",
        "CosineAnnealingWarmRestarts": "optimizer T_0 T_mult eta_min last_epoch",
        "StepLR": "optimizer step_size gamma last_epoch",
        "MultiStepLR": "optimizer milestones gamma last_epoch",
        "ExponentialLR": "optimizer gamma last_epoch",
        "LinearLR": "optimizer start_factor end_factor total_iters last_epoch",
        "ConstantLR": "optimizer factor total_iters last_epoch",
        "PolynomialLR": "optimizer total_iters power last_epoch",
        "get_scheduler": "name optimizer num_warmup_steps num_training_steps",
        "get_constant_schedule": "optimizer last_epoch",
        "get_constant_schedule_with_warmup": "optimizer num_warmup_steps last_epoch",
        "get_linear_schedule_with_warmup": "optimizer num_warmup_steps num_training_steps last_epoch",
        "get_cosine_schedule_with_warmup": "optimizer num_warmup_steps num_training_steps num_cycles last_epoch",
    }.items()
    for name in names.split()
}
"""The arguments of each in their order, as torch 2 and transformers document them; one behind them is asked for."""
SETTERS = {
    "set_training": (
        ("learning_rate", "learning_rate", 5e-5), ("batch_size", "per_device_train_batch_size", 8), ("weight_decay", "weight_decay", 0),
        ("num_epochs", "num_train_epochs", 3), ("max_steps", "max_steps", -1),
        ("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    ),
    "set_optimizer": (
        ("name", "optim", "adamw_torch"), ("learning_rate", "learning_rate", 5e-5), ("weight_decay", "weight_decay", 0),
        ("beta1", "adam_beta1", 0.9), ("beta2", "adam_beta2", 0.999), ("epsilon", "adam_epsilon", 1e-8), ("args", "optim_args", None),
    ),
    "set_lr_scheduler": (
        ("name", "lr_scheduler_type", "linear"), ("num_epochs", "num_train_epochs", 3), ("max_steps", "max_steps", -1),
        ("warmup_steps", "warmup_steps", 0), ("warmup_ratio", "warmup_ratio", 0),
    ),
    "set_dataloader": (
        ("train_batch_size", "per_device_train_batch_size", 8), ("eval_batch_size", "per_device_eval_batch_size", 8),
        ("drop_last", "dataloader_drop_last", False), ("auto_find_batch_size", "auto_find_batch_size", False),
    ),
    "set_save": (("strategy", "save_strategy", "steps"), ("steps", "save_steps", 500)),
    "set_evaluate": (("strategy", "eval_strategy", "no"), ("steps", "eval_steps", 500)),
    "set_logging": (("strategy", "logging_strategy", "steps"), ("steps", "logging_steps", 500)),
}  # fmt: skip
"""Methods of TrainingArguments, as transformers 4.30 to 5.23 have them: argument, setting, and the default that overwrites it."""
OPEN = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "max_steps", "num_train_epochs",
    "warmup_steps", "weight_decay", "optim", "max_grad_norm",
)  # fmt: skip
"""What an unknown table behind `**` may hold, and a plan depends on."""


def is_looked_for(full: str) -> bool:
    """Whether a call by this name, with its module, is one of those that configure a training."""
    package, _, rest = full.partition(".")
    last = full.rpartition(".")[2]
    if last == "Trainer":
        return package in ("lightning", "pytorch_lightning")
    if last in OPTIMIZERS:
        return not rest or package in ("torch", "lion_pytorch", "transformers", "bitsandbytes", "optim")
    if last in (*TRAINER, *TRL, "Accelerator", "DataLoader", "clip_grad_norm_"):
        return True
    # No lr_scheduler.step().
    return (last[:1].isupper() or last.startswith("get_")) and any(it in full for it in _SCHEDULERS)


def setter(node: ast.Call) -> str:
    """The method of TrainingArguments that a call names; else empty."""
    return node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr in SETTERS else ""
