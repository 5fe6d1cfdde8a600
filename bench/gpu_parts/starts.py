"""The ways to start a validation where there is a GPU: by command, by torchrun, from Python with a factory of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_parts.tools import bad, command, plan, verdicts

LIMIT_SECONDS = 300
NOTEBOOK = """
import isobatch as ib
from gpu_parts.models import gpt2, mlp
def own():  # no module has it
    return mlp()
report = ib.validate.launch("plan.json", 1, workload=own, options=ib.validate.Options(extent="quick"))
report.save("report.json")
"""


def run(small: bool) -> dict[str, Any]:
    """Each must give a report in which nothing failed."""
    options = ["--quick", "--workload", "gpu_parts.models:mlp", "-o", "report.json"]
    ways = {
        "command": [
            sys.executable,
            "-m",
            "isobatch",
            "validate",
            "plan.json",
            "--nproc-per-node",
            "1",
            *options,
        ],
        "torchrun": [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
            *("-m", "isobatch.validate", "plan.json", *options),
        ],
        "python": [sys.executable, "notebook.py"],
    }
    found: dict[str, Any] = {"wrong": []}
    for name, words in ways.items():
        with tempfile.TemporaryDirectory() as at:
            folder = Path(at)
            plan(1, 16).save(folder / "plan.json")
            (folder / "notebook.py").write_text(NOTEBOOK)
            code, said = command(words, 90, folder)
            file = folder / "report.json"
            one = {"exit_code": code} | (
                {"report": json.loads(file.read_text())} if file.exists() else {"said": said}
            )
        found[name] = {"exit_code": code, "verdicts": verdicts(one)}
        found["wrong"] += [f"{name}: {text}" for text in bad(one)]
    return found
