"""The bits of a training at several splits over ranks: the SHA of its weights after each optimizer step."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from isobatch.equivalence.commands.command import read_command, start_line
from isobatch.equivalence.commands.runs import Recorded, start_run
from isobatch.equivalence.session import LIMIT, STEPS
from isobatch.equivalence.split import MAX_RANKS, Split
from isobatch.errors import InputError
from isobatch.launch.command_line import require_command

HOW = (
    "train by ElasticRun(…, chunk=N) or survivors(…, chunk=N): a chunk's gradients are added in an order "
    "that does not depend on the ranks"
)


class SameBits(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the weights have the same bits at every split; by split, their SHA after each step."""

    same: bool
    chunks: bool
    splits: dict[str, list[str]]

    @property
    def text(self) -> str:
        """The answer in lines for a terminal."""
        rows = [
            f"  {split.replace('x', ' × ')}  {' '.join(sha[:8] for sha in digests)}"
            for split, digests in self.splits.items()
        ]
        if self.same:
            return "\n".join([f"The same bits at {len(rows)} splits.", "", *rows])
        steps = zip(*self.splits.values(), strict=False)
        first = next((step for step, digests in enumerate(steps) if len({*digests}) > 1), None)
        where = "" if first is None else f" from step {first} on"
        why = (
            "The script trains in chunks, so this is not rounding: ISOBATCH_CHUNK_DIGESTS names the chunk "
            "that differs."
            if self.chunks
            else "Without chunks rounding differs at each split; `isobatch same` says whether more does. For "
            f"equal bits {HOW}."
        )
        return "\n".join([f"Not the same bits{where}.", "", *rows, "", why])


def same_bits(
    command: Sequence[str],
    split: Sequence[str] | None = None,
    *,
    tool: str | None = None,
    steps: int | None = None,
    limit: float = LIMIT,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
) -> SameBits:
    """Compares the bits of a training's weights at splits over ranks, with the same micro-batch.

    Nothing of the script is changed; the arguments are those of `same`.
    """
    require_command(command)
    read = read_command(command, tool=tool)
    splits = [Split.parse(text) for text in split or ()] or [read.default]
    if len(splits) == 1:
        splits += _other_ranks(splits[0])
    batches = {(requested.effective_batch, requested.micro_batch) for requested in splits}
    if len(batches) > 1 or len(splits) == 1:
        listed = ", ".join(map(str, splits))
        text = f"--bits compares splits of one batch with the same micro-batch, got {listed}"
        raise InputError(text, field="--split")
    digests, in_chunks = {}, set()
    with tempfile.TemporaryDirectory(prefix="isobatch-same-") as name:
        for requested in splits:
            folder = Path(name) / str(requested)
            folder.mkdir()
            line, environment = start_line(read, requested, folder, device)
            settings = Recorded(folder=str(folder / "record"), steps=steps or STEPS, bits=True)
            run = start_run(line, environment, settings, requested, limit)
            say(f"{requested}: {run.seconds:.0f} s")
            ranks = [path.read_text().splitlines() for path in (folder / "record").glob("bits-*.txt")]
            if not ranks:
                raise run.no_step(f"the command at {requested}")
            # Ranks that differ have no bits in common: all of theirs are listed.
            digests[str(requested)] = [
                "/".join(sorted({row.split()[0] for row in rows})) for rows in zip(*ranks, strict=False)
            ]
            in_chunks |= {row.split()[1] for rows in ranks for row in rows}
    return SameBits(
        same=len({*map(tuple, digests.values())}) == 1, chunks=in_chunks == {"chunks"}, splits=digests
    )


def _other_ranks(split: Split) -> list[Split]:
    """Returns up to two splits with other numbers of ranks and the same micro-batch."""
    passes = split.ranks * split.accumulation
    counts = [count for count in range(1, MAX_RANKS + 1) if passes % count == 0 and count != split.ranks]
    return [Split(count, passes // count, split.micro_batch) for count in counts[:2]]
