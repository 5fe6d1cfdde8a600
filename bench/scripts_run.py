"""Training scripts as people write them, read and run: what the reader says is what runs, or it asks.

    python bench/scripts_run.py [PART]

Each script is read as `isobatch plan --from` reads it, on one GPU, and started as `isobatch doctor -- python
SCRIPT` starts it, two at a time. Exit code 1: a script was read as another training than it runs. PART: names
of scripts to run alone. The run takes about ten minutes on two quiet cores.
"""

import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import isobatch as ib
from isobatch.equivalence.commands.recipe import recipe_of
from isobatch.equivalence.commands.running import observe
from isobatch.errors import InputError
from tools.loops import scripts

COMPARED = (
    "effective_batch",
    "micro_batch",
    "accumulation",
    "lr",
    "weight_decay",
    "optimizer",
    "betas",
    "momentum",
)
GIVEN = {"gpus": 1, "duration": "100st", "schedule": "constant", "dataset_size": 480}
"""Fields that the scripts do not say, and no comparison needs."""


def verdict(name: str, file: Path) -> tuple[str, str]:
    """Returns equal, asked, wrong or not run, and why."""
    try:
        read = ib.Recipe.read(file, **GIVEN)
    except InputError as error:
        return "asked", str(error).splitlines()[0]
    try:
        running = observe([sys.executable, str(file)], limit=200.0)
        known = {"schedule": "constant", "duration": "100st"}
        if running.optimizer == "Mine":
            known["optimizer"] = str(read.optimizer)
        ran = recipe_of(running, known)
    except InputError as error:
        return ("wrong" if "groups" in str(error) else "not run"), str(error)[:400]
    rows = [(field, getattr(read, field), getattr(ran, field)) for field in COMPARED]
    wrong = [
        f"{field}: read {ours}, runs {theirs}" for field, ours, theirs in rows if not alike(ours, theirs)
    ]
    return ("wrong" if wrong else "equal"), "; ".join(wrong)


def alike(read: object, ran: object) -> bool:
    """Compares a read value with the run's; what the reader leaves open is no contradiction."""
    return read is None or read == ran or (isinstance(read, float) and abs(read - float(str(ran))) < 1e-9)


def main() -> int:
    """Prints each script's verdict, and their numbers."""
    parts, counts = sys.argv[1:], Counter[str]()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder, chosen = Path(name), []
        for number, (title, text) in enumerate(scripts()):
            if not parts or any(part in title for part in parts):
                file = folder / f"script{number}.py"
                file.write_text(text)
                chosen.append((title, pool.submit(verdict, title, file)))
        for title, answer in chosen:
            result, why = answer.result()
            counts[result] += 1
            print(f"{result:8} {title}{why and ': '}{why}", flush=True)
    print(
        f"{counts.total()} scripts: {', '.join(f'{number} {kind}' for kind, number in counts.most_common())}"
    )
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
