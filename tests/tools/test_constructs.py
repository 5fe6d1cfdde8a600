"""Each construct of a script's training is read, or asked about with `isobatch doctor -- COMMAND` offered.

`bench/scripts_run.py` runs the same scripts: what is read there is what runs.
"""

import pytest

import isobatch as ib
from isobatch.errors import InputError
from isobatch.tools.constructs import CALLBACKS
from tools.loops import scripts

SCRIPTS = dict(scripts())
KNOWN = {"gpus": 1, "duration": "100st", "schedule": "constant"}
ASKED = {
    "accumulation": (
        "accelerate: declared alone, accelerate: assigned later, accelerate: modulo, "
        "accelerate: modulo or the end, accelerate: a range, accelerate: chunks, accelerate: continue, "
        "accelerate: a counter, accelerate: two functions, accelerate: a class, accelerate: no_sync, "
        "accelerate: batches in a list, accelerate: a closure, lightning: assigned later, "
        "lightning: scheduler of accumulation, lightning: a list of callbacks, lightning: manual, "
        "lightning: two optimizers, trainer: own training_step, trainer: num_steps inside"
    ),
    "batch_per_gpu": (
        "loader: sampler of batches, loader: by a function, loader: by the environment, trainer: own loader, "
        "trainer: set by setattr, trainer: a patched method, trainer: a library's subclass"
    ),
    "lr": (
        "optimizer: two rates, optimizer: a list of groups, optimizer: a group more, optimizer: defaults, "
        "optimizer: a subclass, lightning: groups, trainer: assigned later, trainer: set with, "
        "trainer: replaced, trainer: own optimizer, trainer: an optimizer given, "
        "trainer: an optimizer class given, trainer: a callback"
    ),
}
"""The scripts whose construct is not read, by the field that is asked for."""
READ = {
    "accelerate: accumulate": (32, 1e-3, 0.01),
    "accelerate: plugin": (16, 1e-3, 0.01),
    "accelerate: by the module": (16, 1e-3, 0.01),
    "loader: positional": (8, 1e-3, 0.01),
    "loader: batch sampler": (8, 1e-3, 0.01),
    "loader: computed": (16, 1e-3, 0.01),
    "loader: keywords": (6, 1e-3, 0.01),
    "loader: without a size": (1, 1e-3, 0.01),
    "optimizer: adam": (8, 4e-4, 0.0),
    "optimizer: decay for one part": (8, 1e-3, 0.1),
    "optimizer: keywords": (8, 3e-4, 0.2),
    "lightning: accumulation": (32, 1e-3, 0.01),
    "lightning: batch sampler": (8, 1e-3, 0.01),
}
"""Samples in a step, learning rate and decay of some that are."""
QUESTIONS = [(name, field) for field, names in ASKED.items() for name in names.split(", ")]


@pytest.mark.parametrize(("name", "field"), QUESTIONS)
def test_a_construct_that_is_not_read_is_asked_about(name, field, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPTS[name])
    with pytest.raises(InputError, match=rf"give {field} a value|--set {field}=") as raised:
        ib.Recipe.read(file, **KNOWN)
    assert "isobatch doctor -- COMMAND" in str(raised.value)


@pytest.mark.parametrize("name", READ)
def test_the_recipe_of_a_script_is_its_run(name, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPTS[name])
    recipe = ib.Recipe.read(file, **KNOWN)
    assert (recipe.effective_batch, pytest.approx(recipe.lr), recipe.weight_decay) == READ[name]


@pytest.mark.parametrize("name", CALLBACKS)
def test_each_callback_of_lightning_is_asked_about(name, tmp_path):
    file = tmp_path / "train.py"
    call = f"L.pytorch.callbacks.{name}()" if name[0].isupper() else f"Tuner(trainer).{name}(net)"
    file.write_text(SCRIPTS["lightning: plain"].replace("\ntrainer.fit", f"\nthing = {call}\ntrainer.fit"))
    with pytest.raises(InputError, match=rf"{name} \(line \d+\) .*: give \w+ a value"):
        ib.Recipe.read(file, gpus=1, duration="100st")
