"""The published laws: their values by hand, what is left out, and what the command prints."""

import json

import pytest

import isobatch as ib
from isobatch.cli import main


def test_the_laws_give_ranges_with_sources():
    answer = ib.laws(parameters=1e9, tokens=1e11, effective_batch=512)
    assert answer.lr[0] <= min(law.value for law in answer.lr_laws)
    assert answer.lr_laws[0].value == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert answer.lr_laws[2].value == pytest.approx(512 * 4 * 1e11**-0.51)
    assert answer.batch_laws[0].value == pytest.approx(0.58 * 1e11**0.571)
    assert all("arXiv:" in law.source for law in (*answer.lr_laws, *answer.batch_laws, *answer.critical_laws))
    # Zhang et al.'s own example: 745 sequences of 512 tokens at 85 M parameters.
    assert ib.laws(parameters=85e6, tokens=1e9).critical_laws[0].value / 512 == pytest.approx(745, abs=1)
    with pytest.raises(ib.InputError, match="tokens"):
        ib.laws(parameters=1e9, tokens=0)


def test_zhangs_two_forms_agree_where_the_tokens_grow_with_the_model():
    by_size, by_tokens = ib.laws(parameters=1e9, tokens=2e10).critical_laws
    assert round(by_size.value / 512) == 2363 and by_tokens.value / 512 == pytest.approx(2409, rel=1e-3)


def test_without_parameters_there_is_no_learning_rate():
    answer = ib.laws(tokens=1e11)
    assert answer.lr is None and answer.lr_laws == () and len(answer.critical_laws) == 1
    assert "DeepSeek" not in {law.name for law in answer.batch_laws}


def test_another_length_has_both_signs():
    factors = {law.name: law.value for law in ib.laws(tokens=4e10, tuned_tokens=1e10).duration_laws}
    assert factors["Complete(d)P"] == pytest.approx(0.5)
    assert factors["Marin"] == pytest.approx(4**-0.3)
    assert factors["Step Law"] == pytest.approx(4**0.307)
    assert all(law.value == 1 for law in ib.laws(tokens=1e10, tuned_tokens=1e10).duration_laws)


def test_the_batch_as_nanochat_is_an_assumption(ran):
    """Its own comment: where D doubles, B grows by 2^0.383, about 1.3."""
    (law,) = ib.laws(tokens=2e10, tuned_tokens=1e10).batch_duration_laws
    assert (law.name, law.formula) == ("as nanochat", "(D/D0)^0.383")
    assert law.value == pytest.approx(1.304, abs=1e-3)
    assert "karpathy/nanochat" in law.source and law.caution.startswith("an assumption")
    assert ib.laws(tokens=2e10).batch_duration_laws == ()
    text = ran(["estimate", "--laws", "--tokens", "2e10", "--tuned-tokens", "1e10"]).out
    assert "as nanochat*" in text and "Muon (as nanochat)" in text


def test_the_command_prints_what_each_says(capsys, ran):
    text = ran(["estimate", "--laws", "--tokens", "1e11", "--seq-len", "2048"]).out
    assert "Power Lines*" in text and "1.02 M" in text and "500" in text
    assert "within 1.1× of each other" in text
    assert "\n* constants from a secondary account" in text
    assert main(["estimate", "--laws", "--tokens", "1e11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch_spread"] == pytest.approx(1.097, abs=0.001)


def test_bad_input_names_the_option(capsys):
    assert main(["estimate", "--laws", "--tokens", "-1"]) == 2
    assert "--tokens must be a whole number from 1, such as 7e9, got '-1'" in capsys.readouterr().err
    assert main(["estimate", "--laws", "--tokens", "1e11", "--effective-batch", "1e308"]) == 2
    assert "must be a number from 0.001 to 1e+24, got " in capsys.readouterr().err
    with pytest.raises(ib.InputError, match=r"tokens must be a number from 0.001 to 1e\+24, got 5e-324"):
        ib.laws(tokens=5e-324)
    assert main(["estimate", "--laws", "--tokens", "1e11", "--seq-len", "0"]) == 2
    assert "--seq-len must be at least 1, got 0" in capsys.readouterr().err
