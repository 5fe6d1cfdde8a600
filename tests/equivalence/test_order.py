"""Two made-up runs are compared in order: each row is met by one change, and names both values."""

import msgspec
import numpy as np
import pytest

from isobatch.equivalence.details import InputTensor, StepDetails
from isobatch.equivalence.order.comparison import ORDER, compare_in_order
from isobatch.equivalence.records import LoaderDraws, PassSamples, RankStep, RecordedStep, Recording
from isobatch.equivalence.split import Split

NAMES = ["model.layers.0.weight", "model.head.bias"]
SHAPES = [[4, 2], [3]]
SIZES = [8, 3]


def tensor(name: str, entries: list[int], rows: int = 2) -> InputTensor:
    return InputTensor(name, [rows, len(entries) // rows], "int64", entries=entries)


INPUTS = [
    tensor("input_ids", [5, 6, 7, 0, 8, 9, 0, 0]),
    tensor("labels", [5, 6, 7, -100, 8, 9, -100, -100]),
    InputTensor("pixels", [2, 3], "float32", sums=[0.5, -1.0], first=[0.1]),
]


def run(steps: int = 2, **changes) -> Recording:
    """Makes a run of two rows a step; `changes` are of the record, the details, the pass or the sketches."""
    recorded = {}
    weights = np.arange(1.0, 12.0)
    for number in range(steps):
        details = StepDetails(
            shapes=SHAPES,
            dtypes=changes.get("dtypes", ["float32", "float32"]),
            norms=changes.get("norms", [2.0, 1.0]),
            trained=changes.get("trained", [True, True]),
            dropouts=changes.get("dropouts", {"0.1": 4}),
            state={},
            random={},
            settings=changes.get("settings", {"Arguments.rate": 0.1}) if not number else {},
        )
        taken = PassSamples(
            changes.get("hashes", ["a", "b"]),
            [],
            loss=changes.get("loss", 4.0),
            inputs=changes.get("inputs", INPUTS),
        )
        record = RankStep(
            optimizer=0,
            step=number,
            rank=0,
            kind=changes.get("kind", "AdamW"),
            world=1,
            groups=changes.get(
                "groups",
                [{"lr": changes.get("lr", 0.1), "weight_decay": changes.get("decay", 0.0), "tensors": 2}],
            ),
            names=changes.get("names", NAMES),
            sizes=SIZES,
            entries=SIZES,
            own=[True, True],
            half=False,
            passes=[taken],
            norms=[(1.0, changes.get("clip", 1.0))],
            drawn=[
                LoaderDraws(
                    "rows",
                    steps,
                    8,
                    changes.get("rows", [[0, 1], [2, 3]]),
                    changes.get("rows", [[0, 1], [2, 3]]),
                    [0],
                )
            ],
            notes=changes.get("notes", {}),
            seconds=1.0 + number,
            versions={"torch": "2"},
            details=details,
        )
        gradient = changes.get("gradient", 1.0) * np.linspace(1.0, 2.0, 11)
        before = weights * changes.get("weights", 1.0) - number * 0.01 * gradient
        after = before - 0.01 * changes.get("update", 1.0) * gradient
        recorded[0, number] = RecordedStep(
            [record], gradient[None], before[None], np.zeros((0, 11)), after[None]
        )
    return Recording(Split(1, 1, 2), 1.0, recorded)


def swapped(name: str, entries: list[int]) -> list[InputTensor]:
    return [tensor(name, entries) if part.name == name else part for part in INPUTS]


CHANGES = {
    "rows": ({"rows": [[0, 3], [2, 1]], "hashes": ["a", "c"]}, "rows of the dataset"),
    "tokens": ({"inputs": swapped("input_ids", [5, 6, 7, 0, 8, 4, 0, 0])}, "row 1 of input_ids of pass 0"),
    "labels": ({"inputs": swapped("labels", [5, 6, -100, -100, 8, 9, -100, -100])}, "(3 and 2 of them)"),
    "mask": ({"inputs": [*INPUTS, tensor("attention_mask", [1, 1, 1, 0, 1, 1, 0, 0])]}, "attention_mask"),
    "inputs": (
        {"inputs": [*INPUTS[:2], InputTensor("pixels", [2, 3], "float32", sums=[0.6, -1.0])]},
        "pixels",
    ),
    "parameters": ({"names": ["model.layers.0.weight", "model.score.bias"]}, "the tensors that are trained"),
    "weights": ({"weights": 2.0, "norms": [4.0, 2.0]}, "the weights differ by 1"),
    "dtype": ({"dtypes": ["bfloat16", "float32"]}, "the dtype of 1 of 2 tensors"),
    "precision": ({"notes": {"off": {"bf16 off": 1}}}, "the precision of a pass"),
    "rate": ({"lr": 0.2}, "the learning rate"),
    "groups": ({"decay": 0.1}, "weight_decay of all tensors"),
    "loss": ({"loss": 8.0}, "the loss of pass 0 is × 2"),
    "gradient": ({"gradient": 1.5}, "the gradient is × 1.5"),
    "clip": ({"clip": 0.5}, "clipping"),
    "update": ({"update": 1.1}, "the change of the weights differs by 0.1"),
}


def test_each_row_has_a_change_that_meets_it():
    assert [*CHANGES] == [row.id for row in ORDER]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_by_its_row_and_what_comes_before_it_is_the_same(name):
    changes, text = CHANGES[name]
    comparison = compare_in_order(run(), run(**changes), run())
    row = comparison.first
    assert row is not None and row.id == name and text in row.text, comparison
    assert row.step == 0 and len(row.values) == 2 and row.values[0] != row.values[1]
    before = [state for state in comparison.rows[1 : comparison.rows.index(row)] if state.id != "mask"]
    assert all(state.holds for state in before) and not comparison.same


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inputs": [*INPUTS, tensor("attention_mask", [1] * 8)]},  # a mask of ones is none
        {"inputs": swapped("input_ids", [5, 6, 7, 0, 0, 0, 8, 9, 0, 0, 0, 0])},  # padded further
        {"names": ["base.model.layers.0.weight", "base.model.head.bias"]},  # inside another model
        {"names": ["module.body.0.weight", "module.head.bias"]},
        {"inputs": [tensor("ids", INPUTS[0].entries), *INPUTS[1:]]},  # under another name
        {"inputs": [*(tensor(name, INPUTS[0].entries) for name in ("ids", "copy")), *INPUTS[2:]]},
        {"inputs": INPUTS[:1]},  # labels that stay in the loop
        {"groups": [{"tensors": 1, "lr": 0.1, "weight_decay": 0.0}] * 2},
        {"gradient": 1 + 1e-6},
        {"rows": [[4, 5], [6, 7]]},  # the same content under other numbers
        {"kind": "AdamW", "settings": {"Arguments.output_dir": "there"}},
    ],
)
def test_harmless_changes_are_the_same(changes):
    comparison = compare_in_order(run(), run(**changes), run())
    assert comparison.same, comparison


