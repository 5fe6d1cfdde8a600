"""Completions are generated once, and played back at every other split."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from isobatch.equivalence.commands.environments import PRESENT
from isobatch.equivalence.commands.runs import Recorded
from isobatch.equivalence.commands.starts import OrderedRuns, read_typed_command
from isobatch.equivalence.recorder import isobatch_recorder
from isobatch.equivalence.recorder.isobatch_recorder import objects, rollouts
from isobatch.equivalence.records import read_rollouts
from isobatch.equivalence.session import same
from isobatch.errors import InputError

LOOP = str(Path(__file__).with_name("rollout_loop.py"))
SETTINGS = SimpleNamespace(eos_token_id=1, pad_token_id=0, num_return_sequences=None)


class Recorder:
    """A recorder of one process, or of one rank whose neighbours ask for the same prompts."""

    def __init__(self, folder: Path, played: str = "", rank: int = 0, world: int = 1) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.settings = {"rollouts": played, "untouched": False, "bits": False}
        self.busy, self.rollouts, self.notes, self.arguments = False, None, [], []
        self.note = lambda text, kind="change": self.notes.append(text)

    def unseen(self):
        return torch.no_grad()

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)


class Sampler:
    """A model with `generate`: random tokens, an end, and padding."""

    config, generation_config = SimpleNamespace(is_encoder_decoder=False), SETTINGS

    def generate(self, inputs, **kwargs):
        sampled = torch.randint(2, 1000, (len(inputs), 4))
        sampled[0, 2:] = torch.tensor([1, 0])
        return torch.cat([inputs, sampled], 1)


def patched():
    module = SimpleNamespace(GenerationMixin=type("Mixin", (Sampler,), {}))
    rollouts.patch(module)
    return module.GenerationMixin()


def played(tmp_path, monkeypatch, prompts, rank=0, world=1):
    """Generates for prompts in a first run, and returns its completions and another run's model."""
    first = Recorder(tmp_path)
    monkeypatch.setattr(isobatch_recorder, "installed", [first])
    state = torch.get_rng_state()
    sequences = patched().generate(torch.tensor(prompts))
    assert torch.equal(state, torch.get_rng_state())  # the training's own draws stay as they are
    path = tmp_path / "played.json"
    path.write_text(json.dumps(read_rollouts(tmp_path)))
    recorder = Recorder(tmp_path, str(path), rank, world)
    monkeypatch.setattr(isobatch_recorder, "installed", [recorder])
    return sequences, patched(), recorder


def test_each_prompt_gets_its_completions_in_turn_whatever_the_passes(tmp_path, monkeypatch):
    sequences, model, recorder = played(tmp_path, monkeypatch, [[5, 6], [5, 6], [7, 8], [5, 6]])
    passes = [model.generate(torch.tensor(rows)) for rows in ([[7, 8]], [[5, 6], [5, 6]], [[5, 6]])]
    assert torch.equal(passes[0], sequences[2:3])
    assert torch.equal(passes[1], sequences[:2])
    assert torch.equal(passes[2], sequences[3:])
    assert recorder.notes == [f"completions: {rollouts.PLAYED}"]


def test_ranks_share_the_completions_of_a_prompt_and_need_not_all_generate(tmp_path, monkeypatch):
    sequences, model, recorder = played(tmp_path, monkeypatch, [[5, 6]] * 4, world=2)
    first = model.generate(torch.tensor([[5, 6]] * 3))
    second = Recorder(tmp_path, recorder.settings["rollouts"], 1, 2)
    monkeypatch.setattr(isobatch_recorder, "installed", [second])
    rest = patched().generate(torch.tensor([[5, 6]]))
    assert torch.equal(torch.cat([first, rest]), sequences)


def test_padding_of_a_prompt_is_no_part_of_it(tmp_path, monkeypatch):
    sequences, model, _ = played(tmp_path, monkeypatch, [[5, 6], [7, 8]])
    padded = torch.tensor([[0, 7, 8]])
    again = model.generate(padded, attention_mask=(padded != 0).int())
    assert torch.equal(again[0, 3:], sequences[1, 2:])


