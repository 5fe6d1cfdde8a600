"""Simple commands: words, assignments, redirections and here-documents. The parser of compound commands builds on it."""

from __future__ import annotations

import re

from isobatch.tools.shells.quotes import META, PLACEHOLDER, WordReader
from isobatch.tools.shells.tree import (
    Assignment,
    Document,
    Function,
    Output,
    Parameter,
    Part,
    Simple,
    Sum,
    Text,
    Word,
)

DECLARES = ("export", "declare", "typeset", "local", "readonly")
"""Commands whose arguments may be assignments."""
_RESERVED = (
    "if", "then", "elif", "else", "fi", "case", "esac", "for", "while", "until", "do", "done", "function", "{", "}", "!", "[[", "]]",
    "time", "select", "coproc", "in",
)  # fmt: skip
_KEYWORD = re.compile(r"[a-z]+|\{|\}|!|\[\[|\]\]")
_REDIRECTION = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<&|>&|<>|>>|>\||&>>|&>|<(?!<)|>)(?!\()")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[|\+?=)")


def _computes(part: Part) -> bool:
    """Whether bash may end, or set a variable, where it expands this."""
    return isinstance(part, Sum) or (
        isinstance(part, Parameter) and part.operator.lstrip(":") in ("=", "?") and part.operator != ""
    )


class CommandReader(WordReader):
    """Reads simple commands."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text, line)
        self.documents: list[Document] = []

    def _blanks(self) -> None:
        self.join()
        while self.char() in (" ", "\t") and self.char():
            self.step()
        if self.char() == "#":  # a comment, which no backslash continues
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def _newlines(self) -> None:
        self._blanks()
        while self.char() == "\n":
            self.at += 1
            for document in self.documents:
                self._read_document(document)
            self.documents = []
            self._blanks()

    def _read_document(self, document: Document) -> None:
        while self.char():
            end = self.text.find("\n", self.at)
            line = self.text[self.at :] if end < 0 else self.text[self.at : end]
            while document.expands and end >= 0 and (len(line) - len(line.rstrip("\\"))) % 2:
                next_end = self.text.find("\n", end + 1)
                line = line[:-1] + (self.text[end + 1 :] if next_end < 0 else self.text[end + 1 : next_end])
                end = next_end
            self.at = len(self.text) if end < 0 else end + 1
            line = line.lstrip("\t") if document.tabs else line
            if line == document.end:
                return
            document.text += line + "\n"

    def _keyword(self) -> str:
        """The reserved word at the place; empty where none is."""
        found = _KEYWORD.match(self.text, self.at)
        if found is None or found[0] not in _RESERVED:
            return ""
        return found[0] if self.text[found.end() : found.end() + 1] in ("", *META) else ""

    def _literal(self, word: Word) -> str:
        if len(word) != 1 or not isinstance(word[0], Text) or word[0].quoted:
            self.fail("a plain name is missing")
        return word[0].text

    def _next_word(self) -> Word:
        word = self.word()
        if not word:
            self.fail(f"{self.char()!r} is not expected here")
        return word

    def _brackets(self) -> bool:
        """Skips the `()` behind a function's name."""
        first = self.at
        self._blanks()
        if self.char() == "(":
            self.step()
            self._blanks()
            if self.char() == ")":
                self.step()
                return True
        self.at = first
        return False

    def _redirections(self, of: list[Document] | None = None) -> bool:
        """Skips redirections: they change no argument. A here-document is kept."""
        any_there = False
        while True:
            self._blanks()
            found = _REDIRECTION.match(self.text, self.at)
            if found is None or PLACEHOLDER.match(self.text, self.at):
                return any_there
            any_there = True
            self.step(found.end() - self.at)
            self._blanks()
            quoted_end = self.text[self.at :]
            target = self._next_word()
            if found[1] in (">&", "<&") and re.match(r"(?![012-](?:\s|[;&|)<>]|$))[\d-]", quoted_end):
                self.fail("a redirection to such a file is not read")
            if any(_computes(part) for part in target):
                self.fail("a computation in a redirection is not read")
            if found[1] in ("<<", "<<-"):
                texts = [part for part in target if isinstance(part, Text)]
                if len(texts) < len(target):
                    self.fail("the end of a here-document must be a plain word")
                end = "".join(part.text for part in texts)
                plain = not any(part.quoted for part in texts)
                self.documents.append(
                    Document(end, plain and "\\" not in quoted_end[: len(end)], found[1] == "<<-")
                )
                if of is not None:
                    of.append(self.documents[-1])

    def _simple(self) -> Simple | Function:
        line, assignments, words = self.line, list[Assignment](), list[Word | Assignment]()
        documents: list[Document] = []
        declares = False
        any_there = False
        while True:
            redirected = self._redirections(documents)
            any_there |= redirected
            if self.char() in ("", "\n", ";", "&", "|", ")"):
                break
            if (not words or declares) and (found := self._assignment()) is not None:
                if redirected and (declares or found.array):
                    self.fail("an assignment behind a redirection is not read")
                (words if declares else assignments).append(found)
                continue
            word = self._next_word()
            if not words:
                if self._is_reserved(word):
                    self.fail("a reserved word is not expected here")
                if not assignments and not any_there and self._brackets():
                    return self.function_behind(self._literal(word))
                declares = word in [(Text(name, False),) for name in DECLARES]
            words.append(word)
        if words and any(
            isinstance(it, Output) and it.source[0] == "<" for each in assignments for it in each.value
        ):
            self.fail("a placeholder <…> before a command is to be filled in")
        if not words and not assignments and not any_there:
            self.fail("a command is missing")
        return Simple(line, tuple(assignments), tuple(words), documents[-1] if documents else None)

    def _is_reserved(self, word: Word) -> bool:
        """Whether a first word is one that continuations inside hid: a reserved word, or an assignment."""
        first = word[0]
        if not isinstance(first, Text) or first.quoted:
            return False
        return (len(word) == 1 and first.text in _RESERVED) or bool(_ASSIGNED.match(first.text))

    def _assignment(self) -> Assignment | None:
        first, found = self.at, _ASSIGNED.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        index, sign = None, found[2]
        if sign == "[":
            index = self.parts("]\n", quoted=True)
            sign = next((it for it in ("]=", "]+=") if self._ahead(it)), "")
            if not sign:
                self.at = first
                return None
            self.step(len(sign))
        self.join()
        if self.char() != "(":
            return Assignment(found[1], index, "+" in sign, self.word(), False)
        self.step()
        values: list[Word] = []
        self._newlines()
        while self.char() != ")":
            values.append(self._next_word() if self.char() else self.fail(") is missing"))
            self._newlines()
        self.step()
        if self.char() and self.char() not in META:
            self.fail("characters behind an array")
        return Assignment(found[1], index, "+" in sign, tuple(values), True)

    def function_behind(self, name: str) -> Function:
        """The body of a function, behind its name and brackets."""
        raise NotImplementedError
