"""A plain script of a head for `isobatch same`: the census' model and rows, under transformers' Trainer.

python bench/census/plain.py HEAD --output_dir DIR [any of TrainingArguments]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from transformers import HfArgumentParser, Trainer, TrainingArguments

from census import by_hand, rows
from census.ask import build_head
from census.heads import ROUTED, list_heads


def main() -> None:
    """Trains a head."""
    name = sys.argv.pop(1)
    head = next(head for head in list_heads() if head.name == name.removesuffix(ROUTED))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    if head.name in by_hand.BUILDS:
        model, batch = by_hand.build(head.load(), by_hand.BUILDS[head.name])
    else:
        model, batch, reasons = build_head(head.load(), routed=name.endswith(ROUTED))
        if model is None:
            sys.exit(reasons[-1])
    arguments.remove_unused_columns = False
    Trainer(model=model, args=arguments, train_dataset=batch * 3, data_collator=rows.collate).train()


if __name__ == "__main__":
    main()
