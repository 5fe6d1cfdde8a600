"""Models and their trainers, asked in this process."""

import functools
import os
import random
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch.equivalence import laws

torch = pytest.importorskip("torch")
steps = pytest.importorskip("isobatch.equivalence.steps")
models = pytest.importorskip("isobatch.equivalence.models")

GENERATOR = torch.Generator().manual_seed(5)
ROWS = [(torch.randn(4, generator=GENERATOR), torch.randn((), generator=GENERATOR)) for _ in range(8)]
BY_ACCUMULATION = ("1x4x2", "1x2x4")
SPLITS = (*BY_ACCUMULATION, "2x1x4")


class Net(torch.nn.Module):
    """A regression whose subclasses have another loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)

    def forward(self, x, y):
        return self.loss(self.head(self.layer(x).tanh())[:, 0], y)

    def loss(self, out, y):
        return (out - y).square().mean()


def with_loss(loss):
    return type("Other", (Net,), {"loss": lambda self, out, y: loss(out, y)})()


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def language(transformers):
    """Makes a language model's head and eight rows with unequal tokens."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    def make(name, config, **further):
        torch.manual_seed(0)
        settings = getattr(transformers, config)(vocab_size=40, **sizes, **further)
        return getattr(transformers, name)(settings)

    rows = []
    for count in (12, 5, 9, 3, 6, 11, 7, 10):
        ids = torch.randint(3, 40, (12,), generator=GENERATOR)
        labels = ids.clone()
        labels[count:] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return make, rows


def causes(same):
    return {split.split: [cause.name for cause in split.causes] for split in same.splits}


def test_a_mean_over_the_rows_is_the_same_at_every_split():
    same = ib.same_model(Net(), ROWS)
    assert same.same and same.cause is None
    assert [*same.weights] == [*SPLITS]
    assert all(weights == pytest.approx([1] * 8, abs=1e-4) for weights in same.weights.values())
    same.require()


def test_a_sum_over_a_pass_is_named_with_its_weights():
    same = ib.same_model(with_loss(lambda out, y: (out - y).square().sum()), ROWS)
    assert same.cause.name == "summed loss"
    assert same.weights["1x4x2"] == pytest.approx([0.25] * 8, rel=1e-3)
    assert same.weights["2x1x4"] == pytest.approx([0.5] * 8, rel=1e-3)
    with pytest.raises(AssertionError, match="summed loss"):
        same.require()


class Contrastive(Net):
    def forward(self, x, y):
        out = self.layer(x)
        return torch.nn.functional.cross_entropy(out @ out.T, torch.arange(len(x)))


def test_equal_rows_tell_samples_that_act_on_one_another_from_a_wrong_scale():
    assert causes(ib.same_model(Contrastive(), ROWS)) == {split: ["coupled samples"] for split in SPLITS}


class Penalized(Net):
    def forward(self, x, y):
        return super().forward(x, y) + self.layer.weight.square().sum() / len(x)


def test_a_term_with_a_scale_of_its_own_is_named_by_its_law():
    same = ib.same_model(Penalized(), ROWS)
    assert causes(same) == {split: ["a term of the loss"] for split in SPLITS}
    assert same.cause.text.startswith("× ranks × accumulation for a term of the loss")


def test_a_model_that_refuses_a_row_alone_is_weighed_by_pairs():
    def by_own_count(out, y):
        if len(out) == 1:
            raise ValueError("one row")
        counts = 1.0 + (y > 0)
        return counts @ (out - y).square() / counts.sum()

    def by_the_others(out, y):
        if len(out) == 1:
            raise ValueError("one row")
        return ((out - y).square() * (out - out.mean()).exp()).mean()

    same = ib.same_model(with_loss(by_own_count), ROWS, splits=BY_ACCUMULATION)
    assert causes(same) == {split: ["mean of passes' means"] for split in BY_ACCUMULATION} | {
        "2x1x4": ["mean of ranks' means"]
    }
    assert len(same.weights["1x4x2"]) == 4
    same = ib.same_model(with_loss(by_the_others), ROWS, splits=BY_ACCUMULATION)
    assert causes(same) == {split: ["coupled samples"] for split in SPLITS}


def test_blurred_weights_of_rows_are_one_factor_where_equal_rows_say_so():
    results = ib.same_model(with_loss(lambda out, y: (out - y).square().sum()), ROWS, ranks=1).splits
    blurred = msgspec.structs.replace(
        results[0],
        weights=[4.01, *[4.0] * 7],
        causes=[laws.break_of("own_units", "from 4 in one pass to 4.01 in another")],
    )
    law = results[0].causes[0]
    named = models._add_factor(blurred, 4.0, law, None)
    assert [cause.name for cause in named.causes] == [law.name]
    unequal = msgspec.structs.replace(blurred, weights=[4.1, *[4.0] * 7])
    assert models._add_factor(unequal, 4.0, law, None) == unequal


def test_rows_that_are_alike_leave_their_weights_unknown():
    weighed = with_loss(lambda out, y: ((out - y).square() * y.abs()).sum() / y.abs().sum())
    same = ib.same_model(weighed, [ROWS[0], ROWS[0], *ROWS[2:]], ranks=1)
    assert causes(same) == {split: ["weights not known"] for split in BY_ACCUMULATION}


def test_batch_norm_is_a_coupling_with_its_name():
    net = Net()
    net.head = torch.nn.Sequential(torch.nn.BatchNorm1d(3), net.head)
    assert ib.same_model(net, ROWS).cause.name == "batch norm"


def test_draws_of_a_forward_are_made_alike():
    net = Net()
    net.loss = lambda out, y: (out + torch.rand_like(out) - y).square().mean()
    same = ib.same_model(net, ROWS, ranks=1)
    assert same.same and "the same random numbers for every sample" in same.changes


