"""Asks the field's heads, trainers and losses: is the training the same at other splits of a batch?

    python bench/census.py run [--only PATTERN] [--limit MINUTES]   asks what has no answer yet
    python bench/census.py one HEAD                                 asks one head, and prints its answer
    python bench/census.py long [--limit MINUTES] [--count N]       asks N heads by `isobatch same`, too
    python bench/census.py page                         writes docs/census.md, bench/results/census_heads.csv

`bench/results/census.jsonl` has one line a head, with a digest of the builder and the release: a head whose
release or builder is another is asked again. Each head is asked in a process of its own. 60 heads at random
take 40 s on two quiet cores, so that all 1,134 should take about 12 minutes; the whole was not timed at once.

Beside isobatch it needs, in one environment: torch torchvision transformers accelerate scipy timm trl peft
datasets sentence-transformers scikit-learn open_clip_torch ftfy diffusers importlib-metadata
segmentation_models_pytorch; `long` needs transformers alone, installed in the environment itself.
"""

import argparse
import json
import sys

from census import long, page, running


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--only", default="", help="a regular expression that the head's name has")
    run.add_argument("--limit", type=float, default=1e9, help="minutes after which no head is begun")
    single = commands.add_parser("one")
    single.add_argument("head")
    longer = commands.add_parser("long")
    longer.add_argument("--limit", type=float, default=1e9, help="minutes after which no head is begun")
    longer.add_argument("--count", type=int, default=40, help="heads, in turn over all causes")
    commands.add_parser("page")
    options = parser.parse_args()
    if options.command == "run":
        running.run(options.only, options.limit)
    elif options.command == "long":
        long.run(options.limit, options.count)
    elif options.command == "one":
        json.dump(running.ask_one(options.head), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        running.add_same_code()
        page.write()


if __name__ == "__main__":
    main()
