"""Typed numbers, names and options are read if unambiguous, else refused with the right form."""

import json

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.words import redacted

FIELDS = {"effective_batch": "256", "lr": "0.1"}


def planned(capsys, *options, **fields):
    """The recipe of a plan with fields typed after --set."""
    words = [word for name, text in {**FIELDS, **fields}.items() for word in ("--set", f"{name}={text}")]
    code = main(["plan", *words, "--gpus", "2", "--json", *options])
    out, err = capsys.readouterr()
    return (json.loads(out)["recipe"], "") if code == 0 else (None, err)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dataset_size", "52k", 52_000),
        ("dataset_size", "1_281_167", 1_281_167),
        ("dataset_size", "64e3", 64_000),
        ("dataset_size", "64000.0", 64_000),
        ("parameters", "7B", 7_000_000_000),
        ("lr", "1e-4", 1e-4),
        ("duration", "3 epochs", "3ep"),
        ("duration", "3epochs", "3ep"),
        ("duration", "10000 steps", "10000st"),
        ("duration", "10k steps", "10000st"),
        ("warmup", "2 %", "2%"),
        ("optimizer", "AdamW", "adamw"),
        ("optimizer", "SGD", "sgd"),
        ("optimizer", "torch.optim.SGD", "sgd"),
        ("optimizer", "adamw_torch_fused", "adamw"),
        ("optimizer", "paged_adamw_8bit", "adamw"),
        ("ramp", "64 64 9_765_625", "64 64 9765625"),
        *(("betas", text, (0.9, 0.95)) for text in ("0.9, 0.95", "[0.9, 0.95]", "(0.9; 0.95)")),
    ],
)
def test_unambiguous_values_are_read(capsys, name, text, value):
    known = {"dataset_size": "52000", "seq_len": "512", "duration": "100st"}
    recipe, err = planned(capsys, **{**known, name: text})
    assert recipe is not None, err
    assert getattr(ib.Recipe.of(recipe), name) == value


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("dataset_size", "50.000", "50000 or 50"),
        ("effective_batch", "2.000", "2000 or 2"),
        ("duration", "10.000st", "10000st or 10st"),
        ("dataset_size", "1.281.167", "1281167"),
        ("dataset_size", "50,000", "50000 or 50"),
        ("lr", "0,1", "0.1"),
        ("seq_len", "4k", "4000 or 4096"),
        ("duration", "1T", "1Ttok"),
    ],
)
def test_ambiguous_values_have_the_right_form_beside_them(capsys, name, text, form):
    recipe, err = planned(capsys, **{name: text})
    assert recipe is None
    assert f"{name} must be" in err and repr(text) in err and err.rstrip().endswith(f": write {form}")
    if name not in ("seq_len", "duration"):
        with pytest.raises(ib.InputError, match=f"write {form}"):
            ib.Recipe.of({"effective_batch": 256, "lr": 0.1, name: text})


def test_tables_read_the_same(tmp_path):
    rows = {
        "effective_batch": ["256", "2.000", "256", "256"],
        "lr": ["0.1", "0.1", "1e-4", "0,1"],
        "duration": ["3 epochs", "100st", "10.000st", "10k steps"],
        "dataset_size": ["52k", "50_000", "50000", "50000.0"],
        "optimizer": ["AdamW", "SGD", "adamw_torch", "Lion"],
    }
    plans = ib.plan_fleet(rows, [2], columns=["status", "total_steps", "dataset_size", "reasons"])
    assert plans["status"].tolist() == ["ok", "infeasible", "infeasible", "infeasible"]
    assert plans["total_steps"][0] == 612
    assert plans["dataset_size"].tolist() == [52_000, 50_000, 50_000, 50_000]


def test_a_sequence_length_in_thousands_is_refused_only_where_tokens_are_counted():
    rows = {
        "effective_batch": [96] * 2,
        "lr": [0.1] * 2,
        "seq_len": ["2k"] * 2,
        "duration": ["100st", "1e9tok"],
    }
    assert ib.plan_fleet(rows, [8], columns=["status"])["status"].tolist() == ["ok", "infeasible"]


