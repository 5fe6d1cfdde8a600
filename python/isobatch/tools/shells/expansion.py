"""Expands words: parameters, computations, splitting at blanks. What only the run knows becomes a mark."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells.arithmetic import compute
from isobatch.tools.shells.state import ALWAYS_SET, Marks, Shell, Value, is_known, is_several
from isobatch.tools.shells.tree import NOT_COMPUTED, Assignment, Output, Parameter, Sum, Text, Word
from isobatch.words import printable

_BLANKS = " \t\n"
_GLOB = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.).*\}", re.DOTALL)
_EXPR = re.compile(r" (?:0|[1-9]\d{0,8})(?: [-+*/%] (?:0|[1-9]\d{0,8})){0,2} ?")
"""Arithmetic that `expr` reads as bash does: no sign, no leading zero."""
_SETS = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))\s*", re.ASCII | re.DOTALL)
"""`X++`, `X = 3`, `X += 3`."""
_REPLACED, _FILES = "whose ~ or {…} bash replaces", "which may name files"
"""Why a word is not known that is one at least."""
_MOST_CHARACTERS = 1 << 18


class Piece(NamedTuple):
    """A part of a word, expanded: several values of an array; `splits` where blanks in it end a word."""

    values: list[str]
    quoted: bool
    splits: bool


class Expansion:
    """Expands words with the variables as they are at this point of the script.

    Attributes:
        defaults: by name, the values that `${NAME:-value}` gave where the environment has none.
        read: the names whose value was asked for.
        may_fail: whether something was expanded that bash may refuse in the run.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks, self.defaults = marks, dict[str, str]()
        self.read = set[str]()
        self.may_fail = False

    def text(self, shell: Shell, word: Word) -> str:
        """The word as one text, as an assignment takes it."""
        pieces = list(self._pieces(shell, word))
        text = "".join(" ".join(piece.values) for piece in pieces)
        if any(map(self._is_open, pieces)):
            return self.marks.mark(text, "in which a word is not known")
        return self.marks.mark(text, "in which bash replaces a ~") if _has_tilde(word, word) else text

    def fields(self, shell: Shell, word: Word) -> list[str]:
        """Returns the fields of a word after expansion: none, one or several."""
        bare = "".join(part.text if isinstance(part, Text) and not part.quoted else "_" for part in word)
        if _has_tilde(word, word[:1]) or _BRACES.search(bare):
            return [self.marks.mark(self.text(shell, word), _REPLACED)]
        if len(word) > 1 and any(isinstance(part, Parameter) and part.name == "!" for part in word):
            return [self.marks.mark(self.text(shell, word), "which bash splits only where $! is set")]
        fields: list[tuple[str, str]] = []  # each text, and its unquoted characters: they may name files
        begins = True
        pieces = list(self._pieces(shell, word))
        if len(pieces) > 1 and any(map(self._is_open, pieces)):
            return [self.text(shell, word)]
        for piece in pieces:
            for number, value in enumerate(piece.values):
                blank = piece.splits and value != "" and value[0] in _BLANKS
                begins |= number > 0 or blank
                for part in filter(None, re.split(f"[{_BLANKS}]+", value)) if piece.splits else [value]:
                    before, pattern = ("", "") if begins else fields.pop()
                    fields.append((before + part, pattern + ("_" if piece.quoted else part)))
                    begins = piece.splits
                begins = value[-1] in _BLANKS if piece.splits and value else begins
        return [self.marks.mark(text, _FILES) if _GLOB.search(pattern) else text for text, pattern in fields]

    def pattern(self, shell: Shell, word: Word) -> re.Pattern[str] | None:
        """A pattern of `case` and `[[ == ]]`; None where it is not known, or has more than `*` and `?`."""
        out = ""
        for piece in self._pieces(shell, word):
            text = " ".join(piece.values)
            if not is_known(text) or (not piece.quoted and set(text) & set("[\\()~")):
                return None
            wild = {} if piece.quoted else {"*": ".*", "?": "."}
            out += "".join(wild.get(char, re.escape(char)) for char in text)
        return re.compile(out, re.DOTALL) if out.count(".*") <= 3 else None

    def assigned(self, shell: Shell, assignment: Assignment) -> Value:
        """The value of an assignment: a text, or an array."""
        if assignment.array:
            return tuple(field for word in assignment.words for field in self.fields(shell, word))
        return self.text(shell, assignment.words[0])

    def assign(self, shell: Shell, name: str, value: Value, append: bool = False) -> None:
        """Sets a variable, or adds to it."""
        before = shell.variables.get(name) if append else None
        if append and name not in shell.variables:
            before = self.marks.mark(f"${name}", "which is not set in this file")
        if isinstance(value, tuple):
            value = (*((before,) if isinstance(before, str) else before or ()), *value)
        elif isinstance(before, tuple):
            if any(map(is_several, before[:1])):
                raise InputError(
                    f"{name} is an array of unknown length, and += to its first value is not read"
                )
            value = f"{''.join(before[:1])}{value}"
        else:
            value = f"{before or ''}{value}"
        shell.set(name, value)

    def computed(self, shell: Shell, part: Sum) -> str:
        """The number of an arithmetic expression, as a text."""
        text = self.text(shell, part.inside)
        is_expr = part.source[:1] != "(" and not part.source.startswith("$((")
        reasons = [self.marks.reason(text)]

        def get(name: str, place: int | None) -> str | None:
            content = self.value(shell, name, f"${name}") or ""
            values = content if isinstance(content, tuple) else (content,)
            at = place or 0
            reasons.append(self.marks.reason("".join(values)))
            if any(map(is_several, values[: at + 1] if at >= 0 else values)):
                return None
            return values[at] if -len(values) <= at < len(values) else ""

        try:
            value = None if is_expr and not _EXPR.fullmatch(text) else compute(text, get)
        except ValueError as error:
            if not is_expr:
                raise InputError(f"{printable(part.source, 80)} cannot be computed: {error}") from None
            value = None
        if value is not None and reasons[0] is None:
            return str(value)
        self.may_fail = True
        reason = next((cause for cause in reasons if cause is not None), None)
        why = f"in which {reason.source} is not known" if reason else "which is not worked out"
        return self.marks.mark(part.source, why)

    def compute(self, shell: Shell, part: Sum) -> bool | None:
        """Follows `(( … ))` with its assignments, and tells whether its last number is not 0."""

        def number(text: str) -> str:
            return self.computed(shell, Sum((Text(text, True),), True, part.source))

        text, value = self.text(shell, part.inside), ""
        for item in [text] if set(text) & set("([") else text.split(","):
            match = _SETS.fullmatch(item)
            if match is None:
                value = number(item)
                continue
            name, step, sign, right = match.groups()
            before = number(name) if step else ""
            shell.set(
                name,
                number(f"{name} {step[0]} 1" if step else f"{name if sign else 0} {sign or '+'} ({right})"),
            )
            value = before or number(name)
        return value != "0" if is_known(value) else None

    def check_files(self, shell: Shell, files: tuple[Word, ...]) -> None:
        """Raises an InputError for a redirection to no file, or to several: bash does not run the command."""
        for word in files:
            names = self.fields(shell, word)
            known = all(map(is_known, names))
            if known and (names == [""] or len(names) != 1):
                has = f"a redirection needs one file, and has {len(names)} words: {' '.join(names)}"
                raise InputError(f"{has}; bash does not run the command")
            self.may_fail |= not known or "/" in names[0] or names[0] in (".", "..")

    def value(self, shell: Shell, name: str, source: str) -> Value:
        """Of a variable; a mark where only the run knows it."""
        self.read.add(name)
        if name in ALWAYS_SET:
            return self.marks.mark(source, "which only the run knows")
        if name not in shell.variables:
            return self.marks.mark(source, "which is not set in this file")
        return shell.variables[name]

    def _pieces(self, shell: Shell, word: Word, inner: bool = False) -> Iterator[Piece]:
        """Yields the parts expanded; `inner`: of an unquoted parameter's default, split as its value."""
        for part in word:
            if isinstance(part, Text):
                yield Piece([part.text], part.quoted, inner and not part.quoted)
            elif isinstance(part, Sum):
                yield Piece([self.computed(shell, part)], part.quoted, not part.quoted)
            elif isinstance(part, Output):
                mark = self.marks.mark(part.source, "which is known only in the run")
                yield Piece([mark], part.quoted, not part.quoted)
            else:
                yield from self._parameter(shell, part)

    def _parameter(self, shell: Shell, part: Parameter) -> Iterator[Piece]:
        values, many = self._values(shell, part), _is_many(part)
        if part.operator == NOT_COMPUTED:
            self.may_fail = True
            values = [self.marks.mark(part.source, "which is not worked out")]
        elif part.operator:
            values, takes = self._alternative(shell, part, values)
            if takes:
                argument = part.argument or (Text("", part.quoted),)
                yield from self._pieces(shell, argument, inner=not part.quoted)
                return
        if values is None:
            values = [] if many else [""]
        if sum(map(len, values)) + len(values) > _MOST_CHARACTERS:
            raise InputError(f"a value is longer than {_MOST_CHARACTERS:,} characters")
        piece = Piece(values, part.quoted, not part.quoted)
        if many == "*" and part.quoted:
            whole = " ".join(values)
            whole = self.marks.mark(whole, "in which a word is not known") if self._is_open(piece) else whole
            piece = piece._replace(values=[whole])
        yield piece

    def _is_open(self, piece: Piece) -> bool:
        """Whether one of several values may be none: then those beside it are not apart."""
        reasons = [self.marks.reason(value) for value in piece.values if is_several(value)]
        return len(piece.values) > 1 and any(
            cause and cause.why not in (_REPLACED, _FILES) for cause in reasons
        )

    def _alternative(
        self, shell: Shell, part: Parameter, values: list[str] | None
    ) -> tuple[list[str] | None, bool]:
        """`${NAME:-argument}`, `:=`, `:+`, `:?`: the values, and whether the argument takes their place.
        Of what the environment may have, that it has nothing is taken, and remembered.
        """
        sign = part.operator[-1]
        is_set = values is not None and (len(part.operator) == 1 or any(values))
        if sign == "?":
            self.may_fail = True
            if not is_set:
                raise InputError(f"{part.source} ends the script: it has no value")
            return values, False
        if self._is_outside(shell, part):
            is_set = False
            self.defaults[part.name] = self.text(shell, part.argument) if sign in "-=" else ""
        elif is_set and all(map(is_several, values or ())):
            return [self.marks.mark(part.source, "which is not known")], False
        if is_set == (sign == "+"):
            if _has_tilde(part.argument, part.argument):
                return [self.marks.mark(part.source, "in which bash replaces a ~")], False
            if sign == "=":
                self.assign(shell, part.name, self.text(shell, part.argument))
            return None, True
        return (values if sign == "-" else [""]), False

    def _is_outside(self, shell: Shell, part: Parameter) -> bool:
        """Whether only the environment, or who starts the script, could give it a value."""
        if part.name.isidentifier():
            return part.name not in ALWAYS_SET and part.name not in shell.variables
        return part.name != "0" and shell.arguments is None

    def _values(self, shell: Shell, part: Parameter) -> list[str] | None:
        """Returns the value of a name; None where it has none."""
        content, many = self._held(shell, part), _is_many(part)
        if content is None:
            return None
        if isinstance(content, str):
            if many or part.place is None:
                return [content]
            content = (content,)
        if many:
            return list(content) or None
        place = self.computed(shell, Sum(part.place, True, f"$(({part.source}")) if part.place else "0"
        if not is_known(place) or any(
            map(is_several, content[: int(place) + 1] if int(place) >= 0 else content)
        ):
            return [self.marks.mark(part.source, "which is not known")]
        return [content[int(place)]] if -len(content) <= int(place) < len(content) else None

    def _held(self, shell: Shell, part: Parameter) -> Value:
        name, arguments = part.name, shell.arguments
        if name.isidentifier():
            return self.value(shell, name, part.source)
        if name in ("@", "*") and arguments is not None:
            return arguments
        if arguments is None and name in ("@", "*", *"123456789"):
            return self.marks.mark(part.source, "which is an argument of the script")
        if arguments is not None and (name == "#" or (name.isdigit() and int(name) > 0)):
            before = arguments if name == "#" else arguments[: int(name)]
            if any(map(is_several, before)):
                return self.marks.mark(part.source, "which is not known")
            return str(len(before)) if name == "#" else before[-1] if len(before) == int(name) else None
        return self.marks.mark(part.source, "which only the run knows")


def _is_many(part: Parameter) -> str:
    """`@` or `*` of all values of an array or of the arguments; else empty."""
    if part.name in ("@", "*"):
        return part.name
    return next((sign for sign in "@*" if part.place == (Text(sign, True),)), "")


def _has_tilde(word: Word, parts: Word) -> bool:
    """Whether bash replaces a `~` in these parts of a word by a home."""
    bare = [(part, part.text) for part in parts if isinstance(part, Text) and not part.quoted]
    return any((part is word[0] and text[0] == "~") or ":~" in text or "=~" in text for part, text in bare)
