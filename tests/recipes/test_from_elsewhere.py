"""Recipes from objects and dicts; anything else is an InputError with the way out."""

import pickle
from types import SimpleNamespace

import pytest

import isobatch as ib

ARGUMENTS = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "learning_rate": 3e-3,
    "num_train_epochs": 2,
    "lr_scheduler_type": "cosine",
}


class Arguments:
    def to_dict(self):
        return dict(ARGUMENTS)


@pytest.mark.parametrize("source", [ARGUMENTS, Arguments(), [ARGUMENTS]])
def test_settings_that_are_in_no_file(source):
    recipe = ib.Recipe.read(source, gpus=2, dataset_size=3000)
    assert (recipe.effective_batch, recipe.lr, recipe.duration) == (128, 3e-3, "2ep")


def test_the_arguments_of_transformers_themselves(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **ARGUMENTS)
    torch.save(arguments, tmp_path / "training_args.bin")
    for source in (arguments, tmp_path / "training_args.bin"):
        recipe = ib.Recipe.read(source, gpus=1, dataset_size=3000)
        assert (recipe.effective_batch, recipe.lr, recipe.schedule) == (64, 3e-3, "cosine")


class Member:
    """A member of an enumeration, as early releases of Python 3.11 pickle one."""

    def __reduce__(self):
        return getattr, (Arguments, "COSINE")


def test_a_member_pickled_by_its_name(tmp_path):
    saved = SimpleNamespace(**ARGUMENTS | {"lr_scheduler_type": Member()})
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(saved))
    recipe = ib.Recipe.read(tmp_path / "training_args.bin", gpus=1, dataset_size=3000)
    assert recipe.schedule == "cosine"


@pytest.mark.parametrize("source", [8, None, object(), []])
def test_bad_sources(source):
    with pytest.raises(ib.InputError, match="path must be a path"):
        ib.Recipe.read(source, gpus=1)


def test_weights_are_no_configuration(tmp_path):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"PK\x03\x04\x80\x81")
    with pytest.raises(ib.InputError, match="name the checkpoint folder"):
        ib.Recipe.read(file, gpus=1)


def test_from_gpus_names_what_is_missing():
    with pytest.raises(ib.InputError) as caught:
        ib.Recipe.from_gpus(gpus=1, batch_size=16, lr=1e-3)
    assert "batch_per_gpu is missing" in str(caught.value) and "'batch_size'" in str(caught.value)
    with pytest.raises(ib.InputError, match="gpus is missing"):
        ib.Recipe.from_gpus(lr=1e-3)


@pytest.mark.parametrize("name", ["batch_size", "train_batch_size", "batch"])
def test_a_batch_of_whom_is_asked(name, tmp_path):
    both = r"write effective_batch \(.*over all GPUs\), or batch_per_gpu and gpus"
    with pytest.raises(ib.InputError, match=both):
        ib.Recipe(lr=0.1, **{name: 64})
    (tmp_path / "a.toml").write_text(f"{name} = 64\nlr = 0.1\n")
    with pytest.raises(ib.InputError, match=both):
        ib.Recipe.load(tmp_path / "a.toml")


def test_settings_in_tables_are_no_recipe(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "cfg.yaml"
    file.write_text(
        "model:\n  d_model: 32\ntrain:\n  batch_size: 16\n  grad_accum: 4\n  lr: 3e-3\n  epochs: 2\n"
    )
    with pytest.raises(ib.InputError, match=r"settings are in tables \(model, train\)") as caught:
        ib.Recipe.load(file)
    message = str(caught.value)
    assert "did you mean" not in message
    assert (
        "train.batch_size 16 × train.grad_accum 4 × the GPUs of that run" in message
        and "duration=2ep" in message
    )


@pytest.mark.parametrize("name", ["train", "model", "mine", "data"])
def test_a_far_name_is_not_suggested(name):
    with pytest.raises(ib.InputError) as caught:
        ib.Recipe(effective_batch=8, lr=0.1, **{name: 1})
    assert "'duration'" not in str(caught.value)


def test_a_far_tool_is_not_suggested():
    from isobatch.tools.detect import reader

    with pytest.raises(ib.InputError, match="unknown tool 'mine': there are transformers"):
        reader("mine")