@pytest.mark.parametrize("factor", [float("nan"), 0.0])
def test_a_gradient_that_is_not_finite_or_0_is_never_the_same(factor):
    with pytest.raises(ib.InputError, match="nothing was compared"):
        ib.same_model(with_loss(lambda out, y: (out - y).square().mean() * factor), ROWS)


def test_a_split_alone_that_is_not_finite_is_named():
    def loss(out, y):
        return (out - y).square().mean() * (1.0 if len(out) > 2 else float("nan"))

    same = ib.same_model(with_loss(loss), ROWS, ranks=1)
    assert causes(same)["1x4x2"] == ["gradient not finite"] and not same.same


def test_a_rank_that_fails_is_said_and_not_passed_over():
    def loss(out, y):
        if torch.distributed.is_initialized():
            raise ValueError("no ranks here")
        return (out - y).square().mean()

    with pytest.raises(ib.InputError, match="ValueError: no ranks here.*ranks=1"):
        ib.same_model(with_loss(loss), ROWS)
    assert ib.same_model(with_loss(loss), ROWS, ranks=1).same


def test_ranks_see_a_patch_of_this_process(monkeypatch):
    monkeypatch.setattr(Net, "loss", lambda self, out, y: (out - y).square().sum())
    assert ib.same_model(Net(), ROWS).weights["2x1x4"] == pytest.approx([0.5] * 8, rel=1e-3)


def test_nothing_of_the_process_changes():
    net = Net().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    functions = torch.nn.Module.__call__, torch.autograd.backward, torch.randn, torch.nn.functional.dropout
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    threads, hooks = torch.get_num_threads(), dict(steps.optimizers._global_optimizer_pre_hooks)
    ib.same_model(net, ROWS, ranks=1)
    assert functions == (
        torch.nn.Module.__call__,
        torch.autograd.backward,
        torch.randn,
        torch.nn.functional.dropout,
    )
    assert "bernoulli_" not in vars(torch.Tensor)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()
    assert threads == torch.get_num_threads()
    assert hooks == dict(steps.optimizers._global_optimizer_pre_hooks)
    assert not net.training and all(p.grad is None for p in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"rows": ROWS[:1]}, "2 to 16 rows"),
        ({"splits": ["1x2x2"]}, "split 1x2x2 has 4 rows, expected 8"),
        ({"splits": ["2,2,2"]}, "RANKSxACCUMULATIONxMICRO_BATCH"),
        ({"rows": ROWS[:7]}, "7 rows cannot be dealt out to 2 ranks"),
    ],
)
def test_a_wrong_question_is_refused(keywords, message):
    with pytest.raises(ib.InputError, match=message):
        ib.same_model(**{"model": Net(), "rows": ROWS, **keywords})


def test_a_trainer_of_a_causal_model_counts_tokens_over_passes_and_ranks(transformers, language):
    make, rows = language
    model = make("LlamaForCausalLM", "LlamaConfig")
    ib.same_model(model, rows, trainer=transformers.Trainer).require()
    same = ib.same_model(
        model, rows, trainer=transformers.Trainer, arguments={"average_tokens_across_devices": False}
    )
    assert causes(same) == {"1x4x2": [], "1x2x4": [], "2x1x4": ["mean of ranks' means"]}


def test_a_trainer_of_a_masked_model_multiplies_by_the_accumulation(transformers, language):
    make, rows = language
    same = ib.same_model(make("BertForMaskedLM", "BertConfig"), rows, trainer=transformers.Trainer, ranks=1)
    assert causes(same) == {split: ["mean of passes' means"] for split in BY_ACCUMULATION}
    assert "4 × all of it" in same.cause.text and "dropout off" in same.changes
    assert "accepts_loss_kwargs" in same.cause.remedy and same.cause.page.startswith(
        "frameworks/transformers.md"
    )


def test_the_balance_loss_of_experts_is_a_term_with_a_law(transformers, language):
    make, rows = language
    model = make(
        "MixtralForCausalLM",
        "MixtralConfig",
        num_local_experts=4,
        num_key_value_heads=2,
        output_router_logits=True,
        router_aux_loss_coef=1.0,
    )
    same = ib.same_model(model, rows, trainer=transformers.Trainer, ranks=1)
    assert same.cause.name == "a term of the loss" and same.cause.text.startswith("× accumulation")


def test_a_trainer_may_be_an_instance_or_have_its_keywords_bound(transformers, language, tmp_path):
    make, rows = language
    model = make("LlamaForCausalLM", "LlamaConfig")
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, average_tokens_across_devices=False, report_to="none"
    )
    by_instance = ib.same_model(model, rows, trainer=transformers.Trainer(model, arguments))
    bound = functools.partial(transformers.Trainer, data_collator=steps.collate)
    by_binding = ib.same_model(model, rows, trainer=bound, arguments=arguments)
    assert by_instance.cause.name == by_binding.cause.name == "mean of ranks' means"
    assert not [*tmp_path.iterdir()]


def test_a_tiny_model_takes_less_than_2_seconds_of_a_core(transformers, language):
    make, rows = language
    model = make("LlamaForCausalLM", "LlamaConfig")
    ib.same_model(model, rows, trainer=transformers.Trainer)
    began = time.process_time(), sum(os.times()[2:4])
    ib.same_model(model, rows, trainer=transformers.Trainer)
    assert time.process_time() - began[0] + sum(os.times()[2:4]) - began[1] < 2


def test_the_import_of_isobatch_loads_no_torch():
    code = "import sys, isobatch as ib; ib.plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
