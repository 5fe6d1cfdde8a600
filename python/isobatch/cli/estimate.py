"""`isobatch estimate`: a profile from a model's size and a data sheet, and what published laws say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.cli.options import count, size
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import say, write_json
from isobatch.errors import InputError, missing, raise_all
from isobatch.words import figure, shown

if TYPE_CHECKING:
    from isobatch.forecast.laws import Law

DESCRIPTION = (
    "Estimates a profile, for forecasts before anything is measured: every figure with its range and source."
)
EXAMPLES = (
    "isobatch estimate config.json --gpu H100-80 --seq-len 8192 -o profile.json",
    "isobatch estimate --laws --tokens 1e11 --parameters 1e9",
)
EVERYDAY = (
    "--parameters --seq-len --gpu --precision --optimizer --tensor-parallel --pipeline-parallel "
    "--utilization --inter-gb-s --output --json --laws --tokens"
)


def _shares(text: str) -> tuple[float, float]:
    """`0.3..0.5`, or one share."""
    low, dots, high = text.partition("..")
    try:
        return float(low), float(high if dots else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a range such as 0.3..0.5, got {shown(text)}") from None


OPTIONS = {
    "[model]": ("a transformers config.json, or the folder that has it", {"metavar": "CONFIG"}),
    "--parameters N": ("in place of a config, such as 7e9", {"type": size}),
    "--seq-len TOKENS": ("tokens in a sample", {"type": count}),
    "--gpu NAME": "the data sheet; --gpu list shows all",
    "--precision FORMAT": ("bf16 (default), fp16, tf32 or fp32", "bf16"),
    "--optimizer NAME": ("the recipe's optimizer (default: adamw)", "adamw"),
    "--tensor-parallel N": ("GPUs that share a layer (default: 1)", 1),
    "--pipeline-parallel N": ("stages of a pipeline (default: 1)", 1),
    "--micro-batch N": ("of the pipeline's bubble (default: 1)", 1),
    "--utilization A..B": (
        "the share of the peak that is reached (default: 0.3..0.5)",
        {"type": _shares, "default": (0.3, 0.5)},
    ),
    "--recompute WHAT": (
        "what is not kept for the backward pass: attention (its scores, as in flash attention; default), "
        "none or full",
        "attention",
    ),
    "--shards N": ("GPUs over which weights, gradients and optimizer are sharded (default: 1)", 1),
    "--inter-gb-s GB": "a node's network, 1e9 bytes a second, one direction",
    "-o/--output FILE": "write the profile here, as JSON",
    "--json": "print it as JSON",
    "published laws of a fresh language-model run": {
        "--laws": "print what each says of the batch and the learning rate, and how far they agree (with "
        "--tokens, --parameters)",
        "--tokens D": ("tokens of the run", {"type": size}),
        "--effective-batch B": ("in sequences: for the law of Power", {"type": float}),
        "--tuned-tokens D0": (
            "learning rate and batch were tuned on D0 tokens: what multiplies them on D",
            {"type": size},
        ),
    },
}


def run(args: argparse.Namespace) -> int:
    """Prints the figures with their ranges and writes the profile; stderr names those missing."""
    from isobatch.files.whole import check_json
    from isobatch.forecast.data_sheets import SHEETS
    from isobatch.forecast.estimate import EstimateOptions, estimated

    if args.laws:
        return _laws(args)
    if args.gpu == "list":
        _list(SHEETS.values())
        return 0
    check_json(args.output or "")
    no_file = args.model is not None and not Path(args.model).exists()
    faults = [InputError("there is no such file or folder", file=args.model)] if no_file else []
    faults += [missing("--gpu", "a data sheet (--gpu list shows all)")] if args.gpu is None else []
    faults += [missing("--seq-len", "tokens in a sample, such as 4096")] if args.seq_len is None else []
    raise_all(faults)
    keywords: Any = {name: getattr(args, name) for name in EstimateOptions.__annotations__}
    estimate = estimated(args.model, gpu=args.gpu, seq_len=args.seq_len, **keywords)
    if args.output:
        estimate.profile.save(args.output)
    if args.json:
        write_json(estimate.profile)
    else:
        rows = [(line.name, _ends(line.low, line.high), line.unit, line.source) for line in estimate.figures]
        show_table(("figure", "range", "unit", "source"), rows)
    say(*(f"not in it: {line}" for line in estimate.missing))
    _say_how(args, estimate)
    return 0


def _say_how(args: argparse.Namespace, estimate: Any) -> None:
    """Says whether a GPU holds the model's states, and the options to plan with the profile."""
    from isobatch.forecast.data_sheets import sheet_of
    from isobatch.forecast.estimate import STATES

    sheet = sheet_of(args.gpu)
    fits = sheet.memory_gb * 1e9 / 2**30
    for line in estimate.figures:
        if line.name == STATES and line.low > fits:
            say(
                f"{line.name}: {_ends(line.low, line.high)} GiB do not fit {sheet.name}, which has "
                f"{figure(fits)} GiB: share them by --shards, --tensor-parallel or --pipeline-parallel"
            )
    parallel = args.tensor_parallel * args.pipeline_parallel
    model = f"--model-parallel {parallel} " if parallel > 1 else ""
    say(f"plan with {model}--gpu {sheet.name} --memory-gib {figure(fits)}")