def test_a_prompt_that_the_first_run_did_not_have_is_generated(tmp_path, monkeypatch):
    _, model, recorder = played(tmp_path, monkeypatch, [[5, 6]])
    assert model.generate(torch.tensor([[9, 9]])).shape == (1, 6)
    assert recorder.notes[1:] == [rollouts.ANEW]


def test_a_restart_generates_by_the_trainers_own_random_state(tmp_path, monkeypatch):
    _, model, recorder = played(tmp_path, monkeypatch, [[5, 6]])
    recorder.settings["untouched"] = True
    torch.manual_seed(3)
    sequences = model.generate(torch.tensor([[5, 6]]))
    torch.manual_seed(3)
    assert torch.equal(sequences, Sampler().generate(torch.tensor([[5, 6]])))
    assert not recorder.notes


def test_a_second_start_for_another_release_plays_the_first_ones_completions(tmp_path, monkeypatch):
    def start(self, environment, name, **switches):
        record = tmp_path / name / "record"
        record.mkdir(parents=True)
        (record / "rollouts-1-0.json").write_text(json.dumps([["5 6", [len(name)]]]))
        return self.settings.rollouts

    monkeypatch.setattr(OrderedRuns, "start", start)
    runs = OrderedRuns(
        read_typed_command(["python", LOOP], None, None), Recorded(str(tmp_path), 1), 60, "cpu"
    )
    first, again = runs.start(PRESENT, "here"), runs.repeat(PRESENT, "here")
    assert not first
    assert json.loads(Path(again).read_text()) == {"5 6": [[4]]}
    assert runs.start(PRESENT, "there") == again


def test_a_trainer_that_cannot_be_asked_is_named_with_the_line_that_stops_it(tmp_path):
    script = tmp_path / "ppo.py"
    script.write_text(
        "class EngineTrainer:\n    def train(self):\n        import no_such_engine\n\n"
        "EngineTrainer().train()\n"
    )
    words = [sys.executable, str(script), "--batch", "{micro_batch}", "--accum", "{accumulation}"]
    with pytest.raises(InputError, match="before an optimizer of torch took a step") as error:
        same(words, "1x2x2")
    text = str(error.value)
    assert f'File "{script}", line 3, in train' in text and "EngineTrainer().train()" in text
    assert text.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_engine'"


def test_the_unit_of_the_loss_is_said(tmp_path, monkeypatch):
    _, model, recorder = played(tmp_path, monkeypatch, [[5, 6]])
    recorder.arguments = [SimpleNamespace(num_generations=4, loss_type="dapo")]
    model.generate(torch.tensor([[5, 6]]))
    unit = "groups of 4 completions, whose loss is a mean over tokens (loss_type dapo)"
    assert recorder.notes == [f"{unit}: {rollouts.PLAYED}"]


def test_another_engine_is_switched_off(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path)
    recorder.typed = SimpleNamespace(sets=lambda _: False, tell=lambda *_: None)
    recorder.on_cpu, recorder.in_float32 = True, True
    monkeypatch.setattr(isobatch_recorder, "installed", [recorder])

    class Arguments:
        def __post_init__(self) -> None:
            self.use_vllm, self.vllm_mode = True, "server"

    objects._patch_arguments(SimpleNamespace(TrainingArguments=Arguments))
    arguments = Arguments()
    arguments.__post_init__()
    assert (arguments.use_vllm, arguments.vllm_mode) == (False, "server")
    assert recorder.notes == ["use_vllm off"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("own",)])
def test_a_loop_over_completions(words):
    pytest.importorskip("transformers")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{gpus}"]
    answer = same([*launch, LOOP, "{micro_batch}", "{accumulation}", *words], "2x3x2")
    assert answer.same is (not words), answer.text
    assert any("played back" in change for change in answer.changes)
    if words:
        assert {cause.name for split in answer.splits for cause in split.causes} == {
            "mean of passes' means",
            "mean of ranks' means",
        }
    else:
        assert all(abs(weight - 1) < 1e-3 for weights in answer.weights.values() for weight in weights)


@pytest.mark.slow
def test_another_environment_plays_back_the_completions_of_this_one(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nROLLOUT_TEMPERATURE=3 exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    answer = same([sys.executable, LOOP, "6", "2"], against_python=str(interpreter))
    assert answer.same, answer.text
