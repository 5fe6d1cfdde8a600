"""What a word becomes: parameters, computations, the splitting at blanks. What depends on the run becomes a mark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells.pieces import (
    ALWAYS_SET,
    Field,
    halves,
    has_braces,
    has_tilde,
    is_many,
    stripped,
)
from isobatch.tools.shells.state import Marks, Shell, Value, is_known, is_mark, is_several
from isobatch.tools.shells.sums import Computation, NotComputed
from isobatch.tools.shells.tree import Output, Parameter, Sum, Text, Word

_BLANKS = " \t\n"
_WHOLE_NUMBERS = re.compile(r"(?:0|[1-9]\d{0,8})(?: [-+*/%] (?:0|[1-9]\d{0,8})){0,2} ")
"""For `expr`: without a sign or a leading zero, which it reads otherwise than bash, nor so large that bash's 64 bits overflow."""
_GLOB = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_STEPPED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_MOST_CHARACTERS = 1 << 20


class Piece(NamedTuple):
    """A part of a word, expanded: several values where it is an array; `splits` where blanks in it end a word."""

    values: list[str]
    quoted: bool
    splits: bool


class Expansion:
    """Expands words with the variables as they are at this point of the script.

    Attributes:
        defaults: by name, the values that `${NAME:-value}` gave where the environment has none.
        read: the names whose value was asked for.
        may_fail: whether a computation depends on the run, which bash may refuse there.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks, self.defaults = marks, dict[str, str]()
        self.read = set[str]()
        self.may_fail = False

    def text(self, shell: Shell, word: Word) -> str:
        """The word as one text, as an assignment takes it."""
        found = "".join(" ".join(piece.values) for piece in self._pieces(shell, word))
        if has_tilde(word, assigned=True):
            return self.marks.mark(found, "which begins with a home")
        return self._bounded(found)

    def fields(self, shell: Shell, word: Word) -> list[str]:
        """The words that it becomes: none, one or several."""
        if has_tilde(word) or has_braces(word):
            whole = "".join(" ".join(piece.values) for piece in self._pieces(shell, word))
            return [self.marks.mark(whole, "whose ~ or {…} bash replaces")]
        done: list[str] = []
        field = Field()
        for piece in self._pieces(shell, word):
            for number, value in enumerate(piece.values):
                if number:
                    done += self._ended(field)
                    field = Field()
                if not piece.splits:
                    field.add(value, piece.quoted)
                    continue
                if value[:1] in _BLANKS and value:
                    done += self._ended(field)
                    field = Field()
                for place, part in enumerate(value.split()):
                    if place:
                        done += self._ended(field)
                        field = Field()
                    field.add(part, False)
                if value[-1:] in _BLANKS and value.strip(_BLANKS):
                    done += self._ended(field)
                    field = Field()
        return done + self._ended(field)

    def _ended(self, field: Field) -> list[str]:
        if field.text is None:
            return []
        if _GLOB.search(field.bare):
            return [self.marks.mark(field.text, "which may name files")]
        return [self._bounded(field.text)]

    def _bounded(self, text: str) -> str:
        if len(text) > _MOST_CHARACTERS:
            return self.marks.mark("a text", f"longer than {_MOST_CHARACTERS:,} characters")
        return text

    def pattern(self, shell: Shell, word: Word) -> re.Pattern[str] | None:
        """A pattern of `case`, `[[ == ]]` and `${NAME%…}`; None where it is not known, or has more than `*` and `?`."""
        out = ""
        for piece in self._pieces(shell, word):
            text = " ".join(piece.values)
            if not is_known(text) or (not piece.quoted and set(text) & set("[\\()~")):
                return None
            if piece.quoted:
                out += re.escape(text)
            else:
                out += "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in text)
        if out.count(".*") > 3:
            return None
        return re.compile(out, re.DOTALL)

    def _output(self, shell: Shell, part: Output) -> str:
        """What `expr` prints of whole numbers, which is what `$(( … ))` is of these; a mark of any other command."""
        text = self.text(shell, part.sum) if part.sum else ""
        if (reason := self.marks.reason(text)) is not None:
            return self.marks.mark(part.source, f"in which {reason.source} is not known")
        if not _WHOLE_NUMBERS.fullmatch(text) or "/ 0 " in text or "% 0 " in text:
            return self.marks.mark(part.source, "which is known only in the run")
        return self.computed(shell, (Text(text, True),), part.source)

    def computed(self, shell: Shell, inside: Word, source: str) -> str:
        """The number of an arithmetic expression, as a text."""
        text = self.text(shell, inside)
        missing = [self.marks.reason(text)]

        def get(name: str) -> str:
            value = self.value(shell, name, f"${name}")
            value = (value[0] if value else "") if isinstance(value, tuple) else value or ""
            if not is_known(value):
                missing.append(self.marks.reason(value))
                raise NotComputed
            return value

        def put(name: str, value: str) -> None:
            if name in ALWAYS_SET or isinstance(shell.variables.get(name), tuple):
                raise NotComputed
            shell.variables[name] = value

        try:
            if missing[0] is not None:
                raise NotComputed
            return str(Computation(text, get, put).value())
        except (NotComputed, RecursionError):
            reason = next((it for it in missing if it is not None), None)
            if reason is None:
                raise InputError(f"{source} cannot be computed") from None
            mark = self.marks.mark(source, f"in which {reason.source} is not known")
            self.may_fail = True
            for one, two in _STEPPED.findall("".join(char for char in text if not is_mark(char))):
                shell.variables[one or two] = mark
            return mark

    def value(self, shell: Shell, name: str, source: str) -> Value:
        """Of a variable; a mark where only the run knows it."""
        self.read.add(name)
        if name in ALWAYS_SET:
            return self.marks.mark(source, "which only the run knows")
        if name not in shell.variables:
            return self.marks.mark(source, "which is not set in this file")
        return shell.variables[name]

    def _pieces(self, shell: Shell, word: Word, inner: bool = False) -> Iterator[Piece]:
        """Args: inner: the word is the default of an unquoted parameter, which is split as its value would be."""
        for part in word:
            if isinstance(part, Text):
                yield Piece([part.text], part.quoted, inner and not part.quoted)
            elif isinstance(part, Sum):
                value = self.computed(shell, part.inside, part.source)
                yield Piece([value], part.quoted, not part.quoted)
            elif isinstance(part, Output):
                yield Piece([self._output(shell, part)], part.quoted, not part.quoted)
            else:
                yield from self._parameter(shell, part)

    def _parameter(self, shell: Shell, part: Parameter) -> Iterator[Piece]:
        if not shell.splits and not part.quoted:
            yield Piece(
                [self.marks.mark(part.source, "which is split by an IFS of the script's own")], False, True
            )
            return
        values = self._values(shell, part)
        operator = part.operator
        if operator.lstrip(":") in ("-", "=", "+") and operator:
            yield from self._alternative(shell, part, values)
            return
        if operator.lstrip(":") == "?" and operator:
            if values is None or (operator == ":?" and not any(values)):
                raise InputError(f"{part.source} ends the script: it has no value")
            self.may_fail |= not all(map(is_known, values))
        if values is None:
            values = [] if is_many(part) else [""]
        if operator and operator.lstrip(":") != "?":
            values = self._changed(shell, part, values)
        if is_many(part) == "*" and part.quoted:
            values = [" ".join(values)]
        yield Piece(values, part.quoted, not part.quoted)

    def _values(self, shell: Shell, part: Parameter) -> list[str] | None:
        """What the name has; None where it has nothing."""
        held = self._held(shell, part)
        if held is None:
            return None
        many = is_many(part)
        if isinstance(held, str):
            if many or part.place is None:
                return [held]
            held = (held,)
        if many:
            return list(held) or None
        if part.place is None:
            return [held[0]] if held else None
        place = self.computed(shell, part.place, part.source)
        if not is_known(place):
            return [place]
        number = int(place)
        before = held if number < 0 else held[: number + 1]
        if any(map(is_several, before)):
            return [self.marks.mark(part.source, "which is not known")]
        return [held[number]] if -len(held) <= number < len(held) else None

    def _held(self, shell: Shell, part: Parameter) -> Value:
        name, arguments = part.name, shell.arguments
        if name.isdigit() and name != "0":
            if arguments is None:
                return self.marks.mark(part.source, "which is an argument of the script")
            if any(map(is_several, arguments[: int(name)])):
                return self.marks.mark(part.source, "which is not known")
            return arguments[int(name) - 1] if int(name) <= len(arguments) else None
        if name in ("@", "*"):
            return (
                self.marks.mark(part.source, "which are arguments of the script")
                if arguments is None
                else arguments
            )
        if name == "#":
            return (
                self.marks.mark(part.source, "which only the run knows")
                if arguments is None or any(map(is_several, arguments))
                else str(len(arguments))
            )
        if not name.isidentifier() or part.operator == "!":
            return self.marks.mark(part.source, "which only the run knows")
        return self.value(shell, name, part.source)

    def _alternative(self, shell: Shell, part: Parameter, values: list[str] | None) -> Iterator[Piece]:
        """`${NAME:-argument}`, `:=` and `:+`. Of what the environment may have, that it has nothing is taken, and remembered."""
        takes_empty, argument = not part.operator.startswith(":"), part.argument or ()
        sign = part.operator.lstrip(":")
        is_set = values is not None and (takes_empty or any(values))
        if values is not None and self._is_outside(shell, part):
            is_set = False
            self.defaults[part.name] = self.text(shell.copy(), argument) if sign != "+" else ""
        elif is_set and all(is_mark(char) for value in values or () for char in value):
            yield Piece([self.marks.mark(part.source, "which is not known")], part.quoted, not part.quoted)
            return
        if is_set == (sign == "+"):
            if has_tilde(argument, assigned=True):
                lost = self.marks.mark(part.source, "in which bash replaces a ~")
                if sign == "=":
                    shell.variables[part.name] = lost
                yield Piece([lost], part.quoted, not part.quoted)
            elif sign == "=":
                yield Piece([self._assigned(shell, part, argument)], part.quoted, not part.quoted)
            else:
                yield from self._pieces(shell, argument, inner=not part.quoted)
                if not argument:
                    yield Piece([""], part.quoted, not part.quoted)
        elif sign != "+":
            if is_many(part) == "*" and part.quoted:
                values = [" ".join(values or ())]
            yield Piece(values or [""], part.quoted, not part.quoted)
        elif part.quoted:
            yield Piece([""], True, False)

    def _assigned(self, shell: Shell, part: Parameter, argument: Word) -> str:
        if not part.name.isidentifier() or part.place is not None:
            raise InputError(f"{part.source} cannot be assigned")
        value = shell.variables[part.name] = self.text(shell, argument)
        return value

    def _is_outside(self, shell: Shell, part: Parameter) -> bool:
        """Whether only the environment, or who starts the script, could give it a value."""
        if part.name.isdigit() or part.name in ("@", "*"):
            return part.name != "0" and shell.arguments is None
        return part.name.isidentifier() and part.name not in ALWAYS_SET and part.name not in shell.variables

    def _changed(self, shell: Shell, part: Parameter, values: list[str]) -> list[str]:
        """`${#NAME}`, `${NAME%…}`, `${NAME/…/…}`, `${NAME:1:2}`, `${NAME^^}`."""
        operator, many = part.operator, bool(is_many(part))
        lost = [self.marks.mark(part.source, "which is not known")]
        if not all(map(is_known, values)) or not all(value.isascii() for value in values):
            return lost
        if operator == "length":
            return [str(len(values) if many else len(values[0]))]
        if operator in ("^^", ",,") and not part.argument:
            return [value.upper() if operator == "^^" else value.lower() for value in values]
        if operator in ("#", "##", "%", "%%"):
            pattern = self.pattern(shell, part.argument or ())
            return lost if pattern is None else [stripped(value, pattern, operator) for value in values]
        if operator in ("/", "//", "/#", "/%"):
            return self._replaced(shell, part, values) or lost
        if operator == ":" and not many:
            return self._cut(shell, part, values[0]) or lost
        return lost

    def _replaced(self, shell: Shell, part: Parameter, values: list[str]) -> list[str] | None:
        old, new = halves(part.argument or ())
        pattern, text = self.pattern(shell, old), self.text(shell, new)
        if pattern is None or pattern.fullmatch("") or not is_known(text) or set(text) & set("&\\~"):
            return None
        anchored = {"/#": rf"\A(?:{pattern.pattern})", "/%": rf"(?:{pattern.pattern})\Z"}.get(
            part.operator, pattern.pattern
        )
        count = 0 if part.operator == "//" else 1
        return [re.sub(anchored, lambda _: text, value, count=count, flags=re.DOTALL) for value in values]

    def _cut(self, shell: Shell, part: Parameter, value: str) -> list[str] | None:
        if any(isinstance(it, Text) and it.quoted for it in part.argument or ()):
            raise InputError(f"{part.source} is not read")
        text = self.text(shell, part.argument or ())
        first, colon, length = text.partition(":")
        if "?" in text or not is_known(text):
            return None
        bounds = [self.computed(shell, (Text(it, True),), part.source) for it in (first, length or "0")]
        if not all(map(is_known, bounds)):
            return None
        start, last = int(bounds[0]), int(bounds[1])
        start = start + len(value) if start < 0 else start
        if start < 0 or start > len(value):
            return [""]
        end = len(value) if not colon else start + last if last >= 0 else len(value) + last
        return [value[start:end]] if end >= start else None