def _list(sheets: Any) -> None:
    formats, rows = ("bf16", "fp16", "tf32", "fp32"), []
    for sheet in sheets:
        speeds = [f"{sheet.tflops[name]:g}" if name in sheet.tflops else "" for name in formats]
        memory, link = (f"{sheet.memory_gb:g}", f"{sheet.memory_gb_s:g}"), f"{sheet.link} {sheet.link_gb_s:g}"
        rows.append((sheet.name, sheet.title, *memory, *speeds, link, sheet.source))
    show_table(("gpu", "", "GB", "GB/s", *formats, "link, GB/s", "source"), rows)


def _ends(low: float, high: float) -> str:
    return figure(low) if low == high else f"{figure(low)} to {figure(high)}"


# ---- published laws ----


def _laws(args: argparse.Namespace) -> int:
    """Prints the published laws of a fresh language-model run, side by side."""
    import msgspec

    from isobatch.forecast.laws import laws

    if args.tokens is None:
        raise missing("--tokens", "the tokens of the run, for --laws")
    known = ("tokens", "parameters", "effective_batch", "tuned_tokens")
    every_law = laws(**{name: getattr(args, name) for name in known})
    if args.json:
        write_json({**msgspec.structs.asdict(every_law), "batch_spread": every_law.batch_spread})
        return 0
    spread = f"{every_law.batch_spread:.3g}×"
    best = f"The batch that trains best, tokens; the laws lie within {spread} of each other:"
    contested = "contested, not even the sign is agreed"
    parts = {
        best: every_law.batch_laws,
        "Where a larger batch stops paying (critical batch), tokens:": every_law.critical_laws,
        "The peak learning rate:": every_law.lr_laws,
        f"A learning rate tuned at the other length is multiplied by ({contested}):": every_law.duration_laws,
        "A batch that was best at the other length is multiplied by:": every_law.batch_duration_laws,
    }
    for title, some in parts.items():
        if some:
            print(title)
            _show_laws(some, args.seq_len, batch="tokens" in title)
            print()
    shown_laws = [law for some in parts.values() for law in some]
    for caution in dict.fromkeys(law.caution for law in shown_laws if law.caution):
        names = dict.fromkeys(law.name for law in shown_laws if law.caution == caution)
        print(f"* {caution} ({', '.join(names)})")
    print("These were fitted to other people's data and models: start a search from the range.")
    return 0


def _show_laws(shown_laws: tuple[Law, ...], seq_len: int | None, *, batch: bool) -> None:
    seq_len = seq_len if batch else None
    sequences = [f"sequences of {seq_len:,}"] if seq_len is not None else []
    rows = []
    for law in shown_laws:
        value = f"{figure(law.value / 1e6)} M" if batch else figure(law.value)
        each = [] if seq_len is None else [f"{round(law.value / seq_len):,}"]
        rows.append((law.name + ("*" if law.caution else ""), value, *each, law.formula, law.source))
    show_table(("law", "value", *sequences, "formula", "source"), rows)
