"""A tool is its file and its line in TOOLS: whatever else it needs is asked for here by name."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.planning.handed import parts
from isobatch.tools.detect import TOOLS, detect, reader, readers, tool_of
from isobatch.tools.sheet import Job
from isobatch.tools.testing import CHANGES, JOBS, LAWS, plan_with
from tools.test_reading import put

ROOT = Path(__file__).parent.parent.parent
WRITERS = {name: tool_of(name) for name in TOOLS if tool_of(name).writer}
# No settings of a training script: how the plan was found, what it was tuned on, what it is forecast to take.
FOUND_BY = (
    "adapter batch_norm bucket_cap_mb convention coupled dataset_size decay device_batches expert_parallel "
    "gpus model_parallel mu_sq noise_scale parameters power sigma_sq"
)
AS_PARTS = {"betas": "beta1", "duration": "total_steps", "warmup": "warmup_steps"}
AS_PARTS |= {f"{name}_every": f"{name}_steps" for name in ("eval", "save", "log")}


def test_no_part_of_a_plan_is_without_its_change():
    recipe = {AS_PARTS.get(name, name) for name in ib.Recipe.__struct_fields__}
    for where, names, places in (
        ("CHANGES", parts(plan_with()), ""),
        ("CHANGES or FOUND_BY", recipe, FOUND_BY),
    ):
        lacks = sorted(set(names) - {*CHANGES, *places.split()})
        assert not lacks, f"{where} (tools/testing.py, tests/tools/test_tools.py) lacks {', '.join(lacks)}"
    # A plan does not know `own` and `elsewhere`, of the files that it was made from.
    fields = {field.name for field in dataclasses.fields(Job)} - {"own", "elsewhere"}
    assert fields == set(JOBS), "JOBS lacks a field of Job"


@pytest.mark.parametrize("tool", WRITERS)
@pytest.mark.parametrize("law", LAWS)
def test_a_writer_keeps_the_laws(law, tool):
    law(tool)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_one_record(name):
    tool = tool_of(name)
    assert tool.name.replace("-", "_") == name and tool.title
    assert tool.reader or tool.writer, "a tool is read or written"
    assert bool(tool.reader) == bool(TOOLS[name].own), f"{name}: keys of its files in TOOLS, and a reader"
    assert tool.writer or tool_of(tool.written_as or "transformers").writer
    for form in tool.writer.forms if tool.writer else ():
        assert form in ("yaml", "toml", "json") or tool.writer.render, f"{name}: {form} needs render"


def test_every_file_of_a_tool_is_in_the_list():
    """Each record in a file is reached from a line of TOOLS."""
    records = set()
    for path in (ROOT / "python/isobatch/tools").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            called = node.value.func if isinstance(getattr(node, "value", None), ast.Call) else None
            if isinstance(node, ast.Assign) and getattr(called, "id", "") in ("Tool", "record"):
                records.add((path.stem, node.targets[0].id.lower()))
    listed = {(keys.module or name, name) for name, keys in TOOLS.items()}
    assert records == listed, f"TOOLS in tools/detect.py and the records differ in {records ^ listed}"


def test_the_documents_have_a_row_for_each():
    """Each row has the versions read, else written."""
    text = (ROOT / "docs/tools.md").read_text(encoding="utf-8").partition("<!-- table maps")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)$", text, re.MULTILINE)
    rows = {name.replace("-", "_"): row for name, row in rows}
    differ = rows.keys() ^ TOOLS.keys()
    assert not differ, f"the rows of docs/tools.md and TOOLS differ in {differ}"
    for name, row in rows.items():
        tool = tool_of(name)
        first = (tool.reader or tool.writer).versions.split(" to ")[0]
        assert first.split()[-1] in row, f"docs/tools.md: versions of {name}"


def test_a_tool_is_known_by_its_own_keys():
    for name in readers():
        extends = TOOLS[name].extends
        keys = [*TOOLS[name].own.split(), *(TOOLS[extends].own.split() if extends else ())]
        settings = {}
        for key in keys:
            put(settings, key, 1)
        assert detect(settings, "a.yaml") == name
    with pytest.raises(ib.InputError, match="did you mean 'axolotl'"):
        reader("axolotle")
