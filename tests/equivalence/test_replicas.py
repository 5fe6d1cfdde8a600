"""Ranks that share samples are one replica, on invented recordings: nothing is started."""

import msgspec
import numpy as np
import pytest

from isobatch.equivalence.meshes.replicas import find_replicas, join_replicas
from isobatch.equivalence.records import LoaderDraws, RankStep, RecordedStep, Recording, as_passes
from isobatch.equivalence.split import Split
from isobatch.errors import InputError

RECORD = {
    **{"optimizer": 0, "step": 0, "kind": "SGD", "groups": [{"lr": 0.1}], "half": False, "seconds": 1.0},
    **{"names": ["weight"], "sizes": [2], "entries": [2], "own": [True]},
    **{"norms": [], "notes": {}, "versions": {}},
}
"""The record of every rank."""


def run(text: str, rows: list[int], *, mesh=None, weights=None, names=None) -> Recording:
    """A run of one step, its ranks with a row each: `rows` of the dataset, `mesh` by rank."""
    ranks = []
    for rank, row in enumerate(rows):
        drawn = LoaderDraws("data", 1, 8, [[row]], [[row]])
        record = {
            **{"rank": rank, "world": len(rows), "drawn": [msgspec.to_builtins(drawn)]},
            **{"mesh": (mesh or {}).get(rank, {}), "names": [names[rank]] if names else ["weight"]},
            "passes": [{"hashes": [str(row)], "tokens": []}],
        }
        ranks.append(msgspec.convert(RECORD | record, RankStep))
    whole = np.tile([3.0, 4.0], (len(rows), 1)) if weights is None else np.array(weights)
    further = [whole[rank : rank + 1] for rank in range(1, len(rows))]
    step = RecordedStep(ranks, whole, whole, whole[:1], whole, further)
    return Recording(Split.parse(text), 1.0, {(0, 0): step})


MESH = {rank: {"dp": (rank // 2, 2), "tp": (rank % 2, 2)} for rank in range(4)}


def test_ranks_with_the_same_rows_in_a_mesh_are_one_replica():
    recording = run("2x1x1", [5, 5, 6, 6], mesh=MESH)
    replicas = find_replicas(recording)
    assert replicas.ranks == [[0, 1], [2, 3]]
    step = join_replicas(recording, replicas).last
    assert [record.world for record in step.ranks] == [2, 2]
    assert [samples.hashes for record in step.ranks for samples in record.passes] == [["5"], ["6"]]
    assert step.gradients.tolist() == step.after.tolist() == [[3, 4, 3, 4]] * 2
    assert step.first.names == ["weight", "weight"] and step.changes.tolist() == [[3, 4, 3, 4]]


def test_two_processes_for_each_gpu_are_grouped_without_a_mesh_whatever_their_order():
    replicas = find_replicas(run("2x1x1", [5, 6, 5, 6]))
    assert replicas.ranks == [[0, 2], [1, 3]]
    assert replicas.deal([[7], [8]]) == [[7], [8], [7], [8]]


def test_stages_of_a_pipeline_are_put_together():
    stages = run("1x1x1", [5, 5], names=["first", "second"], weights=[[1.0, 2.0], [8.0, 9.0]])
    step = join_replicas(stages, find_replicas(stages)).last
    assert step.first.names == ["first", "second"] and step.weights.tolist() == [[1, 2, 8, 9]]


def test_ranks_that_draw_the_same_rows_by_mistake_stay_apart():
    assert find_replicas(run("2x1x1", [5, 5])).ranks == [[0], [1]]


def test_a_mesh_inside_of_the_ranks_that_were_asked_for_is_no_fault_of_the_training():
    with pytest.raises(InputError, match="a mesh with tp 2: expected 4 replicas. .*start 2 × {gpus} proc"):
        find_replicas(run("4x1x1", [5, 5, 6, 6], mesh=MESH))


def test_more_processes_than_were_asked_for_with_rows_of_their_own_are_named():
    with pytest.raises(InputError, match="4 processes ran at 2x1x1, and are 4 replicas: expected 2 replicas"):
        find_replicas(run("2x1x1", [5, 6, 7, 8]))


def test_an_engine_whose_ranks_hold_parts_of_the_weights_cannot_be_asked():
    with pytest.raises(InputError, match="each rank's SGD holds another part of the weights"):
        find_replicas(run("2x1x1", [5, 6], names=["parameter 0"] * 2, weights=[[1.0, 2.0], [8.0, 9.0]]))


def test_steps_of_one_sample_are_passes_of_one_step():
    recording = run("1x1x1", [5])
    steps = {(0, number): step for number, step in enumerate([recording.last, recording.last])}
    joined = as_passes(msgspec.structs.replace(recording, steps=steps))
    assert str(joined.split) == "1x2x1" and len(joined.last.first.passes) == 2
    assert joined.last.changes.tolist() == [[3, 4], [3, 4]] and joined.last.gradients.tolist() == [[3, 4]]
