"""`isobatch laws`: what published laws say of a fresh language-model run, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from isobatch.cli.options.values import size
from isobatch.cli.terminal.messages import write_json
from isobatch.cli.terminal.tables import show_table
from isobatch.words import figure

if TYPE_CHECKING:
    from isobatch.forecast.laws import Law


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "laws",
        help="what published laws say of a fresh language-model run",
        description="Prints what each published law says of the batch and the learning rate of a fresh language-model run, and how "
        "far they agree.",
    )
    command.add_argument("--tokens", type=size, required=True, metavar="D", help="tokens of the run")
    command.add_argument("--parameters", type=size, metavar="N", help="of the model, without embeddings")
    command.add_argument(
        "--seq-len", type=int, metavar="N", help="print batches in sequences of N tokens, too"
    )
    command.add_argument(
        "--effective-batch", type=float, metavar="B", help="in sequences: for the law of Power"
    )
    command.add_argument(
        "--tuned-tokens",
        type=size,
        metavar="D0",
        help="the learning rate was tuned on D0 tokens: what multiplies it on D",
    )
    command.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints them."""
    import msgspec

    from isobatch.checked import real
    from isobatch.forecast.laws import laws

    if args.seq_len is not None:
        real(args.seq_len, "seq_len", "at least 1", lambda x: x >= 1)
    found = laws(
        tokens=args.tokens,
        parameters=args.parameters,
        effective_batch=args.effective_batch,
        tuned_tokens=args.tuned_tokens,
    )
    if args.json:
        write_json(
            msgspec.json.format(
                msgspec.json.encode({**msgspec.to_builtins(found), "batch_spread": found.batch_spread})
            ).decode()
        )
        return 0
    print(f"The batch that trains best, tokens; the laws lie within {found.batch_spread:.3g}× of each other:")
    _show(found.batch_laws, args.seq_len, batch=True)
    print("\nWhere a larger batch stops paying (critical batch), tokens:")
    _show(found.critical_laws, args.seq_len, batch=True)
    if found.lr_laws:
        print("\nThe peak learning rate:")
        _show(found.lr_laws)
    if found.duration_laws:
        print(
            "\nA learning rate tuned at the other length is multiplied by (contested, not even the sign is agreed):"
        )
        _show(found.duration_laws)
    said = [*found.batch_laws, *found.critical_laws, *found.lr_laws, *found.duration_laws]
    if any(law.caution for law in said):
        print("\n* constants from a secondary account; check them in the paper before you build on them")
    print("These were fitted to other people's data and models: start a search from the range.")
    return 0


def _show(found: tuple[Law, ...], seq_len: int | None = None, *, batch: bool = False) -> None:
    headers = ["law", "value", "formula", "source"]
    rows = []
    for law in found:
        value = f"{figure(law.value / 1e6)} M" if batch else figure(law.value)
        row = [law.name + ("*" if law.caution else ""), value, law.formula, law.source]
        if batch and seq_len is not None:
            row.insert(2, f"{round(law.value / seq_len):,}")
        rows.append(row)
    if batch and seq_len is not None:
        headers.insert(2, f"sequences of {seq_len:,}")
    show_table(headers, rows)
