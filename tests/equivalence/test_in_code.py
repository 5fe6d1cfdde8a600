"""Numbers of a split in a script's code: seen as typed, and set."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

pytest.importorskip("torch")

from equivalence import in_code
from isobatch.equivalence.commands.command import read_command
from isobatch.equivalence.commands.runs import RECORDER, Recorded, start_run
from isobatch.equivalence.commands.typed import read_typed
from isobatch.equivalence.records import Recording
from isobatch.equivalence.result import Same
from isobatch.equivalence.session import same
from isobatch.equivalence.split import Split, choose_rank_splits
from isobatch.errors import InputError
from isobatch.launch.command_line import CPU

LIBRARIES = {
    **{"TRAINER": "transformers", "ACCELERATE": "accelerate", "LIGHTNING": "lightning"},
    "FABRIC": "lightning",
}
KINDS = {
    "TRAINER": ("arguments",),
    "ACCELERATE": ("accelerate", "loader"),
    "LIGHTNING": ("lightning", "loader"),
}


def written(tmp_path, name: str):
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    path = tmp_path / "train.py"
    path.write_text(in_code.HEAD + getattr(in_code, name))
    return path


def recorded(tmp_path, name: str, split: Split, words=(), **settings) -> Recording:
    path = written(tmp_path, name)
    recording = Recorded(str(tmp_path / "record"), 1, split=split, **settings)
    run = start_run([sys.executable, str(path), *words], CPU, recording, split, 300)
    assert run.recording is not None, run.output
    return run.recording


def place(tmp_path) -> dict[str, str]:
    lines = (tmp_path / "train.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "# made here" in line)
    return {"place": f"{tmp_path / 'train.py'}:{number}"}


def sizes(recording: Recording) -> list[int]:
    return [len(samples.hashes) for samples in recording.last.first.passes]


@pytest.mark.parametrize("name", KINDS)
def test_an_object_gets_the_numbers_of_the_split(tmp_path, name):
    written(tmp_path, name)
    key = place(tmp_path) | {"size": 2} if "loader" in KINDS[name] else None
    recording = recorded(tmp_path, name, Split(1, 2, 3), sets=KINDS[name], loader=key)
    assert sizes(recording) == [3, 3]
    notes = [change for change in recording.changes if change.endswith("set by the split")]
    assert "=4) set by the split" in notes[0]
    assert any("16" in note for note in recording.notes("off"))


@pytest.mark.parametrize("name", KINDS)
def test_a_first_run_keeps_what_is_typed_and_tells_it(tmp_path, name):
    recording = recorded(tmp_path, name, Split(1, 1, 2), look=16)
    assert sizes(recording) == [2, 2, 2, 2]
    typed = read_typed(read_command(["python", "train.py"]), tmp_path / "record")
    assert typed.own == typed.asked == Split(1, 4, 2) and not typed.over_ranks
    assert typed.sets == KINDS[name]
    if name == "ACCELERATE":  # the line makes two: the evaluation's has another size
        assert typed.loader == place(tmp_path) | {"size": 2}


def test_flags_of_argparse_are_set_with_the_loader(tmp_path):
    flags = {"batch_size": "micro_batch", "accum_steps": "accumulation"}
    recording = recorded(tmp_path, "FLAGS", Split(1, 2, 3), sets=("loader",), flags=flags)
    assert sizes(recording) == [3, 3]
    assert sizes(recorded(tmp_path, "FLAGS", Split(1, 2, 3))) == [2, 2, 2, 2]


def test_flags_of_a_whole_step_and_of_the_ranks_are_set(tmp_path):
    assert sizes(recorded(tmp_path, "FABRIC", Split(1, 1, 2), look=16)) == [2, 2, 2, 2]
    typed = read_typed(read_command(["python", "train.py"]), tmp_path / "record")
    assert (typed.own, typed.sets, typed.loader) == (Split(1, 4, 2), ("loader",), place(tmp_path))
    assert typed.flags == {
        "micro_batch_size": "micro_batch",
        "global_batch_size": "effective_batch",
        "devices": "ranks",
    }
    recording = recorded(tmp_path, "FABRIC", Split(1, 2, 3), sets=typed.sets, flags=typed.flags)
    assert sizes(recording) == [3, 3]


def test_a_tree_of_flags_is_set_at_its_root(tmp_path):
    pytest.importorskip("jsonargparse", reason="litgpt's and Lightning's command lines")
    code = "import torch, jsonargparse, json\nfrom jsonargparse import ArgumentParser\n"
    code += "root, train = ArgumentParser(exit_on_error=False), ArgumentParser(exit_on_error=False)\n"
    code += "train.add_argument('--train.micro_batch_size', type=int, default=4)\n"
    code += "root.add_subcommands().add_subcommand('fit', train)\n"
    code += "print(json.dumps(root.parse_args(['fit']).fit.train.micro_batch_size))"
    settings = Recorded(str(tmp_path), 1, split=Split(2, 2, 3), sets=("loader",))
    flags = {"fit.train.micro_batch_size": "micro_batch"}
    assert printed(code, settings) == 4
    assert printed(code, msgspec.structs.replace(settings, flags=flags)) == 3


COUNTED = """
import torch
net = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with torch.device("meta"):
    copy, x, y = torch.nn.Linear(8, 3), torch.randn(4, 8), torch.randint(0, 1, (4,))
    torch.nn.functional.cross_entropy(copy(x), y).backward()
    assert {x.device.type, y.device.type, torch.rand(2).device.type} == {"meta"}
