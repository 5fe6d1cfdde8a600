"""A script is asked along a mesh: its tensors are placed in those without, and faults are named by layer."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from isobatch.equivalence.meshes.ask import read_across
from isobatch.equivalence.meshes.causes import MeshStep, _dimension, _name, _norm_cause, _partial
from isobatch.equivalence.meshes.shards import Tensor, Unplaced, place
from isobatch.equivalence.result import Same
from isobatch.equivalence.session import same
from isobatch.errors import InputError
from isobatch.report.same_page import same_page

LOOP = Path(__file__).with_name("mesh_loop.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{world}"]
WHOLE = np.arange(32, dtype=np.float32).reshape(8, 4)


def tensor(name: str, weights) -> Tensor:
    weights = np.asarray(weights, dtype=np.float32)
    return Tensor(name, weights, weights * 2, None)


def ask(fault: str) -> Same:
    return same([*TORCHRUN, str(LOOP), "--tp", "{tp}", "--fault", fault], across="tp=2")


@pytest.mark.parametrize(("axis", "order"), [(0, [0, 1]), (1, [1, 0])])
def test_shards_are_placed_by_their_weights_in_any_order(axis, order):
    shards = np.split(WHOLE, 2, axis)
    parts = place([tensor("a.weight", WHOLE)], [[tensor("a.weight", shards[at])] for at in order])
    for part in parts:
        assert np.array_equal(WHOLE.reshape(-1)[part.places], part.tensor.weights.reshape(-1))


def test_a_bias_of_zeros_stands_where_its_weight_does():
    whole = [tensor("a.weight", WHOLE), tensor("a.bias", np.zeros(8))]
    halves = [[tensor("a.weight", half), tensor("a.bias", np.zeros(4))] for half in np.split(WHOLE, 2)[::-1]]
    places = [part.places.tolist() for part in place(whole, halves) if part.name == "a.bias"]
    assert places == [[4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_stage_may_count_its_layers_anew():
    whole = [
        tensor(f"layers.{n}.{p}", w)
        for n in (0, 1)
        for p, w in (("up", WHOLE + 50 * n), ("norm", np.ones(4)))
    ]
    stages = [whole[:2], [tensor(f"layers.0.{p}", w) for p, w in (("up", WHOLE + 50), ("norm", np.ones(4)))]]
    assert [part.name for part in place(whole, stages)] == [t.name for t in whole]


@pytest.mark.parametrize(
    ("ranks", "match"),
    [
        ([[tensor("a", WHOLE[:4])], [tensor("a", WHOLE[:4])]], "a: 16 of 32 entries are on no rank"),
        ([[tensor("a", WHOLE + 1)]], "starts with weights that the run without does not have"),
        ([[tensor("a", np.split(WHOLE, 2)[0]), tensor("c", np.ones(3))]], "c is none of the run without"),
    ],
)
def test_a_tensor_without_a_certain_place_is_refused(ranks, match):
    with pytest.raises(Unplaced, match=match):
        place([tensor("a", WHOLE)], ranks)


@pytest.mark.parametrize(
    ("factor", "name"), [(2, "× tp"), (0.25, "1/cp"), (8, "× tp × cp"), (0.5, "1/tp"), (1.7, ""), (0, "")]
)
def test_a_factor_is_named_by_dimensions(factor, name):
    assert _dimension(factor, {"tp": 2, "cp": 4, "dp": 1}, 1e-3)[1] == name


def test_parts_of_a_sum_are_told_from_another_gradient():
    whole = [tensor("a", WHOLE)]
    ranks = place(whole, [[tensor("a", WHOLE)] for _ in "12"])
    share = np.random.default_rng(0).random(WHOLE.shape, dtype=np.float32)
    halves = [
        part._replace(tensor=part.tensor._replace(gradient=WHOLE * s))
        for part, s in zip(ranks, (share, 1 - share), strict=True)
    ]
    assert "the sum over ranks 0, 1 is right" in _partial(halves, WHOLE.reshape(-1).astype(float), 1e-3, 0.0)
    assert _partial(halves, np.square(WHOLE.reshape(-1).astype(float)), 1e-3, 0.0) == ""


@pytest.mark.parametrize(
    ("law", "gradients"),
    [
        ("mesh_multiplies", [2 * WHOLE, 2 * WHOLE]),
        ("mesh_divides", [WHOLE / 2, WHOLE / 2]),
        ("mesh_factor", [3 * WHOLE, 3 * WHOLE]),
        ("mesh_factor", [WHOLE, 5 * WHOLE]),
        ("partial_sum", [WHOLE * (WHOLE < 9), WHOLE * (WHOLE >= 9)]),
        ("part_without_gradient", [0 * WHOLE, 0 * WHOLE]),
        ("mesh_gradient", [WHOLE[::-1], WHOLE[::-1]]),
        ("not_finite", [WHOLE * np.nan, WHOLE]),
    ],
)
def test_a_tensor_with_another_gradient_has_one_law(law, gradients):
    held = [[Tensor("a", WHOLE, gradient.astype(np.float32), None)] for gradient in gradients]
    target = WHOLE.reshape(-1).astype(float)
    difference = _name("a", place([tensor("a", WHOLE)], held), target, {"tp": 2}, 1e-3, 100.0)
    assert difference.law == law


@pytest.mark.parametrize(
    ("law", "norms"),
    [
        ("norm_of_shards", [3.0, 4.0]),
        ("norm_of_copies", [5.0, 5.0]),
        ("mesh_norm", [7.0, 7.0]),
        (None, [4.5, 4.5]),
    ],
)
def test_a_norm_is_told_by_what_each_rank_holds(law, norms):
    ranks = [SimpleNamespace(clips=[(n, 1.0)], held_norm=h) for n, h in zip(norms, (3.0, 4.0), strict=True)]
    whole = SimpleNamespace(steps={(0, 0): SimpleNamespace(first=SimpleNamespace(clips=[(4.5, 1.0)]))})
    run = SimpleNamespace(steps={(0, 0): SimpleNamespace(ranks=ranks)})
    cause = _norm_cause(MeshStep({"tp": 2}, run, []), whole, 1e-3)
    assert (cause and cause.id) == law


@pytest.mark.parametrize(
    ("across", "words", "match"),
    [
        ("tp", ["{world}", "{tp}"], "expected DIMENSION=RANKS"),
        ("zz=2", ["{world}"], "at least one of tp, pp, cp"),
        ("dp=2", ["{world}"], "at least one of tp, pp, cp"),
        ("tp=2", ["{world}"], "needs {tp} in the command"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(across, words, match):
    with pytest.raises(InputError, match=match):
        read_across(across, words)


def test_a_right_script_is_the_same_and_says_what_was_measured():
    answer = ask("none")
    assert answer.same and {row.id: row.holds for row in answer.measured} == dict.fromkeys(
        ("dimension", "weights", "gradient", "norm", "update"), True
    )
    assert "The same training at 1 mesh" in answer.text and answer.across == {"dp": 1, "tp": 2}
    page = same_page(answer)
    assert [section.title for section in page.sections] == ["What was measured", "All figures"]
    assert page.headlines[0].label == "meshes that differ" and "split" not in page.lead.partition(".")[0]
    assert page.sections[-1].tables[0].caption == "Each mesh beside the run without"


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("partial", "a partial sum that is not reduced: norm.weight, norm.bias"),
        ("shards", "norm without the other ranks' shards"),
    ],
)
def test_a_fault_is_named_by_layer(fault, name):
    answer = ask(fault)
    assert answer.same is False and [cause.name for cause in answer.splits[0].causes] == [name]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "name"), [("times", "× tp"), ("rate", "another learning rate")])
def test_a_factor_of_all_tensors_is_named(fault, name):
    answer = ask(fault)
    assert answer.same is False and answer.splits[0].causes[0].name == name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("unused", "nothing shows that the script uses {tp}"), ("unseeded", "does not have")],
)
def test_incomparable_meshes_have_no_verdict(fault, reason):
    answer = ask(fault)
    assert answer.same is None and reason in answer.text
