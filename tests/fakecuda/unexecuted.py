"""Prints the lines of CUDA, NCCL and NVML that no run has executed, of what `coverage json -o FILE` wrote: `python tests/fakecuda/unexecuted.py FILE`."""

import ast
import json
import re
import sys
from pathlib import Path

CUDA = re.compile(r"cuda|nccl|nvml|gpu|rails", re.IGNORECASE)


def governed(tree, text):
    """Returns the lines inside conditions and functions that name CUDA."""
    numbers = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.FunctionDef):
            head = ast.get_source_segment(text, node.test) if isinstance(node, ast.If) else node.name
            if CUDA.search(head):
                numbers.update(range(node.body[0].lineno, node.body[-1].end_lineno + 1))
    return numbers


for file, counts in json.loads(Path(sys.argv[1]).read_text())["files"].items():
    text = Path(file).read_text()
    lines, inside = text.splitlines(), governed(ast.parse(text), text)
    for number in counts["missing_lines"]:
        if number in inside or CUDA.search(lines[number - 1]):
            print(f"{file}:{number}: {lines[number - 1].strip()}")