net(torch.randn(2, 8)).mean().backward()
optimizer.step()
"""


def test_a_count_of_operations_is_no_pass_and_random_draws_are_on_its_device(tmp_path):
    settings = Recorded(str(tmp_path / "record"), 1, split=Split(1, 1, 2))
    run = start_run([sys.executable, "-c", COUNTED], CPU, settings, Split(1, 1, 2), 120)
    assert run.recording is not None, run.output
    assert sizes(run.recording) == [2]


def seen(folder, **changes):
    content = {"world": 1, "objects": [], "loader": None, "loaders": [], "splits_batches": False, "passes": 1}
    (folder / "typed-0.json").write_text(json.dumps(content | changes))
    return read_typed(read_command(["python", "train.py"]), folder)


LOADER = {"place": "t.py:1", "size": 8, "dataset": "D of 9 rows", "passes": 1}
ACCELERATOR = {
    "kind": "accelerate",
    "name": "Accelerator",
    "text": "",
    "accumulation": 4,
    "accumulates": True,
}


def test_a_loop_that_never_accumulates_is_compared_over_ranks(tmp_path):
    objects = [{**ACCELERATOR, "accumulation": 1, "accumulates": False}]
    typed = seen(tmp_path, world=2, objects=objects, loader=LOADER, loaders=[LOADER])
    assert typed.over_ranks and typed.sets == ("loader",)
    assert typed.asked == Split(2, 1, 8)
    assert [str(split) for split in choose_rank_splits(typed.asked).further] == ["4x1x4"]


def test_a_batch_of_all_ranks_is_a_micro_batch_each(tmp_path):
    typed = seen(tmp_path, world=2, objects=[ACCELERATOR], loader=LOADER, splits_batches=True)
    assert typed.own == Split(2, 4, 4)


def test_the_loader_beside_a_configuration_of_deepspeed_is_set_too(tmp_path):
    objects = [{"kind": "deepspeed", "text": "", "micro_batch": 8, "accumulation": 4}]
    typed = seen(tmp_path, objects=objects, loader=LOADER, loaders=[LOADER])
    assert typed.sets == ("deepspeed", "loader") and typed.loader == {"place": "t.py:1"}
    assert seen(tmp_path, objects=objects).sets == ("deepspeed",)  # the engine loads its own data


def test_a_large_step_is_made_smaller(tmp_path):
    objects = [{"kind": "arguments", "text": "", "micro_batch": 32, "accumulation": 4}]
    typed = seen(tmp_path, world=2, objects=objects, passes=0)
    assert (typed.own, typed.asked) == (Split(2, 4, 32), Split(2, 4, 2))


def test_a_step_of_many_passes_is_known_before_its_end(tmp_path):
    """By the one flag that has the samples of so many passes."""
    words = ("--global_batch_size", "64")
    typed_file = tmp_path / "record" / "typed-0.json"
    path = written(tmp_path, "FABRIC")
    settings = Recorded(str(tmp_path / "record"), 1, split=Split(1, 1, 2), look=16)
    run = start_run([sys.executable, str(path), *words], CPU, settings, Split(1, 1, 2), 300)
    assert run.recording is None and json.loads(typed_file.read_text())["is_long"]
    typed = read_typed(read_command(["python", "train.py"]), tmp_path / "record")
    assert (typed.own, typed.asked) == (Split(1, 32, 2), Split(1, 8, 2))
    assert typed.flags["global_batch_size"] == "effective_batch"
    flags = {"kind": "flags", "numbers": {"batch_size": 8, "big_batch": 1024, "huge_batch": 2048}}
    with pytest.raises(InputError, match="more than 16 passes a step, and no object or flag"):
        seen(tmp_path, passes=0, is_long=True, loader=LOADER, objects=[flags])


def test_a_loop_with_constants_is_asked_for_braces(tmp_path):
    with pytest.raises(
        InputError, match=r"(?s)takes 4 passes a step, and no object or flag.*\{micro_batch\}"
    ):
        seen(tmp_path, loader=LOADER, passes=4)
    with pytest.raises(InputError, match="through no torch DataLoader"):
        seen(tmp_path, passes=1)


def ask(tmp_path, name: str, *words: str, launcher=(sys.executable,), split=None) -> Same:
    return same([*launcher, str(written(tmp_path, name)), *words], split)


def names(answer: Same) -> set[str]:
    return {cause.name for split in answer.splits for cause in split.causes}


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def test_ranks_alone_are_compared_where_a_script_does_not_accumulate(tmp_path):
    answer = ask(tmp_path, "DDP", launcher=TORCHRUN)
    assert answer.same, answer.text
    assert [split.split for split in answer.splits] == ["2x1x4", "4x1x2"]
    assert answer.reference == "1x1x8"
    assert "DataLoader(batch_size=4) set by the split" in answer.changes and "CUDA off" in answer.changes
    assert "does not accumulate" in answer.unasked["1x8x1"]


@pytest.mark.slow
def test_a_sum_over_ranks_alone_is_found(tmp_path):
    answer = ask(tmp_path, "DDP", "sum", launcher=TORCHRUN)
    assert not answer.same and names(answer) == {"1/ranks"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "FLAGS", "FABRIC"])
def test_a_script_without_braces_gets_a_verdict(tmp_path, name):
    answer = ask(tmp_path, name)
    assert answer.same, answer.text
    no_group = {split for split, reason in answer.unasked.items() if "form no process group" in reason}
    assert no_group == ({"2x1x4", "2x2x2"} if name == "FLAGS" else set())
    assert any(change.endswith("set by the split") for change in answer.changes)


@pytest.mark.slow
def test_a_module_and_accelerate_launch_are_asked_as_a_script_is(tmp_path, monkeypatch):
    path = written(tmp_path, "ACCELERATE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for words in (
        [sys.executable, "-m", "train"],
        ["accelerate", "launch", "--num_processes", "2", str(path)],
    ):
        answer = same(words)
        assert answer.same, answer.text
        assert any("Accelerator(gradient_accumulation_steps=4)" in change for change in answer.changes)


@pytest.mark.slow
def test_a_script_under_hydra_is_asked(tmp_path, monkeypatch):
    pytest.importorskip("hydra", reason="hydra moves its script's folder and reads its words")
    monkeypatch.chdir(tmp_path)
    answer = ask(tmp_path, "HYDRA", "hydra.run.dir=out")
    assert answer.same, answer.text


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "FLAGS"])
def test_its_fault_is_named(tmp_path, name):
    answer = ask(tmp_path, name, "sum")
    assert not answer.same and "summed loss" in answer.text, answer.text
    if name == "FLAGS":  # one process: a sum over passes and a mean divided twice have the same gradients
        assert "(these splits cannot tell which)" in answer.text and "make the loss a mean" in answer.text
    else:
        assert "summed loss" in names(answer)


@pytest.mark.slow
def test_rows_drawn_by_hand_are_those_of_the_first_split_and_an_evaluation_moves_none(tmp_path):
    words = ["{micro_batch}", "{accumulation}"]
    answer = ask(tmp_path, "BY_HAND", *words, split="1x4x2")
    assert {split.split for split in answer.splits if split.same} >= {"1x4x2", "1x8x1"}, answer.text


@pytest.mark.slow
def test_the_config_of_trl_is_set_and_its_bf16_is_off(tmp_path):
    pytest.importorskip("trl", reason="its config classes are TrainingArguments")
    code = "from trl import SFTConfig; import json; c = SFTConfig('out', per_device_train_batch_size=8)\n"
    code += "print(json.dumps([c.per_device_train_batch_size, c.gradient_accumulation_steps, c.bf16]))"
    settings = Recorded(str(tmp_path), 1, split=Split(1, 2, 3), sets=("arguments",))
    values = printed(code, settings)
    assert values == [3, 2, False]


def printed(code: str, settings: Recorded):
    environment = {**os.environ, **CPU, "ISOBATCH_SAME": msgspec.json.encode(settings).decode()}
    environment["PYTHONPATH"] = os.pathsep.join([str(RECORDER), environment.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])
