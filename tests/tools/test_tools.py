"""A tool is its file and its line in TOOLS: whatever else it needs is asked for here by name."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.planning.handed import parts
from isobatch.tools.detect import TOOLS, detect, reader, readers, tool_of
from isobatch.tools.export import export
from isobatch.tools.sheet import Job
from tools.test_reading import put

ROOT = Path(__file__).parent.parent.parent
WRITERS = {name: tool_of(name) for name in TOOLS if tool_of(name).writer}
BASE = {"effective_batch": 256, "gpus": 8, "micro_batch": 8, "lr": 1e-3, "duration": "1000st",
 "warmup": "30st", "schedule": "cosine"}  # fmt: skip
RAMP = {"convention": "megatron", "duration": "256000sp", "warmup": None}


class Instead:
    """A plan with other values in the place of some of its own."""

    def __init__(self, plan, **values):
        self.plan, self.values = plan, values

    def __getattr__(self, name):
        return self.values[name] if name in self.values else getattr(self.plan, name)


def made(fields=None, how=None):
    return ib.plan(ib.Recipe(**{**BASE, **(fields or {})}), ib.Cluster(nodes=2, gpu="H100"), **(how or {}))


def warmed(start):
    grown = made({"optimizer": "sgd"}, {"policy": "grow", "rule": "linear"})
    end = grown.warmup_steps

    def lr_at(step):
        return grown.lr_at(step) if step >= end else start + (grown.lr - start) * step / end

    return Instead(grown, warmup_lr=start, lr_at=lr_at)


# Each part of a plan with two values of a recipe's field, and the fields beside them: the plans differ in
# nothing else.
FIELDS = {
    "lr": ("lr", 1e-3, 2e-3),
    "min_lr": ("min_lr", 0.0, 1e-5),
    "schedule": ("schedule", "cosine", "linear"),
    "warmup_steps": ("warmup", "30st", "60st"),
    "total_steps": ("duration", "1000st", "2000st"),
    "eval_steps": ("eval_every", None, "50st"),
    "save_steps": ("save_every", None, "50st"),
    "log_steps": ("log_every", None, "50st"),
    "optimizer": ("optimizer", "adamw", "adam"),
    "beta1": ("betas", (0.9, 0.95), (0.8, 0.95)),
    "beta2": ("betas", (0.9, 0.95), (0.9, 0.99)),
    "eps": ("eps", 1e-8, 1e-6),
    "momentum": ("momentum", 0.9, 0.8, {"optimizer": "sgd"}),
    "weight_decay": ("weight_decay", 0.1, 0.2),
    "ema_decay": ("ema_decay", None, 0.99),
    "clip_norm": ("clip_norm", 1.0, 0.5),
    "precision": ("precision", None, "bf16"),
    "ramp": ("ramp", None, "64 64 16000", RAMP),
    "seq_len": ("seq_len", 1024, 2048),
    "drop_last": ("drop_last", False, True, {"dataset_size": 25600}),
    "even_batches": ("even_batches", True, False, {"convention": "transformers"}),
}


def changed(name, first, second, beside=None):
    """Returns two functions, of plans with one different field."""
    return [lambda value=value: made({**(beside or {}), name: value}) for value in (first, second)]


CHANGES = {part: changed(*row) for part, row in FIELDS.items()} | {
    "micro_batch": (made, lambda: made(how={"max_micro_batch": 4})),
    "accumulation": (made, lambda: made(how={"max_micro_batch": 4})),
    "effective_batch": (made, lambda: made(how={"policy": 512, "rule": "none"})),
    "warmup_lr": (lambda: warmed(0.0), lambda: warmed(1e-4)),
}
JOBS = {
    "name": Job(name="another"),
    "command": Job(command=("other.py", "--x")),
    "image": Job(image="registry/image:1"),
    "resume": Job(resume="run/checkpoint-5"),
    "elastic": Job(elastic=True),
    "again": Job(again="isobatch plan job.toml"),
}
OF_LAUNCHERS = ("elastic", "again")
# No settings of a training script: how the plan was found, what it was tuned on, what it is forecast to take.
FOUND_BY = (
    "adapter batch_norm bucket_cap_mb convention coupled dataset_size decay device_batches expert_parallel "
    "gpus model_parallel mu_sq noise_scale parameters power sigma_sq"
)
AS_PARTS = {"betas": "beta1", "duration": "total_steps", "warmup": "warmup_steps"}
AS_PARTS |= {f"{name}_every": f"{name}_steps" for name in ("eval", "save", "log")}


def test_no_part_of_a_plan_is_without_its_change():
    recipe = {AS_PARTS.get(name, name) for name in ib.Recipe.__struct_fields__}
    for where, names, places in (("CHANGES", parts(made()), ""), ("CHANGES or FOUND_BY", recipe, FOUND_BY)):
        lacks = sorted(set(names) - {*CHANGES, *places.split()})
        assert not lacks, f"{where} in tests/tools/test_tools.py lacks {', '.join(lacks)}"
    # A plan does not know `own`, of one tool's file.
    fields = {field.name for field in dataclasses.fields(Job)} - {"own"}
    assert fields == set(JOBS), "JOBS lacks a field of Job"


@pytest.mark.parametrize("tool", WRITERS)
def test_a_writer_says_each_part_of_a_plan_or_lists_it_as_left_out(tool):
    """Plans with one different part give different files or notes, beside the lines with the batches'
    product."""

    def said(plan, job=None):
        out = export(plan, tool, job=job)
        return re.sub("(?m)^# isobatch: .*$", "", out.text), out.notes

    silent = {part for part, plans in CHANGES.items() if len({said(plan()) for plan in plans}) == 1}
    plain = said(made())
    how = WRITERS[tool].writer
    jobs = {part: job for part, job in JOBS.items() if not how.is_part or part not in OF_LAUNCHERS}
    silent |= {part for part, job in jobs.items() if said(made(), job) == plain}
    left_out = set(how.leaves_out.split())
    assert not silent - left_out, f"the writer of {tool} forgets these, or does not list them in leaves_out"
    assert not left_out - silent, f"the writer of {tool} lists these in leaves_out, and writes them"


@pytest.mark.parametrize("tool", WRITERS)
def test_only_what_starts_a_script_may_start_it_on_any_gpus(tool):
    is_part = WRITERS[tool].writer.is_part
    assert any("keep its other settings" in note for note in made().to(tool).notes) == is_part
    if is_part:
        with pytest.raises(ib.InputError, match="starts no script: elastic is for launchers"):
            export(made(), tool, job=Job(elastic=True))
    else:
        assert "ISOBATCH_WORLD_SIZE" not in export(made(), tool, job=Job(elastic=True)).text
        assert "ISOBATCH_WORLD_SIZE" in export(made(), tool).text


@pytest.mark.parametrize("tool", WRITERS)
def test_a_writer_that_runs_ragged_plans_writes_them_and_another_refuses(tool):
    tuned = ib.Recipe(**{**BASE, "effective_batch": 32, "gpus": 1, "micro_batch": 2})
    for how in ({"split": "ragged"}, {"split": "uneven"}):
        plan = ib.plan(tuned, ib.Cluster(gpus_per_node=3, gpu="H100"), **how)
        if not WRITERS[tool].writer.runs_ragged:
            with pytest.raises(ib.InputError, match="2 × 6 × 3 replicas would be 36 samples a step, not 32"):
                plan.to(tool)
            continue
        for form in WRITERS[tool].writer.forms:
            out = plan.to(tool, form=form)
            text = out.text + " ".join(out.notes)
            assert "weight each loss by plan.loss_weights(rank)" in text, form
            assert re.search(r"EFFECTIVE_BATCH\W+(value\W+)?32\b", text), form


@pytest.mark.parametrize("tool", WRITERS)
def test_a_writer_that_runs_no_ramps_says_so(tool):
    notes = made({**RAMP, "ramp": "64 64 16000"}).to(tool).notes
    assert any("no batch ramp" in note for note in notes) != WRITERS[tool].writer.runs_ramps


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
    text = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
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
