"""A plain script of a head for `isobatch same`: the census' model and rows, under transformers' Trainer.

python bench/census/plain.py MODULE HEAD [--equal] --output_dir DIR [any of TrainingArguments]
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from transformers import HfArgumentParser, Trainer, TrainingArguments

from census import by_hand, rows
from census.ask import build_head
from census.heads import ROUTED


def main() -> None:
    """Trains a head on its eight rows, or on eight copies of one."""
    module, name = sys.argv.pop(1), sys.argv.pop(1)
    if is_equal := sys.argv[1] == "--equal":
        del sys.argv[1]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model_class = getattr(importlib.import_module(module), name.removesuffix(ROUTED))
    if name in by_hand.BUILDS:
        model, batch = by_hand.build(model_class, by_hand.BUILDS[name])
    else:
        model, batch, reasons = build_head(model_class, routed=name.endswith(ROUTED))
        if model is None:
            sys.exit(reasons[-1])
    arguments.remove_unused_columns = False
    batch = [batch[len(batch) // 2]] * len(batch) if is_equal else batch
    Trainer(model=model, args=arguments, train_dataset=batch, data_collator=rows.collate).train()


if __name__ == "__main__":
    main()
