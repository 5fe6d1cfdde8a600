"""`isobatch same`: whether a training is the same at another split of its batch."""

import argparse

from isobatch.cli.terminal import heard_sigterm, say, show_lines, write_json
from isobatch.equivalence.bits import SameBits, same_bits
from isobatch.equivalence.result import Same
from isobatch.equivalence.session import LIMIT, STEPS, same
from isobatch.errors import InputError, missing
from isobatch.files.whole import check_place

DESCRIPTION = (
    "Starts a training command at several splits of its batch over ranks, accumulation and micro-batch, "
    "unchanged, for a few optimizer steps each, and says whether the splits train the same, and if not, why. "
    "Exit codes: 0 the same, 1 not the same, 2 not measured."
)
EXAMPLES = (
    "isobatch same -- torchrun --nproc-per-node 4 train.py --per_device_train_batch_size 8 "
    "--gradient_accumulation_steps 2",
    "isobatch same --split 2x2x2 -- torchrun --nproc-per-node {gpus} train.py --batch {micro_batch} --accum "
    "{accumulation}",
    "isobatch same --across tp=2,pp=2 -- torchrun --nproc-per-node {world} train.py --tp {tp} --pp {pp}",
)

OPTIONS = {
    "command": ("the training command, after --", {"nargs": "*"}),
    "--split RxAxM": (
        "ranks x accumulation x micro-batch; several of one batch are compared (default: the command's own, "
        "made smaller)",
        {"action": "append"},
    ),
    "--across DIMENSIONS": "compare with the run without tensor, pipeline, context or expert parallelism, "
    "such as tp=2,pp=2, each alone and all together; the command has {world} and {tp}, {pp}, {cp}, {ep}, "
    "{dp}",
    "--tool NAME": "whose options or file the command has (default: recognized by their names)",
    "--steps N": (f"optimizer steps to compare (default {STEPS})", {"type": int}),
    "--limit SECONDS": (f"time of one run (default {LIMIT:.0f})", LIMIT),
    "--device NAME": ("where to run; ranks may share a GPU", {"choices": ("cpu", "cuda"), "default": "cpu"}),
    "--against PACKAGE==VERSION": (
        "compare with another release, in an environment over the present one, up to the first difference",
        {"action": "append"},
    ),
    "--against-python FILE": "compare with another environment, by its interpreter",
    "--against-command COMMAND": "compare with another command, such as the script before it was ported to "
    "ranks or to a trainer, in one pass and at both splits",
    "--bisect A..B": "find the first of these releases that differs from A; of --against PACKAGE, or "
    "PACKAGE==A..B",
    "--resume WORDS": "compare with a run killed after a checkpoint and started again with these words, in "
    "which {checkpoint} is its path",
    "--at-step K": (
        "the checkpoint after step K (default: in mid-epoch, and at an epoch's end)",
        {"type": int},
    ),
    "--resume-ranks N": ("start again on other ranks", {"type": int}),
    "--as-is": "keep autocast: float32 is compared otherwise",
    "--bits": "compare the bits of the weights over ranks, with the same micro-batch; nothing of the script "
    "is changed",
    "-o/--output FILE": "also write the answer: as JSON (.json), a page (.html), or the weights as a "
    "picture (.svg, .png)",
    "--json": "print the answer as JSON",
}

FURTHER = ("against", "against_python", "against_command", "bisect", "resume", "at_step", "resume_ranks")
"""Questions beside another split."""


def run(args: argparse.Namespace) -> int:
    """Prints the answer; returns 0 if it is the same training, 1 if not, 2 if not measured."""
    with heard_sigterm():
        return _ask(args)


def _ask(args: argparse.Namespace) -> int:
    if not args.command:
        raise missing("COMMAND", "pass the training command after --")
    question = {name: getattr(args, name) for name in ("tool", "steps", "limit", "device")}
    further = {name: getattr(args, name) for name in FURTHER}
    if args.bits:
        for name in ("across", *FURTHER):
            if getattr(args, name) not in (None, False):
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"--bits and {flag} are two questions: ask one of them", field=flag)
        if args.output is not None or args.as_is:
            raise InputError("--bits takes neither --output nor --as-is; --json prints its answer as JSON")
        return _show(same_bits(args.command, args.split, say=say, **question), args)
    if args.output is not None:
        check_place(args.output)
        if not args.output.endswith(".json"):
            from isobatch.report.pages import require_extra, write

            require_extra(args.output)
    answer = same(
        args.command, args.split, across=args.across, as_is=args.as_is, say=say, **question, **further
    )
    if args.output is not None:
        if args.output.endswith(".json"):
            answer.save(args.output)
        else:
            write(answer, args.output)
    return _show(answer, args)


def _show(answer: Same | SameBits, args: argparse.Namespace) -> int:
    if args.json:
        write_json(answer)
    else:
        show_lines(answer.text)
    return {True: 0, False: 1, None: 2}[answer.same]
