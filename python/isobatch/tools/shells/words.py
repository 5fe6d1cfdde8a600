"""Words of a shell script: quotes, continuations and expansions, character by character."""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from typing import NoReturn

from isobatch.errors import InputError
from isobatch.tools.shells.state import is_mark
from isobatch.tools.shells.tree import NOT_COMPUTED, Output, Parameter, Part, Sum, Text, Word

META = " \t\n;&|()<>"
"""Characters that end a word."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
MAX_DEPTH = 60
PLACEHOLDER = re.compile(r"<[A-Za-z_](?:[\w ./-]*[\w./-])?>(?=[ \t\n]|$)")
"""`<your_path>`, as people write what is to be filled in; to bash two redirections."""
_PLAIN = re.compile(r"[^\\'\"$`;&|()<>{}\[\] \t\n]+")
_QUOTED = re.compile(r"[^\\'\"$`}\]()\n]+")
_SINGLE, _BACKQUOTES = re.compile(r"'[^']*'"), re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_PREFIX = re.compile(r"#(?=[A-Za-z_@*\d])|!(?=[A-Za-z_])")
_DEFAULT = re.compile(r":?[-+?=]")
_CHANGE = re.compile(r"%%?|##?|/[/#%]?|\^\^?|,,?|:(?![=+?-])|@(?=[A-Za-z]\})")
"""Signs behind which a value is cut or changed."""
SETS = re.compile(r"\+\+|--|(?<![=<>!])=(?!=)")
"""Signs of a computation that sets a variable."""
_EXPR = re.compile(r"\(\s*expr((?:\s+(?:\d+|\"?\$\{?\w+\}?\"?|[-+/%]|\\\*|'\*'|\"\*\"))+)\s*\)")


class LineError(InputError):
    """A refusal with the line of the script."""


class WordReader(ABC):
    """Reads words at a place in a text; `line` is the first one's number."""

    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        self.text, self.first, self.depth = text, line, depth
        self.at = 0
        self.ends = [match.start() for match in re.finditer("\n", text)]

    @abstractmethod
    def commands(self) -> None:
        """Goes over the commands of `$( … )`, and its bracket."""

    @property
    def line(self) -> int:
        """Of the place, from 1."""
        return self.first + bisect_left(self.ends, self.at)

    def fail(self, reason: str) -> NoReturn:
        """Refuses the script."""
        raise LineError(f"line {self.line}: {reason}")

    def char(self, ahead: int = 0) -> str:
        """The character at the place; empty behind the last."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def match(self, pattern: re.Pattern[str]) -> str:
        """Consumes a match at the place; empty for none."""
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def deeper(self, by: int) -> None:
        """Counts the nesting depth."""
        self.depth += by
        if self.depth > MAX_DEPTH:
            self.fail(f"commands and expansions stand more than {MAX_DEPTH} deep in each other")

    def word(self) -> Word:
        """Reads a word; empty where none begins here."""
        return self.parts(META)

    def parts(self, stop: str, quoted: bool = False, document: bool = False) -> Word:
        """Reads up to a character in `stop`, in double quotes (`quoted`) or a here-document (`document`)."""
        self.deeper(1)
        out: list[Part] = []
        while char := self.char():
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif stop == META and (placeholder := self.match(PLACEHOLDER)):
                out.append(Output(False, placeholder))
            elif stop == META and self.text.startswith(("<(", ">("), self.at):
                first = self.at
                self.at += 2
                self.commands()
                out.append(Output(False, self.text[first : self.at]))
            elif char in stop:
                break
            elif char == "\\":
                out.append(self._escape(quoted, document))
            elif char == "'" and not quoted:
                quotation = self.match(_SINGLE) or self.fail("a quote ' is not closed")
                out.append(Text(quotation[1:-1], True))
            elif char == '"' and not document:
                out += self._double_quotes()
            elif char == "$":
                out.append(self._dollar(quoted))
            elif char == "`":
                out.append(Output(quoted, self.match(_BACKQUOTES) or self.fail("a backquote is not closed")))
            else:
                out.append(Text(self.match(_QUOTED if quoted else _PLAIN) or self._one(), quoted))
        self.deeper(-1)
        return _joined(out)

    def _one(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _escape(self, quoted: bool, document: bool) -> Text:
        following = self.char(1)
        if not following or (quoted and following == "}"):
            self.fail("a backslash before the end or before a bracket in quotes is not read")
        if quoted and following not in ("$`\\" if document else '$`"\\'):
            self.at += 1
            return Text("\\", True)
        self.at += 2
        return Text(following, True)

    def _double_quotes(self) -> Word:
        self.at += 1
        inside = self.parts('"', quoted=True)
        if not self.char():
            self.fail('a quote " is not closed')
        self.at += 1
        return inside or (Text("", True),)

    def _dollar(self, quoted: bool) -> Part:
        first = self.at
        self.at += 1
        char = self.char()
        if char == "(":
            if self.char(1) == "(":
                return self.computation(quoted, sets=False)
            if match := _EXPR.match(self.text, self.at):
                inside = type(self)(match[1].replace('"', ""), self.line, self.depth)
                self.at = match.end()
                return Sum(inside.parts(""), quoted, self.text[first : self.at])
            self.at += 1
            self.commands()
            return Output(quoted, self.text[first : self.at])
        if char == "{":
            self.at += 1
            return self._braces(first, quoted)
        name = self.match(NAME)
        if not name and char and char in "@*#?-$!0123456789":
            name = self._one()
        if name:
            if name == "$" and self.char() in ("(", "{", "[", "\\"):
                self.fail("$$ before a bracket is not read: in quotes bash looks for the bracket's end")
            if name.isidentifier() and is_mark(self.char()):
                self.fail("a name that goes on in what only the run knows is not read")
            if name.isidentifier() and re.match(r"\\\n[\w\\]", self.text[self.at : self.at + 3]):
                self.fail("a name that goes on in the next line is not read")
            return Parameter(name, None, "", (), quoted, f"${name}")
        if not quoted or char in ("\\", "[") or is_mark(char):
            self.fail("a bare $, $'…' or $[…] is not read")
        return Text("$", quoted)

    def _braces(self, first: int, quoted: bool) -> Parameter:
        """`${ … }` behind its bracket."""
        changed = bool(self.match(_PREFIX))
        name, place, argument = self.match(_NAMED), None, Word()
        if self.char() == "[" and name.isidentifier():
            self.at += 1
            place = self.parts("]\n\"'`", quoted=True)
            self.at += self.char() == "]"
        if operator := self.match(_DEFAULT):
            argument = self.parts("}'" if quoted else "}", quoted=quoted)
        elif sign := self.match(_CHANGE):
            changed = True
            argument = self.parts("}")
            if sign == ":" and SETS.search(self.text[first : self.at]):
                self.fail("a variable that is set in ${…} is not read")
        closed = self.char() == "}"
        self.at += closed
        source = self.text[first : self.at]
        plain = name.isidentifier() or name.isdigit() or name in ("@", "*")
        if operator and operator[-1] == "=" and not (name.isidentifier() and place is None):
            self.fail(f"{source} is not read: only a variable is set")
        if (
            not (closed and name)
            or ((operator or changed) and not plain)
            or place == ()
            or (operator and changed)
        ):
            self.fail(f"{source if closed else self.text[first : self.at + 2]} is not read")
        if place is not None and SETS.search(source.partition("[")[2].partition("]")[0]):
            self.fail("a variable that is set in an index is not read")
        return Parameter(name, place, NOT_COMPUTED if changed else operator, argument, quoted, source)

    def computation(self, quoted: bool, *, sets: bool) -> Sum:
        """Reads a computation from its first bracket; `sets` tells whether it may set variables."""
        first, depth, inside = self.at, 0, list[Part]()
        self.at += 2
        while True:
            inside += self.parts("()'", quoted=True)
            char = self.char()
            if char not in ("(", ")") or (char == ")" and not depth and self.char(1) != ")"):
                self.fail("a computation (( … )) with a quote in it, or without its end, is not read")
            if char == ")" and not depth:
                break
            depth += 1 if char == "(" else -1
            inside.append(Text(self._one(), True))
        self.at += 2
        if not sets and SETS.search("".join(part.text for part in inside if isinstance(part, Text))):
            self.fail("a variable that is set in a computation is not read: write NAME=$(( … ))")
        return Sum(_joined(inside), quoted, ("" if sets else "$") + self.text[first : self.at])


def _joined(parts: list[Part]) -> Word:
    """Joins adjacent characters of equal quoting into one text."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            out[-1] = Text(last.text + part.text, part.quoted)
        else:
            out.append(part)
    return tuple(out)