@pytest.mark.parametrize(
    ("option", "text", "form"),
    [
        ("--memory-gib", "80GB", "74.5058 or 80 (a GiB is 2^30 bytes, a GB 10^9)"),
        ("--max-micro-batch", "2.000", "2000 or 2"),
        ("--gpus", "2.000", "2000 or 2"),
        ("--batch-tolerance", "0,02", "0.02"),
    ],
)
def test_options_have_it_too(capsys, option, text, form):
    recipe, err = planned(capsys, option, text)
    assert recipe is None and f"{option} must be" in err and err.rstrip().endswith(f"write {form}")


def test_a_tensor_is_the_number_that_it_holds():
    torch = pytest.importorskip("torch")
    tensors = ib.Recipe(effective_batch=torch.tensor(64), lr=torch.tensor(0.5))
    assert tensors == ib.Recipe(effective_batch=64, lr=0.5)
    with pytest.raises(ib.InputError, match="effective_batch must be a whole number"):
        ib.Recipe(effective_batch=torch.tensor([1, 2]), lr=0.1)


def test_options_read_units(capsys):
    words = ["--memory-gib", "80 GiB", "--batch-tolerance", "2 %", "--max-micro-batch", "1,024"]
    assert planned(capsys, *words)[0] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "0.1"], "recipe fields go with --set lr=VALUE"),
        (["--learning-rate", "0.1"], "recipe fields go with --set lr=VALUE"),
        (["--effective-batch", "256"], "recipe fields go with --set effective_batch=VALUE"),
        (["-g", "8"], "did you mean '--gpus'?"),
        (["--price", "2"], "did you mean '--price-per-gpu-hour'?"),
        (["--set", "learnin_rate=0.1"], "unknown field 'learnin_rate': did you mean 'lr'?"),
        (["--set", "effective_batch=64,lr=1e-3"],
            "--set effective_batch=64,lr=1e-3 holds two fields: give each field its own: "
            "--set effective_batch=64 --set lr=1e-3"),
        (["--zebra"], "isobatch plan --help all lists every option"),
        (["--rule", "squareroot"], "did you mean 'sqrt'?"),
        (["--to", "hf"], "did you mean 'transformers'?"),
        (["--set", "gpus=32", "--set", "effective_batch=250"],
            "effective_batch 250 is not a multiple of 32 replicas"),
    ],
)  # fmt: skip
def test_a_wrong_word_has_the_right_one_beside_it(capsys, words, message):
    recipe, err = planned(capsys, *words)
    assert recipe is None and message in err and "there are" not in err


def test_no_option_is_named_that_was_not_typed(capsys):
    _, err = planned(capsys, effective_batch="250", gpus="32")
    assert err.startswith("isobatch plan: --set gpus must be")


def test_gpus_are_no_field_of_a_cluster():
    with pytest.raises(ib.InputError, match="gpus is nodes × gpus_per_node"):
        ib.Cluster(gpus=16)


def test_all_duplicates_are_named_at_once():
    jobs = {"job": ["a", "a", "b", "b"], "effective_batch": [256] * 4, "lr": [0.1] * 4}
    with pytest.raises(ib.InputError, match=r"'a'[^$]*'b'"):
        ib.plan_fleet(jobs, [2])


def test_a_secret_does_not_come_out_of_a_path(ran):
    assert "hidden" not in ran(["plan", "--from", "s3://user:hidden@bucket/x.json", "--gpus", "8"], 2).err
    assert redacted("s3:/user:hidden@bucket/x") == "s3:/…@bucket/x"


def test_a_narrow_terminal_shows_the_menu_and_the_curve_whole(capsys, monkeypatch):
    from isobatch.cli.terminal import fitted

    line = "  480 GPUs (24 idle), 1,020 samples (-0.391 %)   68 × 1 × 15         --gpus 480 --split ragged"
    parts = fitted(line, 80)
    assert max(map(len, parts)) <= 80 and "".join(parts).split() == line.split()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["schedule", "cosine", "--lr", "0.000123456", "--steps", "100000", "--plot"]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80
