"""What `--help` shows below the options: commands to copy, and the fields of a recipe where one is given."""

from __future__ import annotations

import textwrap

EXAMPLES = {
    "plan": (
        "isobatch plan job.toml --gpus 64",
        "isobatch plan job.toml --gpus 7 --batch-tolerance 0.02",
        "isobatch plan --from training_args.json --gpus 32 --to transformers",
        "isobatch plan --set effective_batch=256 --set lr=0.1 --gpus 8 -o plan.json",
        """echo '{"recipe": {"effective_batch": 256, "lr": 0.1}, "gpus": 8}' | isobatch plan -""",
    ),
    "fleet": (
        "isobatch fleet jobs.csv clusters.csv -o plans.parquet",
        "isobatch fleet jobs.csv --gpus 8,16,64 --columns job,cluster,status,lr",
        "cat jobs.jsonl | isobatch fleet - clusters.csv --json",
        "isobatch fleet jobs/ clusters.csv -o plans/ --policy grow",
    ),
    "sweep": (
        "isobatch sweep job.toml --gpus 1..512 --profile profile.json --price-per-gpu-hour 2.5",
        "isobatch sweep job.toml --gpus 8,16,32 --json",
    ),
    "explain": (
        "isobatch explain plans.parquet --job resnet50 --gpus 7",
        "isobatch explain plans/ --cluster h100-8",
        "isobatch explain plans.parquet --jobs jobs.csv --illegal",
    ),
    "estimate": ("isobatch estimate config.json --gpu H100-80 --seq-len 8192 -o profile.json",),
    "elastic": ("isobatch elastic --max-batch 1024 --micro-batches 8,12 --gpus 1..64",),
    "replan": ("isobatch replan plan.json --at-step 100000 --gpus 128 -o moved.json",),
    "schedule": (
        "isobatch schedule cosine --lr 3e-4 --steps 10000 --warmup 500 --plot",
        'isobatch schedule "wsd(decay=20%)" --steps 10000 --plot wsd.png',
    ),
    "rules": ("isobatch rules", "isobatch rules --json"),
    "laws": ("isobatch laws --tokens 1e11 --parameters 1e9",),
    "validate": (
        "isobatch validate plan.json --nproc-per-node 8 -o report.json",
        "isobatch validate plan.json --quick",
        "isobatch validate --compare before.json after.json",
    ),
    "probe": ("isobatch probe plan.json --budget 10m", "isobatch probe plan.json --same"),
    "calibrate": ("isobatch calibrate report.json -o profile.json",),
    "doctor": ("isobatch doctor training_args.json --gpus 32",),
    "export": ("isobatch export plan.json --to slurm",),
    "report": (
        "isobatch report plans.parquet -o report.html",
        "isobatch report plans.parquet --jobs jobs.csv --clusters clusters.csv -o report.html",
        "isobatch report plan.json -o plan.png",
        "isobatch sweep job.toml --profile profile.json --json | isobatch report - -o sweep.html",
    ),
}

_RECIPES = ("plan", "sweep")
"""Commands that take a recipe's fields by --set."""


def epilog(command: str) -> str | None:
    """The text below a command's options."""
    if command not in EXAMPLES:
        return None
    parts = ["examples:", *(f"  {line}" for line in EXAMPLES[command])]
    if command in _RECIPES:
        from isobatch._core import fields

        names = ", ".join(name for name, record, _ in fields() if record == "recipe")
        wrapped = textwrap.wrap(names, 76, break_on_hyphens=False, break_long_words=False)
        parts += ["", "fields of a recipe, for its file and --set (docs/planning.md says more):"]
        parts += [f"  {line}" for line in wrapped]
    return "\n".join(parts)
