"""Recipes in files: what is written is read again, YAML is read as people expect it, and no file can grow."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isobatch as ib
from isobatch.files.formats import read_fields
from isobatch.files.texts import write_fields

RECIPES = {
    "small": ib.Recipe(effective_batch=256, lr=2e-5),
    "whole": ib.Recipe(
        effective_batch=256, lr=1e-10, optimizer="sgd", momentum=0.9, betas=(0.9, 0.95), duration="90ep",
            dataset_size=5120,
        drop_last="loader", batch_norm=True, warmup="10%", schedule="multistep(30ep, 60ep)", precision="bf16",
            min_lr=1e-12,
    ),
    "unequal": ib.Recipe.from_gpus(gpus=4, batch_per_gpu=[32, 32, 16, 16], lr=0.1),
    "schedule": ib.Recipe(effective_batch=8, lr=0.1, duration="90st", schedule=ib.schedules.torch.StepLR(0.1,
        30)),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml", ".yml"])
@pytest.mark.parametrize("name", RECIPES)
def test_saved_recipes_are_read(name, suffix, tmp_path):
    if suffix.startswith(".y"):
        pytest.importorskip("yaml", reason="PyYAML comes with the extra 'fleet'")
    path = tmp_path / f"job{suffix}"
    RECIPES[name].save(path)
    assert ib.Recipe.load(path) == RECIPES[name]


TEXTS = (
    st.text(max_size=20)
    | st.text("a. \n\t:-'\"#", max_size=8)
    | st.sampled_from([".5", "no", "1:30", "2e-5", "010"])
)
VALUES = TEXTS | st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans()
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(TEXTS, NESTED, max_size=4))
def test_any_value_is_saved(suffix, fields, tmp_path):
    """A formatter's 2e-5 and a reader's must be the same number, and a text such as "2e-5" must stay a
    text.
    """
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    write_fields(tmp_path / f"job{suffix}", fields)
    assert read_fields(tmp_path / f"job{suffix}") == fields


def read(tmp_path, suffix, text):
    path = tmp_path / f"job{suffix}"
    path.write_text(text)
    return ib.Recipe.load(path)


def test_changes_win(tmp_path):
    RECIPES["small"].save(tmp_path / "job.toml")
    assert ib.Recipe.load(tmp_path / "job.toml", {"lr": 0.5}).lr == 0.5


def test_yaml_numbers_are_numbers(tmp_path):
    pytest.importorskip("yaml")
    recipe = read(
        tmp_path,
        ".yaml",
        "effective_batch: 256\nlr: 2e-5\nmin_lr: 1E-6\nbatch_norm: false\nbetas: [0.9, .95]\n",
    )
    assert (recipe.lr, recipe.min_lr, recipe.batch_norm, recipe.betas) == (2e-5, 1e-6, False, (0.9, 0.95))
    assert read(tmp_path, ".yaml", "effective_batch: 0x100\nlr: 1\nseq_len: 0o10\n").seq_len == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("effective_batch: 010\nlr: 0.1\n", "010 may be octal"),
        (
            "effective_batch: 1:30\nlr: 0.1\n",
            "effective_batch must be a whole number .*, got the text '1:30'",
        ),
        ("effective_batch: 8\nlr: 0.1\n\nlr: 0.2\n", "'lr' is listed twice, in line 2 and line 4"),
        ("effective_batch: 8\nlr: .nan\n", "lr must be a finite number above 0, got nan"),
        ("effective_batch: 8\nlr: 0.1\nbatch_norm: yes\n", "batch_norm must be true or false, got 'yes'"),
        ("5: 8\n", "a field's name must be a text, got 5"),
        ("a: !!python/object:os.system x\n", "cannot be read"),
        ("[" * 100_000, "deeper|cannot be read"),
        ("a: &a [*a]\n", "deeper"),
    ],
)
def test_yaml_that_is_no_recipe(tmp_path, text, message):
    pytest.importorskip("yaml")
    with pytest.raises(ib.InputError, match=message) as caught:
        read(tmp_path, ".yaml", text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["schedule", "lr", "ramp"])
def test_a_bomb_of_aliases_stays_small(tmp_path, name):
    pytest.importorskip("yaml")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "\n".join((*lines, "effective_batch: 8", "lr: 0.1", f"{name}: *a9")).replace("lr: 0.1\nlr", "lr")
    start = time.process_time()
    with pytest.raises(ib.InputError) as caught:
        read(tmp_path, ".yaml", text)
    assert len(str(caught.value)) < 2000
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        (".json", '{"lr": ' + "[" * 100_000, "deeper|cannot be read"),
        (".json", '{"lr": 1, "lr": 2}', "'lr' is listed twice"),
        (".json", '{"lr": 1,\n\n"lr" : 2}', "'lr' is listed twice, in line 1 and line 3"),
        (".json", '{"lr": ' + "[" * 100 + "]" * 100 + "}", "deeper"),
        (".toml", "lr = " + "[" * 100_000, "deeper|cannot be read"),
        (".toml", "x = [" + "0," * 200_000 + "]", "more than 200,000 values"),
        (".toml", "#" * 5_000_000, "more than the 4,194,304 bytes"),
        (".txt", "lr = 1", "cannot tell the format: use .toml, .yaml or .json"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, suffix, text, message):
    with pytest.raises(ib.InputError, match=message) as caught:
        read(tmp_path, suffix, text)
    assert len(str(caught.value)) < 1000


def test_every_bad_field_is_said(tmp_path):
    with pytest.raises(ib.InputError) as caught:
        read(tmp_path, ".json", json.dumps({"effective_batch": 0, "lr": "0.1", "optimizer": "adma"}))
    assert set(caught.value.fields) == {"effective_batch", "lr", "optimizer"}
    for part in ("got 0", "got the text '0.1'", "did you mean 'adam'", "job.json"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"optimiser": "sgd"}, "did you mean 'optimizer'"),
        ({"learning_rate": 0.1}, "did you mean 'lr'"),
        ({"per_device_train_batch_size": 8}, "did you mean 'batch_per_gpu'"),
        ({"global_batch_size": 8}, "did you mean 'effective_batch'"),
        ({"batch_per_gpu": 8}, r"batch_per_gpu belongs to Recipe.from_gpus"),
    ],
)
def test_a_field_that_is_none_is_named_with_the_nearest(fields, hint):
    with pytest.raises(ib.InputError, match=hint):
        ib.Recipe(effective_batch=256, lr=0.1, **fields)


def test_missing_fields_are_named_at_once():
    with pytest.raises(ib.InputError) as caught:
        ib.Recipe()
    assert caught.value.fields == ("effective_batch", "lr")
    with pytest.raises(ib.InputError, match="gpus is missing"):
        ib.Recipe.of({"batch_per_gpu": 8, "lr": 0.1})
    with pytest.raises(ib.InputError, match="unknown field 'nodess': did you mean 'nodes'"):
        ib.Cluster(nodess=3)
