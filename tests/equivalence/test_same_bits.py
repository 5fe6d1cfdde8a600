"""`isobatch same --bits`: the SHA of a script's weights at other numbers of ranks."""

import sys
from pathlib import Path

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the scripts train with torch")

from isobatch.equivalence.bits import same_bits

LOOP = str(Path(__file__).parent / "chunked_loop.py")
COMMAND = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{gpus}"),
    *(LOOP, "--batch", "{effective_batch}", "--chunk", "{micro_batch}"),
]


def test_a_script_in_chunks_has_the_same_bits(ran):
    output = ran(
        ["same", "--bits", "--split", "2x2x2", "--split", "1x4x2", "--steps", "2", "--", *COMMAND]
    ).out
    assert output.startswith("The same bits at 2 splits.")
    assert "2 × 2 × 2" in output and "1 × 4 × 2" in output


def test_without_chunks_the_answer_says_that_rounding_differs_and_how_to_get_equal_bits():
    answer = same_bits([*COMMAND, "--plain"], ["2x2x2", "1x4x2"], steps=2)
    assert not answer.same and not answer.chunks
    assert {len(digests) for digests in answer.splits.values()} == {2}
    assert answer.text.startswith("Not the same bits from step 0 on.")
    assert "rounding differs at each split" in answer.text and "ElasticRun(…, chunk=N)" in answer.text


def test_splits_of_other_micro_batches_are_refused():
    with pytest.raises(ib.InputError, match="with the same micro-batch, got 2x2x2, 1x2x4"):
        same_bits(COMMAND, ["2x2x2", "1x2x4"])


@pytest.mark.parametrize("words", ["--against-command a", "--against a==1", "--resume a", "--across tp=2"])
def test_bits_is_a_question_of_its_own(ran, words):
    error = ran(["same", "--bits", *words.split(), "--", "python", "x.py"], 2).err
    assert f"--bits and {words.split()[0]} are two questions: ask one of them" in error


def test_bits_has_no_page(ran):
    assert (
        "--json prints its answer" in ran(["same", "--bits", "-o", "a.html", "--", "python", "x.py"], 2).err
    )
