"""Records the words of a launcher in the place of starting it: `record_launch.py FOLDER NAME WORDS`.

Python itself is started where it computes something for the script: by `-c`, from stdin, or as a package's
tool.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence

TOOLS = ("pip", "venv", "json", "site", "platform", "sysconfig", "timeit", "http", "ensurepip", "torch.utils")
"""Modules that train nothing."""


def starts_training(words: Sequence[str]) -> bool:
    """Tells whether Python's own words may start a training.

    >>> starts_training(["-u", "train.py"]), starts_training(["-c", "print(1)"]), starts_training(["-"])
    (True, False, False)
    """
    for place, word in enumerate(words):
        if word == "-m":
            module = "".join(words[place + 1 : place + 2])
            return not module.startswith(TOOLS)
        if not word.startswith("-"):
            return word.endswith(".py")
        if word.startswith("-c") or word in ("-", "-V", "--version"):
            return False
    return False


def main() -> None:
    """Writes a file of this call, or becomes Python."""
    folder, name, *words = sys.argv[1:]
    if name.startswith("python") and not starts_training(words):
        rest = [place for place in os.get_exec_path() if os.path.realpath(place) != os.path.realpath(folder)]
        real = shutil.which(name, path=os.pathsep.join(rest)) or sys.executable
        os.execv(real, [real, *words])
    record = {"words": [name, *words], "folder": os.getcwd(), "environment": dict(os.environ)}
    place = os.path.join(folder, f"launch-{time.monotonic_ns()}-{os.getpid()}.json")
    with open(f"{place}.part", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(record, file)
    os.rename(f"{place}.part", place)


if __name__ == "__main__":
    main()
