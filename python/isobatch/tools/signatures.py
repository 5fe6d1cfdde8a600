"""The classes and methods of Python scripts that configure a training, and their arguments in order."""

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
SETTERS = (
    "set_training",
    "set_optimizer",
    "set_lr_scheduler",
    "set_dataloader",
    "set_save",
    "set_evaluate",
    "set_logging",
)
"""Methods of TrainingArguments: what each overwrites is asked for."""
MEMBERS = ("SchedulerType", "OptimizerNames", "IntervalStrategy")
"""Classes of transformers with a name for each value."""
CHANGES = (
    "update", "pop", "popitem", "clear", "setdefault", "append", "extend", "insert", "remove", "reverse", "sort", "__ior__", "__iadd__",
)  # fmt: skip
"""Methods that change a table or a list."""
NAMED = {
    "setattr": -2, "__setattr__": -2, "__setitem__": -2, "setitem": -2,
    "delattr": -1, "__delattr__": -1, "__delitem__": -1, "delitem": -1,
}  # fmt: skip
"""Functions that set or delete what one of their arguments names, and its place."""
OPEN = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "max_steps", "num_train_epochs",
    "warmup_steps", "weight_decay", "optim", "max_grad_norm",
)  # fmt: skip
"""What an unknown table behind `**` may hold, and a plan depends on."""


def is_looked_for(full: str) -> bool:
    """Whether a call by this name, with the module that it is imported from, is one of those that configure a training."""
    package, _, rest = full.partition(".")
    last = full.rpartition(".")[2]
    if last == "Trainer":
        return package in ("lightning", "pytorch_lightning")
    if last in OPTIMIZERS:
        return not rest or package in ("torch", "lion_pytorch", "transformers", "bitsandbytes", "optim")
    if last in (*TRAINER, *TRL, "Accelerator", "DataLoader", "clip_grad_norm_") or full in OF_TORCH:
        return True
    # No lr_scheduler.step().
    return (last[:1].isupper() or last.startswith("get_")) and any(it in full for it in _SCHEDULERS)
