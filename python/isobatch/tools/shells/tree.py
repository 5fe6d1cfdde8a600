"""The syntax tree of a shell script: words, commands, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Text(NamedTuple):
    """Characters of a word, without their quotes."""

    text: str
    quoted: bool


class Parameter(NamedTuple):
    """`$NAME`, `${NAME[place]}`, `${NAME:-argument}`.

    Attributes:
        operator: such as `:-`; empty for none; NOT_COMPUTED for a form whose value is not worked out.
    """

    name: str
    place: Word | None
    operator: str
    argument: Word
    quoted: bool
    source: str


class Sum(NamedTuple):
    """`$(( … ))`, or `$(expr … )` of whole numbers, with the expansions inside."""

    inside: Word
    quoted: bool
    source: str


class Output(NamedTuple):
    """`$( … )` or a backquoted command, known only by running it; or a placeholder such as `<your_path>`."""

    quoted: bool
    source: str


Part = Text | Parameter | Sum | Output
Word = tuple[Part, ...]
NOT_COMPUTED = "…"


class Assignment(NamedTuple):
    """`NAME=word`, `NAME+=word`, `NAME=(words)`."""

    name: str
    append: bool
    words: tuple[Word, ...]
    array: bool


@dataclass
class Document:
    """A here-document, or the word behind `<<<`; its text comes later than its name."""

    end: str
    expands: bool
    word: Word = ()


class Simple(NamedTuple):
    """A command with the assignments before it, and the files of its redirections."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    document: Document | None
    files: tuple[Word, ...]


class Redirection(NamedTuple):
    """A compound command redirected to or from files."""

    line: int
    command: Command
    files: tuple[Word, ...]


class Computation(NamedTuple):
    """`(( … ))`, failing where it is 0."""

    line: int
    inside: Sum


class Condition(NamedTuple):
    """A part of `[[ … ]]`, or a pattern of `case`: `-z word`, `word == pattern`, or a word without a sign."""

    line: int
    negated: bool
    sign: str
    words: tuple[Word, ...]


class Pipeline(NamedTuple):
    """Commands joined by `|`."""

    commands: tuple[Command, ...]
    negated: bool


class Chain(NamedTuple):
    """Pipelines joined by `&&` and `||`: the operator before each, empty before the first."""

    items: tuple[tuple[str, Pipeline], ...]
    background: bool
    source: str
    line: int


class Choice(NamedTuple):
    """`if` or `case`: conditions, with their source, and commands; the condition of `else` is None."""

    line: int
    branches: tuple[tuple[Block | None, Block, str], ...]


class Repetition(NamedTuple):
    """`for` (None for the script's own arguments), or `while`; `step` is of `for ((…))`."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    condition: Block
    step: Block
    body: Block
    source: str


class Grouping(NamedTuple):
    """`{ … }`, or `( … )`, without an effect on outer variables."""

    body: Block
    apart: bool


class Function(NamedTuple):
    """A function of the script."""

    line: int
    name: str
    body: Command


Command = Simple | Redirection | Computation | Condition | Choice | Repetition | Grouping | Function
Block = tuple[Chain, ...]
