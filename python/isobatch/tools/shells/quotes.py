"""Quotes, continuations and expansions of a word, character by character."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NoReturn

from isobatch.errors import InputError
from isobatch.tools.shells.tree import Output, Parameter, Part, Sum, Text, Word

META = " \t\n;&|()<>"
"""What ends a word."""
MAX_DEPTH = 60
_SPECIAL = "@*#?-$!0123456789"
_OPERATORS = (
    ":-", ":=", ":?", ":+", "-", "=", "?", "+", "%%", "%", "##", "#", "//", "/#", "/%", "/", "^^", "^", ",,", ",", ":", "@",
)  # fmt: skip
PLACEHOLDER = re.compile(r"<[A-Za-z_][\w ./-]*>(?=[ \t\n]|$)")
"""`<your_path>`, as people write what is to be filled in; to bash two redirections."""
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_EXPR = re.compile(
    r"""\$\(\s*expr((?:\s+(?:0|[1-9]\d*|\$\w+|\$\{\w+\}|"\$\w+"|[-+/%]|\\\*|'\*'|"\*"))+)\s*\)"""
)
_CODE = re.compile(r"[0-7]{1,3}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}")


class WordReader:
    """Reads words at a place in a text. The parser of commands builds on it, as `$( … )` has commands in a word."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.breaks = [place for place, char in enumerate(text) if char == "\n"]
        self.first = line

    @property
    def line(self) -> int:
        """Of the place, from 1."""
        return self.first + bisect_right(self.breaks, self.at - 1)

    def fail(self, what: str) -> NoReturn:
        """Refuses the script."""
        raise InputError(f"line {self.line}: {what}")

    def join(self) -> None:
        """Skips continuations: a backslash at the end of a line."""
        while self.text.startswith("\\\n", self.at):
            self.at += 2

    def char(self, ahead: int = 0) -> str:
        """The character at the place; empty behind the last."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def step(self, by: int = 1) -> None:
        """Goes on, over continuations too."""
        self.at += by
        self.join()

    def commands_inside(self) -> None:
        """Reads the commands of `$( … )`, up to its bracket."""
        raise NotImplementedError

    def word(self) -> Word:
        """Reads a word; empty where none begins here."""
        return self.parts(META)

    def parts(self, stop: str, quoted: bool = False, document: bool = False) -> Word:
        """Reads up to one of the characters in `stop`, without it.

        Args:
            quoted: inside double quotes, where only `$`, a backquote and a backslash have a meaning.
            document: of a here-document, in which a double quote has none either.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"expansions stand more than {MAX_DEPTH} deep in each other")
        out: list[Part] = []
        self.join()
        while (char := self.char()) and not (char in stop and not self._is_inside(stop)):
            if char == "\\":
                out.append(self._escape(quoted, document))
            elif char == "'" and not quoted:
                out.append(Text(self._until("'"), True))
            elif char == '"' and not document:
                out += self._double_quotes()
            elif char == "$":
                out += self._dollar(quoted)
            elif char == "`":
                out.append(self._backquotes(quoted))
            elif char in "<>" and stop == META:
                out.append(self._process(PLACEHOLDER.match(self.text, self.at)))
            else:
                out.append(Text(char, quoted))
                self.step()
        self.depth -= 1
        return _joined(out)

    def _is_inside(self, stop: str) -> bool:
        """Whether a `<` or a `>` belongs to the word: `<( … )`, or a placeholder."""
        return stop == META and (
            self.text.startswith(("<(", ">("), self.at) or bool(PLACEHOLDER.match(self.text, self.at))
        )

    def _escape(self, quoted: bool, document: bool) -> Text:
        following = self.char(1)
        legal = "$`\\" if document else '$`"\\}'
        if not following or (quoted and following not in legal):
            self.step()
            return Text("\\", True)
        if quoted and following == "}":
            # Only inside ${ … } it escapes the bracket; in plain quotes the backslash stays.
            self.fail("a bracket behind a backslash in quotes is not read")
        self.step(2)
        return Text(following, True)

    def _until(self, end: str) -> str:
        """Reads plain characters up to the end of a quote."""
        last = self.text.find(end, self.at + 1)
        if last < 0:
            self.fail(f"a quote {end} is not closed")
        found = self.text[self.at + 1 : last]
        self.at = last
        self.step()
        return found

    def _double_quotes(self) -> Word:
        self.step()
        inside = self.parts('"', quoted=True)
        if self.char() != '"':
            self.fail('a quote " is not closed')
        self.step()
        return inside or (Text("", True),)

    def _backquotes(self, quoted: bool) -> Output:
        first = self.at
        self.at += 1
        while self.char() and self.char() != "`":
            self.at += 2 if self.char() == "\\" else 1
        if not self.char():
            self.fail("a backquote is not closed")
        self.step()
        return Output(quoted, self.text[first : self.at])

    def _process(self, placeholder: re.Match[str] | None) -> Output:
        first = self.at
        if placeholder:
            self.at = placeholder.end()
            return Output(False, placeholder[0])
        self.step(2)
        self.commands_inside()
        return Output(False, self.text[first : self.at])

    def _dollar(self, quoted: bool) -> Word:
        first = self.at
        self.step()
        char = self.char()
        if char == "'" and not quoted:
            return (Text(self._ansi(), True),)
        if char == '"' and not quoted:
            return self._double_quotes()
        if char == "(":
            self.step()
            if self.char() == "(" and (inside := self.sum_inside()) is not None:
                return (Sum(inside, quoted, self.text[first : self.at]),)
            self.commands_inside()
            source = self.text[first : self.at]
            return (Output(quoted, source, _expr(source)),)
        if char == "{":
            self.step()
            return (self._braces(first, quoted),)
        if char == "[":
            self.fail("$[ … ] is not read: write $(( … ))")
        if char and char in _SPECIAL:
            self.step()
            return (Parameter(char, None, "", None, quoted, self.text[first : self.at]),)
        name = self._name()
        if name:
            return (Parameter(name, None, "", None, quoted, f"${name}"),)
        alone = self.text[first - 1 : first] in ("", " ", "\t", "\n") and self.char() in ("", " ", "\t", "\n")
        if not quoted and not alone:
            self.fail(
                "a bare $ in a word is not read: put it in single quotes"
            )  # after $NAME bash does not split then
        return (Text("$", quoted),)

    def _name(self) -> str:
        name = ""
        while (
            (char := self.char())
            and char.isascii()
            and (char.isalpha() or char == "_" or (name and char.isdigit()))
        ):
            name += char
            self.step()
        return name

    def _braces(self, first: int, quoted: bool) -> Parameter:
        """`${ … }` behind its bracket."""
        counts = self.char() == "#" and self.char(1) not in ("}", "")
        if counts:
            self.step()
        indirect = self.char() == "!" and self.char(1) not in "}:-+=?%#/"
        if indirect:
            self.step()
        name = self._name() or self._special()
        index = None
        if self.char() == "[" and name:
            self.step()
            begin = self.at
            index = self.parts("]", quoted=True)
            if not self.text[begin : self.at].strip() or set("\"'") & set(self.text[begin : self.at]):
                self.fail("an index must be a plain number, @ or *")
            self._expect("]")
        operator = "length" if counts else next((it for it in _OPERATORS if self._ahead(it)), "")
        argument = None
        if operator and not counts:
            if self.text.startswith("\\\n", self.at + len(operator)):
                self.fail("a line that goes on behind ${NAME and a sign is not read")
            self.step(len(operator))
            inside_quotes = quoted and operator.lstrip(":") in ("-", "=", "?", "+")
            argument = self.parts("}", quoted=inside_quotes)
            if operator == ":" and not argument:
                self.fail("a place is missing behind ${NAME:")
        self._expect("}")
        if not name:
            self.fail(f"{self.text[first : self.at]} has no name")
        source = self.text[first : self.at]
        plain = name.isidentifier() or ((name.isdigit() or name in ("@", "*")) and index is None)
        if not plain and (operator or index):
            self.fail(f"{source} is not read")
        if operator == "@" and argument not in [
            (Text(it, quoted),) for quoted in (True, False) for it in "UuLQEPAKak"
        ]:
            self.fail(f"{source} is not read")
        return Parameter(name, index, "!" if indirect else operator, argument, quoted, source)

    def _special(self) -> str:
        digits = ""
        while self.char().isdigit():
            digits += self.char()
            self.step()
        if digits or not self.char() or self.char() not in _SPECIAL:
            return digits
        char = self.char()
        self.step()
        return char

    def _ahead(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _expect(self, char: str) -> None:
        if self.char() != char:
            self.fail(f"{char} is missing behind ${{")
        self.step()

    def sum_inside(self) -> Word | None:
        """Reads `( … ))` of a computation, from its second bracket; None, and nothing is read, where it is none."""
        first, inside, open_brackets = self.at, list[Part](), 0
        self.step()
        while True:
            inside += self.parts("()'", quoted=True)
            char = self.char()
            if char == "'":
                self.fail("a quote ' in a computation is not read")
            if char == "(":
                open_brackets += 1
            elif not char or (not open_brackets and self.char(1) != ")"):
                self.at = first
                return None
            elif not open_brackets:
                self.step(2)
                return _joined(inside)
            else:
                open_brackets -= 1
            inside.append(Text(char, True))
            self.step()

    def _ansi(self) -> str:
        """`$'…'`, with escapes as in C."""
        self.at += 1
        out = ""
        while (char := self.char()) != "'":
            if not char:
                self.fail("a quote $' is not closed")
            self.at += 1
            out += self._ansi_escape() if char == "\\" else char
        self.step()
        return out

    def _ansi_escape(self) -> str:
        char = self.char()
        if char in _ESCAPES:
            self.at += 1
            return _ESCAPES[char]
        code = _CODE.match(self.text, self.at)
        if code is None:
            if char in ("c", "x", "u", "U"):
                self.fail(f"\\{char} in $'…' is not read")
            return "\\"
        self.at = code.end()
        number = int(code[0], 8) if code[0][0].isdigit() else int(code[0][1:], 16)
        if not 0 < number < (0x80 if code[0][0] not in "uU" else 0xD800):
            self.fail(f"\\{code[0]} in $'…' is not read")
        return chr(number)


def _expr(source: str) -> tuple[Text | Parameter, ...]:
    """The words of `$(expr 16 / $GPUS)`, as an expression; none of another command."""
    found = _EXPR.fullmatch(source)
    if found is None:
        return ()
    parts: list[Text | Parameter] = []
    for word in found[1].split():
        plain = word.strip("'\"\\{}")
        name = plain.strip("${}")
        parts.append(
            Parameter(name, None, "", None, True, f"${name}") if plain.startswith("$") else Text(plain, True)
        )
        parts.append(Text(" ", True))
    return tuple(parts)


def _joined(parts: list[Part]) -> Word:
    """Characters that follow each other, quoted alike, as one text."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            out[-1] = Text(last.text + part.text, part.quoted)
        else:
            out.append(part)
    return tuple(out)
