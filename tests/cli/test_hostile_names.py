"""Names of strangers, in every command and format, control no terminal, stay in place, tell no password."""

import csv
import io
import json
import subprocess
import tomllib

import pytest
import yaml

from invariants.commands import DATA, WRITERS, fault_of, run_command
from isobatch.cli import COMMANDS
from isobatch.files.texts import json_text, shell_words, toml_text, yaml_text

NAMES = {
    "escape": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\x\x1b]8;;\x1b\\",
    "return": "a\rb",
    "lines": "a\nall is well",
    "right to left": "\u202egnp.exe\u2066",
    "line separator": "a\u2028b\u2029c\x85d",
    "c1": "\x9b2J\x7f",
    "byte order": "\ufeffa\u200b",
    "password": "s3://KEY:SECRET@bucket/x",
    "query": "https://host/x?token=SECRET&a=1",
    "markup": "</script><img src=x onerror=alert(1)>",
}
RECIPE = {"effective_batch": 256, "lr": 0.1, "duration": "100st"}
ARGUMENTS = {"per_device_train_batch_size": 8, "learning_rate": 1e-4, "max_steps": 10}
NO_FILES = {
    "exec": "it reads its file as plan does, and then is another program",
    "same": "it reads a command that the user types, and no file of its own",
    "store": "its one argument is a number",
    "validate": "a plan that is not one ends it as it ends replan; one that is starts ranks",
    "probe": "it reads no file",
}
"""Commands that show nothing of a file."""


def _cases(name, folder):
    """Words of commands with a name: of a file, a setting, a value, a job, a column, a GPU."""

    def put(file, text):
        path = folder / file
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return str(path)

    safe = "file" if "://host" in name or "://KEY" in name else name.replace("/", "_").replace("\n", "_")
    gpus = ["--gpus", "8"]
    options = [word for field, value in RECIPE.items() for word in ("--set", f"{field}={value}")]
    settings = put(f"{safe}.json", {**ARGUMENTS, f"max_stepz{name}": 3, "deepspeed": name, "optim": name})
    values = put("values.yaml", f"{json.dumps({**ARGUMENTS, 'lr_scheduler_type': name, 'fsdp': name})}")
    recipe = put("recipe.json", {**RECIPE, name: 1})
    schedule = put("schedule.json", {**RECIPE, "schedule": name, "optimizer": name})
    cells = io.StringIO()
    header = ["job", "effective_batch", "lr", name, "duration", "gpu"]
    csv.writer(cells).writerows([header, [name, 256, 0.1, name, "100st", name]])
    table = cells.getvalue()
    jobs = put(f"{safe}.csv", table)
    line = json.dumps({"job": name, "effective_batch": 256, "lr": name, name: name})
    lines = put(f"{safe}.jsonl", f"{line}\n")
    table = table.replace("job,effective_batch,lr", "cluster,nodes,gpus_per_node").replace("256,0.1", "1,8")
    clusters = put("clusters.csv", table)
    plans, plan, profile = (str(folder / file) for file in ("plans.csv", "plan.json", "profile.json"))
    yield ["fleet", jobs, *gpus, "-o", plans]
    yield ["plan", *options, *gpus, "-o", plan]
    yield from (["doctor", file, *gpus] for file in (settings, values, recipe, str(folder / safe)))
    yield from (["plan", "--from", file, *gpus, "--set", "gpus=4"] for file in (settings, values))
    yield from (["plan", file, *gpus] for file in (recipe, schedule, str(folder / safe)))
    yield ["plan", *options, *gpus, "--set", f"{name}=1"]
    yield ["plan", *options, *gpus, "--set", f"schedule={name}"]
    yield ["plan", *options, *gpus, "--to", name]
    yield ["plan", *options, *gpus, "--gpu", name]
    yield from (
        ["plan", *options, *gpus, "--to", tool, "--name", name, "--script", shell_words(["train.py", name])]
        for tool in WRITERS
    )
    yield ["plan", "-"]
    yield ["counts", "--from", settings, "--gpus", "1..4"]
    yield ["counts", *options, "--gpus", "1..4", "-o", str(folder / "counts.html")]
    yield ["replan", recipe, "--at-step", "5", *gpus]
    yield ["replan", plan, "--at-step", "5", *gpus, "--reason", name]
    yield from (["fleet", file, *gpus] for file in (jobs, lines, recipe, str(folder / f"{safe}x.csv")))
    yield ["fleet", jobs, clusters]
    yield ["fleet", jobs, *gpus, "--json"]
    yield ["fleet", jobs, clusters, "--pairs", put("pairs.csv", f'job,cluster\n"{name}",none\n')]
    yield from (["allocate", file, "8"] for file in (jobs, lines))
    yield from (["explain", file] for file in (plans, recipe, str(folder / safe)))
    yield ["explain", plans, "--jobs", jobs, "--illegal"]
    yield ["explain", plans, "--job", name]
    yield ["report", plans, "-o", str(folder / "plans.html"), "--title", name]
    yield ["report", plan, "-o", str(folder / "plan.html"), "--title", name]
    yield ["report", plans, "--to", "slurm", "-o", str(folder / "out"), "--force"]
    yield ["estimate", settings, "--gpu", name, "--seq-len", "8"]
    yield ["calibrate", settings, "-o", profile]
    yield from (["schedule", word, "--steps", "10"] for word in (name, settings))
    yield [name]
    yield ["plan", name]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_controls_what_it_is_shown_in(name, tmp_path):
    pytest.importorskip("altair")
    hostile, shown = NAMES[name], set()
    request = json.dumps({"id": hostile, "recipe": {**RECIPE, hostile: 1}, "gpus": 8, hostile: 1}) + "\n"
    for words in _cases(hostile, tmp_path):
        code, out, err = run_command(words, request.encode())
        fault = fault_of(words, code, out, err)
        assert not fault, (words, fault)
        # Columns that a row carries along, a request's own id and a file's own words are data.
        printed = err if words[0] in DATA or "--to" in words or words[:2] == ["plan", "-"] else out + err
        assert "SECRET" not in printed, (words, printed)
        assert "\nall is well" not in printed, (words, printed)
        shown.add(words[0])
    assert shown & COMMANDS.keys() | NO_FILES.keys() >= COMMANDS.keys() - {"elastic", "node"}
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        hidden = {c for c in text if not c.isprintable() and c not in "\n\t"}
        assert not hidden and "SECRET" not in text and "<img src=x" not in text, (page.name, hidden)


@pytest.mark.parametrize("name", [*NAMES, "half a character"])
def test_hostile_names_written_read_back(name):
    hostile = NAMES.get(name, "\udcff")
    fields = {hostile: hostile, "in": {"a list": [hostile, 1], "lines": f"{hostile}\nx"}}
    if name != "half a character":  # which YAML and TOML cannot hold
        for text, load in ((yaml_text(fields), yaml.safe_load), (toml_text(fields), tomllib.loads)):
            assert load(text) == fields
            assert all(c.isprintable() or c == "\n" for c in text)
    assert json.loads(json_text(fields)) == fields
    words = ["bash", "-c", f"printf '%s\\0' {shell_words([hostile, 'x'])}"]
    echoed = subprocess.run(words, capture_output=True, check=True)
    assert echoed.stdout == hostile.encode(errors="surrogateescape") + b"\0x\0"
