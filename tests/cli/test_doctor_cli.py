"""The doctor as a command: its exit codes, its GPUs as `plan` has them, its findings as JSON."""

import json
from pathlib import Path

import pytest

from tools.test_doctor import CLEAN
from tools.test_reading import written


@pytest.fixture
def clean(tmp_path):
    return str(written(tmp_path, "args.json", json.dumps(CLEAN, indent=1)))


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (json.dumps(CLEAN), 0, "That is the batch that it was tuned with"),
        (json.dumps(CLEAN | {"lr_scheduler_type": "zigzag"}), 1,
            "isobatch plan refuses: the scheduler 'zigzag' cannot be planned"),
        (json.dumps(CLEAN | {"learning_rate": -1}), 1,
            "isobatch plan refuses: lr must be a finite number above 0, got -1"),
        (json.dumps(CLEAN | {"weight_decay": "auto"}), 0, '"auto" is not known before the run'),
        ('{"trainer": 5, "seed_everything": 1}', 2, "trainer must be a table of settings, got 5"),
        ("{", 2, "cannot be read"),
        ('{"learning_rate": 1}', 2, "no tool is recognized"),
    ],
)  # fmt: skip
def test_the_exit_code_says_what_was_found(tmp_path, ran, text, code, message):
    file = str(written(tmp_path, "args.json", text))
    output = ran(["doctor", file, "--gpus", "8", "--set", "gpus=8"], code)
    assert message in (output.err if code == 2 else output.out)


def test_gpus_are_given_as_those_of_a_plan(clean, ran):
    by_nodes = ran(["doctor", clean, "--nodes", "2", "--gpus-per-node", "4", "--set", "gpus=8"], 0).out
    assert by_nodes == ran(["doctor", clean, "--gpus", "8", "--set", "gpus=8"], 0).out
    assert ", on 16 GPUs" in ran(["doctor", clean, "--nodes", "2"]).out
    assert "fills no whole nodes" in ran(["doctor", clean, "--gpus", "12", "--gpus-per-node", "8"], 2).err


def test_findings_as_json_name_the_setting_and_its_line(clean, ran):
    words = ["doctor", clean, "--gpus", "64", "--set", "gpus=8", "--json"]
    record = json.loads(ran(words, 1).out)
    assert record["schema"] == "isobatch.doctor/1" and record["tool"] == "transformers"
    assert (record["gpus"], record["batch"], record["tuned_batch"]) == (64, 512, 64)
    first, *_, last = record["findings"]
    assert first["level"] == "changes" and last["level"] == "note"
    assert first["setting"] == "per_device_train_batch_size" and first["file"] == clean and first["line"] == 2
    assert first["mend"] == "per_device_train_batch_size: 1; gradient_accumulation_steps: 1"
    assert set(first) == {"level", "setting", "file", "line", "text", "cause", "source", "mend"}
    lines = Path(clean).read_text().splitlines()
    numbered = [finding for finding in record["findings"] if finding["line"] is not None]
    assert len(numbered) > 3
    assert all(finding["setting"] in lines[finding["line"] - 1] for finding in numbered)


def test_a_setting_that_was_typed_is_no_finding(clean, ran):
    output = ran(["doctor", clean, "--gpus", "8", "--set", "lr=-1"], 2).err
    assert "--set lr must be a finite number above 0, got -1" in output


def test_several_files_end_with_the_highest_code(clean, tmp_path, ran):
    changed = str(written(tmp_path, "other.json", json.dumps(CLEAN | {"learning_rate": -1})))
    broken = str(written(tmp_path, "broken.json", "{"))
    words = ["--gpus", "8", "--set", "gpus=8"]
    both = ran(["doctor", clean, changed, *words], 1).out
    assert both == f"{ran(['doctor', clean, *words]).out}\n{ran(['doctor', changed, *words], 1).out}"
    every = ran(["doctor", broken, clean, changed, *words, "--json"], 2)
    records = [json.loads(line) for line in every.out.splitlines()]
    assert [record["file"] for record in records] == [broken, clean, changed]
    assert [record["error"] is None for record in records] == [False, True, True]
    assert f"isobatch doctor: {broken}: cannot be read" in every.err
    wrong = ran(["doctor", clean, changed, *words, "--set", "gpus=x"], 2)
    assert wrong.out == "" and wrong.err.count("--set gpus must be a whole number") == 1