def test_a_frozen_tensor_of_an_optimizer_is_none_of_the_training():
    """One side's optimizer has the frozen tensor, the other's has the trained one alone."""
    both, alone = run(trained=[True, False]), run(trained=[True, False])
    for event, step in alone.steps.items():
        record = step.first
        details = msgspec.structs.replace(
            record.details, shapes=SHAPES[:1], dtypes=["float32"], norms=[2.0], trained=[True]
        )
        groups = [record.groups[0] | {"tensors": 1}]
        record = msgspec.structs.replace(
            record, names=NAMES[:1], sizes=[8], entries=[8], own=[True], groups=groups, details=details
        )
        arrays = {name: getattr(step, name)[:, :8] for name in ("gradients", "weights", "after", "changes")}
        alone.steps[event] = msgspec.structs.replace(step, ranks=[record], **arrays)
    assert compare_in_order(both, alone, both).same, compare_in_order(both, alone, both)


def test_settings_that_differ_are_listed_and_places_are_not():
    second = run(lr=0.2, settings={"Arguments.rate": 0.2, "Arguments.output_dir": "b"})
    assert compare_in_order(run(), second, run()).settings == {"Arguments.rate": [0.1, 0.2]}


def test_a_later_step_that_differs_is_named_by_its_number():
    first, second = run(), run()
    late = second.steps[0, 1]
    record = msgspec.structs.replace(late.first, groups=[{"lr": 0.05, "weight_decay": 0.0, "tensors": 2}])
    second.steps[0, 1] = msgspec.structs.replace(late, ranks=[record])
    row = compare_in_order(first, second, run()).first
    assert row is not None and (row.id, row.step, row.values) == ("rate", 1, ["0.1", "0.05"])


def test_nothing_is_called_the_same_that_was_not_measured():
    assert compare_in_order(run(), run(), run(gradient=2.0)).same is None  # two starts of one side differ
    assert compare_in_order(run(loss=None), run(loss=None), run()).same is None
    assert compare_in_order(run(), run(steps=1), run()).same is False


def test_rows_of_a_restart_are_counted_from_its_own_first_step():
    """A loader that begins an epoch anew has drawn, by its fourth step, the rows of the fourth step."""
    rows = [[0, 1], [2, 3], [4, 5], [6, 7]]
    whole, again = run(steps=4, rows=rows), run(steps=4, rows=rows)
    moved = msgspec.structs.replace(again, steps={(0, 2 + at): step for (_, at), step in again.steps.items()})
    assert whole.rows((0, 2), own=True) == [[[4, 5]]] and moved.rows((0, 2), own=True) == [[[0, 1]]]
