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
        operator: such as `:-` or `%%`; `length` for `${#NAME}`; empty for none; `?` for a form that is not read.
    """

    name: str
    place: Word | None
    operator: str
    argument: Word | None
    quoted: bool
    source: str


class Sum(NamedTuple):
    """`$(( … ))`, with what is expanded inside before it is computed."""

    inside: Word
    quoted: bool
    source: str


class Output(NamedTuple):
    """`$( … )`, a backquoted command, or `<( … )`: known only by running it, but for `$(expr … )` of whole numbers.

    Attributes:
        sum: what `expr` is given, where that is all of the command.
    """

    quoted: bool
    source: str
    sum: tuple[Text | Parameter, ...] = ()


Part = Text | Parameter | Sum | Output
Word = tuple[Part, ...]


class Assignment(NamedTuple):
    """`NAME=word`, `NAME+=word`, `NAME[place]=word`, `NAME=(words)`."""

    name: str
    place: Word | None
    append: bool
    value: Word | tuple[Word, ...]
    array: bool


@dataclass
class Document:
    """A here-document. Its lines follow those of the command, so that its text comes later than its name."""

    end: str
    expands: bool
    tabs: bool
    text: str = ""


class Simple(NamedTuple):
    """A command with the assignments before it; of `export` and its like the arguments may be assignments."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    document: Document | None


class Condition(NamedTuple):
    """`[[ … ]]`, as its words, operators among them."""

    line: int
    words: tuple[Word, ...]


class Computed(NamedTuple):
    """`(( … ))`."""

    line: int
    inside: Word


class Chain(NamedTuple):
    """Pipelines joined by `&&` and `||`: the operator before each, empty before the first."""

    items: tuple[tuple[str, Pipeline], ...]
    background: bool
    source: str
    line: int


class Pipeline(NamedTuple):
    """Commands joined by `|`."""

    commands: tuple[Command, ...]
    negated: bool


class Choice(NamedTuple):
    """`if`, with the source of each condition; the last one's is None for `else`."""

    line: int
    branches: tuple[tuple[Block | None, Block, str], ...]


class Selection(NamedTuple):
    """`case`: for each branch its patterns, its commands, and how it ends: `;;`, `;&` or `;;&`."""

    line: int
    word: Word
    branches: tuple[tuple[tuple[Word, ...], Block, str], ...]
    source: str


class Repetition(NamedTuple):
    """`for` (a name and words; None: the script's own arguments), `while` or `until` (a condition)."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    condition: Block | None
    until: bool
    body: Block
    source: str


class Grouping(NamedTuple):
    """`{ … }`, or `( … )`, which changes no variable outside."""

    body: Block
    apart: bool


class Function(NamedTuple):
    """A function of the script."""

    name: str
    body: Command


Command = Simple | Condition | Computed | Choice | Selection | Repetition | Grouping | Function
Block = tuple[Chain, ...]