def test_an_unreadable_file_alone_has_an_object_too(tmp_path, ran):
    broken = str(written(tmp_path, "broken.json", "{"))
    output = ran(["doctor", broken, "--gpus", "8", "--json"], 2)
    record = json.loads(output.out)
    assert record["file"] == broken and record["error"].startswith("cannot be read")
    assert record["findings"] == [] and f"{broken}: cannot be read" in output.err
    typed = ran(["doctor", broken, "--gpus", "8", "--set", "gpus=x", "--json"], 2)
    assert typed.out == "" and "--set gpus must be" in typed.err


def test_notes_of_json_list_the_unknown(tmp_path, clean, ran):
    notes = json.loads(ran(["doctor", clean, "--gpus", "64", "--json"]).out)["notes"]
    assert notes[0].startswith("The GPUs that it was tuned on are not known: --set gpus=N")
    text = "compute_environment: LOCAL_MACHINE\nnum_processes: 8\nnum_machines: 1"
    launched = str(written(tmp_path, "a.yaml", text))
    notes = json.loads(ran(["doctor", launched, "--gpus", "8", "--json"]).out)["notes"]
    assert notes[0].startswith("The file does not say the batch")
    assert not any("tuned on" in note for note in notes)


CHANGED = {
    "axolotl.yaml": ({"base_model": "x", "micro_batch_size": 2, "gradient_accumulation_steps": 4,
                      "learning_rate": 1e-4, "num_epochs": 1, "max_grad_norm": 1.0}, ["--set", "gpus=8"], 64),
    "lightning.yaml": ({"trainer": {"devices": 8, "num_nodes": 2, "max_steps": 9,
                                    "accumulate_grad_batches": 2},
                        "data": {"batch_size": 16}, "optimizer": {"init_args": {"lr": 1e-3}}}, [], 512),
    "lightning-half.yaml": ({"trainer": {"devices": 4, "num_nodes": 2, "max_steps": 9},
                             "data": {"batch_size": 64}, "optimizer": {"init_args": {"lr": 1e-3}}}, [], 512),
    "accelerate.yaml": ({"num_processes": 32, "num_machines": 4, "compute_environment": "LOCAL_MACHINE"},
                        ["--set", "effective_batch=512"], 512),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_file_that_is_changed_as_advised_passes(tmp_path, ran, name):
    """Its own nodes and processes included; its tuned batch is then the gate."""
    settings, tuned, batch = CHANGED[name]
    file = tmp_path / name
    file.write_text(json.dumps(settings))
    record = json.loads(ran(["doctor", str(file), "--gpus", "64", *tuned, "--json"], 1).out)
    batch_kept = ["--set", f"effective_batch={batch}"]
    assert tuned == batch_kept or any(" ".join(batch_kept) in note for note in record["notes"])
    for finding in record["findings"]:
        if finding["level"] != "changes" or "only if" in finding["mend"] or "if the batch" in finding["mend"]:
            continue
        for line in finding["mend"].split("; "):
            path, _, value = line.partition(": ")
            *tables, last = path.split(".")
            inner = settings
            for table in tables:
                inner = inner[table]
            inner[last] = int(value)
    file.write_text(json.dumps(settings))
    ran(["doctor", str(file), "--gpus", "64", *batch_kept])
    per_node = {"trainer": {"devices": 8, "num_nodes": 8}, "num_machines": 8, "num_processes": 64}
    for key in per_node.keys() & settings.keys():
        nodes, value = per_node[key], settings[key]
        assert value.items() >= nodes.items() if isinstance(nodes, dict) else value == nodes
    ran(["doctor", str(file), "--gpus", "128", *batch_kept], 1)
