"""Restarts, right and wrong: what does `same --resume` name?

python bench/resume.py PYTHON RESULTS.jsonl [NAME...]
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import isobatch as ib

SCRIPT = Path(__file__).with_name("resume_scripts.py").resolve()
EXPECTED = {
    "Trainer": "",
    "Trainer, ignore_data_skip": "resume_epoch_anew",
    "Trainer, save_only_model": "new_state",
    "Lightning": "",
    "Lightning without ckpt_path": "new_state",
    "Accelerate": "",
    "Accelerate without skip_first_batches": "resume_epoch_anew",
    "Accelerate without a seedable sampler": "resume_skipped",  # its rows are the next epoch's
    "StatefulDataLoader and DCP": "",
    "ElasticRun": "",
    "loop": "",
    "loop without its optimizer": "new_state",
    "loop, the epoch anew": "resume_epoch_anew",
    "loop, the epoch skipped": "resume_skipped",
    "loop with another seed": "resume_other_order",
    "loop, weights in bfloat16": "resume_weights",
    "loop without its schedule": "another_lr, another_setting",  # its momentum follows it
    "loop without its random states": "resume_random",
    "loop without set_epoch": "resume_other_order",
    "loop without averaged weights": "resume_beside",
    "loop without its loss scale": "resume_beside",
    "loop without its buffers": "resume_beside",
    "loop with its buffers": "",
}


def main(python: str, output: str, *names: str) -> int:
    """Asks each script, and writes a line for each."""
    with Path(output).resolve().open("a", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names or EXPECTED:
            at_step = {"at_step": 6} if name.startswith("Lightning") else {"at_step": 3}
            try:
                answer = ib.same(
                    [python, str(SCRIPT), name], resume="--resume {checkpoint}", limit=900, **at_step
                )
                causes = [cause.id for cause in answer.causes]
                outcome = "" if answer.same else "not measured" if answer.same is None else ", ".join(causes)
                text = next(iter([cause.text for cause in answer.causes] or answer.unmeasured), "")
                seconds = answer.seconds
            except ib.InputError as error:
                outcome, text, seconds = "not measured", str(error)[-300:], 0.0
            row = {
                "script": name,
                "expected": EXPECTED[name],
                "outcome": outcome,
                "text": text,
                "seconds": seconds,
            }
            print(json.dumps(row, ensure_ascii=False), flush=True)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
