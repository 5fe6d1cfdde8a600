"""Mutations of small Python training scripts: each setting that isobatch reads is the one that Python gives
the class.

    python bench/scripts_fuzz.py 1000000 [SEED]

The scripts are executed in this process, without imports and with few builtins: run it where nothing is lost.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.page import Unknown
from isobatch.tools.scripts import script_settings

SEEDS = [
    "B = 4\nargs = TrainingArguments('out', per_device_train_batch_size=B, learning_rate=1e-4)\nB = 8\n",
    "B = 4\nB += 4\nLR = 3e-4 * 2\nargs = TrainingArguments('out', per_device_train_batch_size=B * 2, "
    "learning_rate=LR)\n",
    "common = {'learning_rate': 1e-4, 'max_steps': 100}\nargs = TrainingArguments('out', bf16=True, "
    "**common)\n",
    "common = dict(learning_rate=1e-4)\ncommon['max_steps'] = 50\nargs = TrainingArguments('out', **common, "
    "seed=1)\n",
    "def build(lr, bs=4):\n    return TrainingArguments('out', learning_rate=lr, "
    "per_device_train_batch_size=bs)\nargs = build(1e-4)\n",
    "SIZE = '7B'\nif SIZE == '7B':\n    bs = 4\nelse:\n    bs = 16\nargs = TrainingArguments('out', "
    "per_device_train_batch_size=bs)\n",
    "args = TrainingArguments('out', learning_rate=1e-4)\nargs.learning_rate = 2e-4\nargs.max_steps = 10 ** "
    "3\n",
    "N, G = 2, 8\nWORLD = N * G\nargs = TrainingArguments('out', gradient_accumulation_steps=256 // (WORLD "
    "* 4))\n",
    "class C:\n    lr = 1e-4\n    bs = 8\nargs = TrainingArguments('out', learning_rate=C.lr, "
    "per_device_train_batch_size=C.bs)\n",
    "def main():\n    steps = 100\n    args = TrainingArguments('out', max_steps=steps, warmup_steps=steps "
    "// 10)\n    return args\nmain()\n",
    "X = [1e-4, 2e-4]\nargs = TrainingArguments('out', learning_rate=X[1], adam_betas=(0.9, 0.95))\n",
    "LR = 1e-4 if True else 2e-4\nfor i in range(2):\n    LR = LR * 2\nargs = TrainingArguments('out', "
    "learning_rate=LR)\n",
    "try:\n    bs = 4\nexcept Exception:\n    bs = 8\nwith open_() as f:\n    bs2 = 2\nargs = "
    "TrainingArguments('out', per_device_train_batch_size=bs)\n",
]  # fmt: skip
TOKENS = [
    "B", "LR", "bs", "lr", "args", "4", "8", "1e-4", "+", "-", "*", "//", "/", "%", "**", "(", ")", "[0]",
    "[1]", ",", "=", "+=", "*=", ":", "\n", "\n    ",
    "if True:\n    ", "else:\n    ", "for i in [1, 2]:\n    ", "while B < 9:\n    ", "def f():\n    ",
    "return ", "not ", " and ", " or ", " if B else ", "None",
    "True", "False", "'x'", "{'learning_rate': 2}", "**{'max_steps': 3}", "del B\n", "global B\n", "B = 2\n",
    "bs = 3\n", "LR = 5\n", "    B = 6\n", "    bs = 7\n",
    "args.max_steps = 7\n", "lambda: 3", "max(1, 2)", "int(3.5)", "len('ab')", "B := 3",
        "common.update(max_steps=9)\n", "f()\n", "==", "<", "max_steps=5", "\\\n",
    "C.lr = 3\n", "x, B = 1, 2\n", "break\n", "continue\n", "raise E\n", "pass\n", "assert B\n", "#", "bs=5",
        "setattr(args, 'max_steps', 4)\n", "args = None\n",
]  # fmt: skip
HEADS = [
    "if True:",
    "if B:",
    "for i in [1, 2]:",
    "for B in range(3):",
    "while False:",
    "try:",
    "if B > 4:",
    "def f():",
    "if X:",
    "with open_():",
]
STATEMENTS = [token for token in TOKENS if token.endswith("\n") and len(token) > 4]
MISSING = object()


class Made:
    """Stands for TrainingArguments, and remembers its arguments."""

    every: list[Made] = []

    def __init__(self, *output_dir: Any, **settings: Any) -> None:
        vars(self).update(zip(("output_dir",), output_dir, strict=True), **settings)
        self.every.append(self)


def by_python(text: str) -> list[dict[str, Any]]:
    """Returns the settings of each configuration of a script; none where it ends in an error."""
    Made.every = []
    few: dict[str, Any] = {
        kind.__name__: kind for kind in (range, len, dict, int, float, min, max, setattr, Exception)
    }
    names: dict[str, Any] = {
        "__builtins__": {**few, "__build_class__": __build_class__},
        "__name__": "__main__",
    }
    names |= {"TrainingArguments": Made, "open_": lambda: types.SimpleNamespace()}
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        exec(compile(text, "t.py", "exec"), names)
    except BaseException:
        Made.every = []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return [vars(configuration) for configuration in Made.every]


def agrees(read: Any, ran: Any) -> bool:
    """Tells whether known settings equal those of the run."""
    if isinstance(read, Unknown):
        return True
    if isinstance(read, Mapping):
        if isinstance(ran, type):  # a class that is used as a table
            ran = {name: value for name, value in vars(ran).items() if not name.startswith("__")}
        if not isinstance(ran, Mapping):
            return False
        whys = [value.why for value in read.values() if isinstance(value, Unknown)]
        is_open = any("may be in **" in why or "may be set by" in why for why in whys)
        names = {*read} & {*ran} if is_open else {*read, *ran}
        return all(agrees(read.get(key, MISSING), ran.get(key, MISSING)) for key in names)
    if isinstance(read, list):  # as JSON has a tuple
        return isinstance(ran, list | tuple) and len(read) == len(ran) and all(map(agrees, read, ran))
    return type(read) is type(ran) and read == ran


def mutated(rng: random.Random) -> str:
    """A seed with one to four changes, of a line or of characters."""
    text = rng.choice(SEEDS)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if rng.random() < 0.7:
            text = _with_line(text, rng)
            continue
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 0, 0, 1, 2, 5)))
        text = text[:at] + rng.choice((rng.choice(TOKENS), rng.choice(TOKENS), "")) + text[end:]
    return text


def _with_line(text: str, rng: random.Random) -> str:
    """With a line more, under a condition or not, one less, or one of another script."""
    lines = text.splitlines()
    at = rng.randrange(len(lines) + 1)
    indent = " " * (len(lines[at]) - len(lines[at].lstrip())) if at < len(lines) else ""
    match rng.randrange(4):
        case 0 if at < len(lines):
            del lines[at]
        case 1 if at < len(lines):
            lines[at] = f"{indent}{rng.choice(HEADS)}\n    {lines[at]}"
        case 2:
            lines.insert(at, indent + rng.choice(rng.choice(SEEDS).splitlines()).strip())
        case _:
            lines.insert(at, indent + rng.choice(STATEMENTS).strip())
    return "\n".join(lines) + "\n"


def verdict(text: str) -> tuple[str, str]:
    """Returns equal, refused, of no run, or wrong; and the difference."""
    ran = by_python(text)
    try:
        read, _ = script_settings(text, "t.py", "", [])
    except (InputError, SyntaxError, ValueError) as error:
        return "refused", str(error)
    except Exception as error:
        return "wrong", f"a fault of isobatch: {error!r}"
    if not ran:
        return "does not run", ""
    if not read or any(agrees(read, run) for run in ran):
        return (
            "open" if not read or any(isinstance(value, Unknown) for value in read.values()) else "equal"
        ), ""
    return "wrong", f"read {read}\n  ran {ran}"


def _end_loop(_: int, frame: types.FrameType | None) -> None:
    """Ends an endless script; does nothing outside of it."""
    while frame is not None:
        if frame.f_code.co_filename == "t.py":
            raise TimeoutError
        frame = frame.f_back


def main() -> None:
    """The command line."""
    number, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    rng, counts, began = random.Random(seed), Counter[str](), time.monotonic()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _end_loop)
    for number_done in range(number):
        text = mutated(rng)
        result, why = verdict(text)
        counts[result] += 1
        if result == "wrong":
            print(f"-----\n{text}\n  {why}", flush=True)
        if number_done % 50_000 == 0:
            print(dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    print(dict(counts), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
