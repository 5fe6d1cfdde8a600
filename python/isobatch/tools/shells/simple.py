"""Simple commands: words, assignments, redirections and here-documents."""

import re
from abc import abstractmethod

from isobatch.tools.shells import tree
from isobatch.tools.shells.tree import Assignment, Document, Text, Word
from isobatch.tools.shells.words import META, PLACEHOLDER, WordReader

DECLARES = ("export", "local", "readonly", "declare", "typeset")
"""Commands whose arguments may be assignments."""
RESERVED = (
    "if", "then", "elif", "else", "fi", "case", "esac", "for", "while", "until", "do", "done", "function",
    "{", "}", "!", "[[", "]]",
    "time", "select", "coproc", "in",
)  # fmt: skip
BLANKS = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
BRACKETS = re.compile(r"[ \t]*\([ \t]*\)")
_REDIRECTION = re.compile(r"\d*(<<<|<<(?!-)|<&|>&|<>|>>|>\||&>>|&>|[<>](?!\())")
_HARMLESS = re.compile(r"/dev/null(?=[ \t\n;&|)]|$)|[012](?=[ \t\n;&|)]|$)")
_ENDS = re.compile(r"(['\"]?)(\w+)\1(?=[ \t\n;&|)<>])")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?=)", re.ASCII)
_HIDDEN = re.compile(r"\w+(?:\[.*\]?)?\+?=|\w+\[")
"""An assignment to an index, or one that a continuation hid."""


class SimpleReader(WordReader):
    """Reads a command without others in it."""

    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        super().__init__(text, line, depth)
        self.documents: list[Document] = []
        self.skips = False  # in $( … ), whose output is not known whatever it reads

    @abstractmethod
    def function(self, line: int, name: Word) -> tree.Function:
        """Reads a function, behind its name."""

    def ahead(self, *texts: str) -> str:
        """Returns the text found at the place; empty for none."""
        return next((option for option in texts if self.text.startswith(option, self.at)), "")

    def newlines(self) -> None:
        """Goes over ends of lines, and the here-documents behind them."""
        self.match(BLANKS)
        while self.char() == "\n":
            self.at += 1
            documents, self.documents = self.documents, []
            for document in documents:
                self._read_document(document)
            self.match(BLANKS)

    def _read_document(self, document: Document) -> None:
        end = re.compile(rf"^{document.end}(?:\n|\Z)", re.MULTILINE).search(self.text, self.at)
        if end is None:
            self.fail(f"the here-document's end {document.end} is missing")
        reader = type(self)(self.text[self.at : end.start()], self.line, self.depth)
        if document.expands and reader.text.endswith("\\\n"):
            self.fail("a here-document whose last line goes on is not read")
        document.word = reader.parts("", True, True) if document.expands else (Text(reader.text, True),)
        self.at = end.end()

    def next_word(self) -> Word:
        """Reads a word, and fails if none follows."""
        word = self.word()
        if not word:
            self.fail(f"{self.text[self.at : self.at + 2]!r} is not read here")
        return word

    def redirections(self, of: list[Document] | None = None) -> tuple[bool, tuple[Word, ...]]:
        """Reads redirections, whether there is any, and its files; `of` gets the here-documents."""
        any_there, files = False, list[Word]()
        while True:
            self.match(BLANKS)
            match = _REDIRECTION.match(self.text, self.at)
            if match is None or PLACEHOLDER.match(self.text, self.at):
                return any_there, tuple(files)
            any_there = True
            self.at = match.end()
            self.match(BLANKS)
            if re.match(r"\d+[<>]", self.text[self.at : self.at + 9]):
                self.fail("a number between two redirections is not read")
            if match[1] == "<<":
                end = self.match(_ENDS) or self.fail("the end of a here-document must be a plain word")
                self.documents.append(Document(end.strip("'\""), end[0] not in "'\""))
                if of is not None:
                    of.append(self.documents[-1])
                continue
            harmless = _HARMLESS.match(self.text, self.at)
            if match[1] in (">&", "<&") and not harmless:
                self.fail("a redirection to such a file is not read")
            if PLACEHOLDER.match(self.text, self.at):
                self.fail("a placeholder in a redirection is to be filled in")
            word = self.next_word()
            if match[1] == "<<<" and of is not None:
                of.append(Document("", False, word))
            elif match[1] == "<" and not harmless and not self.skips:
                self.fail(
                    "a redirection from a file is not read: bash runs the command only where the file is"
                )
            elif not harmless:
                files.append(word)

    def simple(self) -> tree.Simple | tree.Function:
        """Reads a command or a function's definition."""
        line, assignments, words = self.line, list[Assignment](), list[Word | Assignment]()
        documents: list[Document] = []
        declares = any_there = False
        files: tuple[Word, ...] = ()
        while True:
            redirected, more = self.redirections(documents)
            any_there, files = any_there | redirected, (*files, *more)
            if self.char() in ("", "\n", ";", "&", "|", ")"):
                break
            if (not words or declares) and (match := _ASSIGNED.match(self.text, self.at)):
                if any_there:
                    self.fail("an assignment after a redirection is not read")
                (words if declares else assignments).append(self._assignment(match))
                continue
            word = self.next_word()
            number = all(isinstance(part, Text) and part.text.isdigit() and not part.quoted for part in word)
            if self.char() in ("<", ">") and (number or self.text[self.at - 1] == "}"):
                self.fail("a redirection after a bracket, or whose number is in two lines, is not read")
            if not words:
                first = word[0].text if isinstance(word[0], Text) and not word[0].quoted else ""
                if (len(word) == 1 and first in RESERVED) or _HIDDEN.match(first):
                    self.fail(f"{first} is not read here")
                if not assignments and not any_there and BRACKETS.match(self.text, self.at):
                    return self.function(line, word)
                declares = len(word) == 1 and first in DECLARES
            words.append(word)
        values = [part for each in assignments for word in each.words for part in word]
        if words and any(isinstance(part, tree.Output) and part.source[0] == "<" for part in values):
            self.fail("a placeholder <…> before a command is to be filled in")
        if not words and not assignments and not any_there:
            self.fail("a command is missing")
        return tree.Simple(
            line, tuple(assignments), tuple(words), documents[-1] if documents else None, files
        )

    def _assignment(self, match: re.Match[str]) -> Assignment:
        self.at = match.end()
        append = match[2] == "+="
        if self.char() != "(":
            return Assignment(match[1], append, (self.word(),), False)
        self.at += 1
        values: list[Word] = []
        self.newlines()
        while self.char() != ")":
            values.append(self.next_word())
            bare = "".join(part.text for part in values[-1] if isinstance(part, Text) and not part.quoted)
            if bare[:1] == "[" and ("]" not in bare or re.search(r"\]\+?=", bare)):
                self.fail("an array with indices of its own is not read")
            self.newlines()
        self.at += 1
        if self.char() not in (*META, ""):
            self.fail("characters after an array are not read")
        return Assignment(match[1], append, tuple(values), True)
