"""The syntax of bash: from the text of a script to its tree.

Written after the Shell Command Language of POSIX and bash's manual. A text that bash refuses is refused here, and so are forms that few
launch scripts have (bench/results/shells.md).
"""

from __future__ import annotations

import re

from isobatch.tools.shells import tree
from isobatch.tools.shells.tree import Assignment, Block, Chain, Command, Document, Pipeline, Sum, Text, Word
from isobatch.tools.shells.words import META, NAME, PLACEHOLDER, WordReader

DECLARES = ("export", "local", "readonly", "declare", "typeset")
"""Commands whose arguments may be assignments."""
_OF_ONE = {"-" + letter for letter in "abcdefghknprstuvwxzGLNOSR"}
_OF_TWO = {"=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"}
"""Operators of conditions."""
_RESERVED = (
    "if", "then", "elif", "else", "fi", "case", "esac", "for", "while", "until", "do", "done", "function", "{", "}", "!", "[[", "]]",
    "time", "select", "coproc", "in",
)  # fmt: skip
_KEYWORD = re.compile(r"[a-z]+|\{|\}|!|\[\[|\]\]")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_TIME = re.compile(r"time[ \t]+(?=[A-Za-z])")
_BRACKETS = re.compile(r"[ \t]*\([ \t]*\)")
_REDIRECTION = re.compile(r"\d*(<<<|<<(?!-)|<&|>&|<>|>>|>\||&>>|&>|[<>](?!\())")
_HARMLESS = re.compile(r"/dev/null(?=[ \t\n;&|)]|$)|[012](?=[ \t\n;&|)]|$)")
_ENDS = re.compile(r"(['\"]?)(\w+)\1(?=[ \t\n;&|)<>])")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?=)", re.ASCII)
_HIDDEN = re.compile(r"\w+(?:\[.*\]?)?\+?=|\w+\[")
"""An assignment to an index, or one that a continuation hid."""
_UNREAD = re.compile(r"[\r\0]|(?:[&|;<>()]|\$\()\\\n(?:\\\n)*[&|;<>()]")
"""Ends of lines that are not Unix's; signs of which a continuation may cut one in two."""


def parse(text: str, line: int = 1) -> Block:
    """Parses a script.

    Raises:
        InputError: bash would refuse it too, or it has a form that is not read; the message has the line.

    >>> [chain.source for chain in parse("B=4; torchrun t.py --lr $B")]
    ['B=4', 'torchrun t.py --lr $B']
    """
    return _Parser(text, line).script()


def _commands_inside(reader: WordReader) -> None:
    """Goes over the commands of `$( … )`."""
    inside = _Parser(reader.text, reader.first, reader.depth)
    inside.at = reader.at
    inside.closed(")", can_be_empty=True)
    reader.at = inside.at


class _Parser(WordReader):
    """Reads commands."""

    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        super().__init__(text, line, _commands_inside, depth)
        self.documents: list[Document] = []

    def script(self) -> Block:
        """All of it."""
        if found := _UNREAD.search(self.text):
            self.at = found.start()
            self.fail(f"{found[0]!r} is not read")
        block = self._block()
        if self.char():
            self.fail(f"{self.char()!r} is not expected here")
        return block

    def closed(self, bracket: str, *, can_be_empty: bool = False) -> Block:
        """The commands behind an opening bracket."""
        found = self._block(can_be_empty=can_be_empty)
        if self.char() != bracket or self.documents:
            self.fail(f"{bracket} or the end of a here-document is missing")
        if not found and not can_be_empty:
            self.fail("a command is missing")
        self.at += 1
        return found

    def _newlines(self) -> None:
        self.match(_BLANKS)
        while self.char() == "\n":
            self.at += 1
            documents, self.documents = self.documents, []
            for document in documents:
                self._read_document(document)
            self.match(_BLANKS)

    def _read_document(self, document: Document) -> None:
        end = re.compile(rf"^{document.end}(?:\n|\Z)", re.MULTILINE).search(self.text, self.at)
        if end is None:
            self.fail(f"the here-document's end {document.end} is missing")
        reader = WordReader(self.text[self.at : end.start()], self.line, _commands_inside, self.depth)
        if document.expands and reader.text.endswith("\\\n"):
            self.fail("a here-document whose last line goes on is not read")
        document.word = reader.parts("", True, True) if document.expands else (Text(reader.text, True),)
        self.at = end.end()

    def _keyword(self) -> str:
        """The reserved word at the place; empty where none is."""
        found = _KEYWORD.match(self.text, self.at)
        if found is None or found[0] not in _RESERVED:
            return ""
        return found[0] if self.text[found.end() : found.end() + 1] in ("", *META) else ""

    def _take(self, keyword: str) -> None:
        self._newlines()
        if self._keyword() != keyword:
            self.fail(f"{keyword} is missing")
        self.at += len(keyword)

    def _ahead(self, *texts: str) -> str:
        return next((it for it in texts if self.text.startswith(it, self.at)), "")

    def _block(self, *ends: str, can_be_empty: bool = False) -> Block:
        """Commands up to a reserved word, a bracket or the end."""
        chains: list[Chain] = []
        while True:
            self._newlines()
            if self.char() in ("", ")") or self._ahead(";;", ";&") or self._keyword() in ends:
                break
            chains.append(self._chain())
            self.match(_BLANKS)
            if self._ahead(";;", ";&"):
                continue
            if self.char() == "&":
                self.at += 1
                chains[-1] = chains[-1]._replace(background=True)
            elif self.char() == ";":
                self.at += 1
            elif self.char() not in ("\n", ")", ""):
                self.fail(f"{self.char()!r} is not expected here")
        if ends and not chains and not can_be_empty:
            self.fail("a command is missing")
        return tuple(chains)

    def _chain(self) -> Chain:
        first, line, items, operator = self.at, self.line, list[tuple[str, Pipeline]](), ""
        while True:
            items.append((operator, self._pipeline()))
            end = self.at
            self.match(_BLANKS)
            operator = self._ahead("&&", "||")
            if not operator:
                return Chain(tuple(items), False, self.text[first:end].strip(), line)
            self.at += 2
            self._newlines()

    def _pipeline(self) -> Pipeline:
        self.match(_TIME)
        negated = self._keyword() == "!"
        self.at += negated
        commands = [self._command()]
        self.match(_BLANKS)
        while self.char() == "|" and not self._ahead("||", "|&"):
            self.at += 1
            self._newlines()
            commands.append(self._command())
            self.match(_BLANKS)
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self.deeper(1)
        self.match(_BLANKS)
        found = self._compound()
        if found is None:
            found = self._simple()
        elif not isinstance(found, tree.Function) and (files := self._redirections()[1]):
            found = tree.Redirection(self.line, found, files)
        self.deeper(-1)
        return found

    def _compound(self) -> Command | None:
        line, first, keyword = self.line, self.at, self._keyword()
        if self._ahead("(("):
            return tree.Computation(line, self.computation(True, sets=True))
        if self.char() == "(":
            self.at += 1
            return tree.Grouping(self.closed(")"), True)
        self.at += len(keyword)
        match keyword:
            case "":
                return None
            case "{":
                body = self._block("}")
                self._take("}")
                return tree.Grouping(body, False)
            case "[[":
                return self._condition()
            case "if":
                return self._choice(line)
            case "case":
                return self._selection(line, first)
            case "for" | "while" | "until":
                return self._loop(line, first, keyword)
            case "function":
                self.match(_BLANKS)
                return self._function(line, self.word())
        self.fail(f"{keyword} is not read here")

    def _choice(self, line: int) -> tree.Choice:
        branches: list[tuple[Block | None, Block, str]] = []
        while True:
            first = self.at
            condition = self._block("then")
            source = " ".join(self.text[first : self.at].split()).rstrip("; ")
            self._take("then")
            branches.append((condition, self._block("elif", "else", "fi"), source))
            keyword = self._keyword()
            self.at += len(keyword)
            if keyword == "else":
                branches.append((None, self._block("fi"), ""))
                self._take("fi")
            if keyword != "elif":
                if keyword == "":
                    self.fail("fi is missing")
                return tree.Choice(line, tuple(branches))

    def _selection(self, line: int, first: int) -> tree.Choice:
        """`case`, as the conditions that its patterns are."""
        self.match(_BLANKS)
        word = self._next_word()
        source = self.text[first : self.at]
        self._take("in")
        branches: list[tuple[Block | None, Block, str]] = []
        while True:
            self._newlines()
            if self._keyword() == "esac":
                self.at += 4
                return tree.Choice(line, tuple(branches))
            at = self.line
            terms = [tree.Condition(at, False, "==", (word, pattern)) for pattern in self._patterns()]
            alone = _joined(list(zip(["", *["||"] * len(terms)], terms, strict=False)), source)
            body = self._block("esac", can_be_empty=True)
            branches.append(((alone,), body, source))
            if self._ahead(";;&", ";&"):
                self.fail(";& in a case is not read")
            if self._ahead(";;"):
                self.at += 2
            elif self._keyword() != "esac":
                self.fail("esac is missing")

    def _patterns(self) -> list[Word]:
        self.at += self.char() == "("
        patterns: list[Word] = []
        while True:
            self.match(_BLANKS)
            patterns.append(self._next_word())
            self.match(_BLANKS)
            if self.char() not in ("|", ")"):
                self.fail("a pattern of case is not closed")
            self.at += 1
            if self.text[self.at - 1] == ")":
                return patterns

    def _loop(self, line: int, first: int, keyword: str) -> Command:
        name, words, start, condition, step = "", None, Block(), Block(), Block()
        self.match(_BLANKS)
        if keyword != "for":
            condition = self._block("do")
        elif self._ahead("(("):
            start, condition, step = (self._only(part, line) for part in self._counter())
        else:
            name, words = self._for()
        if keyword == "until":
            condition = self._only(tree.Grouping(condition, False), line, negated=True)
        source = " ".join(self.text[first : self.at].split()).rstrip("; ")
        self._take("do")
        body = self._block("done")
        self._take("done")
        loop = tree.Repetition(line, name, words, condition, step, body, source)
        return tree.Grouping((*start, *self._only(loop, line)), False) if start else loop

    def _only(self, command: Command, line: int, *, negated: bool = False) -> Block:
        return (Chain((("", Pipeline((command,), negated)),), False, "", line),)

    def _counter(self) -> list[tree.Computation]:
        """The three computations of `for ((…; …; …))`."""
        line, whole = self.line, self.computation(True, sets=True)
        parts: list[Word] = [()]
        for part in whole.inside:
            if not isinstance(part, Text):
                parts[-1] += (part,)
                continue
            first, *others = part.text.split(";")
            parts[-1] += (Text(first, True),)
            parts += [(Text(it, True),) for it in others]
        if len(parts) != 3:
            self.fail("for (( … )) without three parts is not read")
        if not "".join(it.text.strip() if isinstance(it, Text) else "_" for it in parts[1]):
            parts[1] = (Text("1", True),)
        if self.char() == ";":
            self.at += 1
        return [tree.Computation(line, Sum(it, True, whole.source)) for it in parts]

    def _for(self) -> tuple[str, tuple[Word, ...] | None]:
        name = self.match(NAME)
        if not name or self.char() not in (*META, ""):
            self.fail("the name of a variable is missing behind for")
        words: list[Word] | None = None
        self._newlines()
        if self._keyword() == "in":
            self.at += 2
            words = []
            self.match(_BLANKS)
            while self.char() not in (";", "\n", ""):
                words.append(self._next_word())
                self.match(_BLANKS)
        if self.char() == ";" and not self._ahead(";;"):
            self.at += 1
        return name, None if words is None else tuple(words)

    def _function(self, line: int, name: Word) -> tree.Function:
        self.match(_BRACKETS)
        self._newlines()
        body = self._compound()
        if body is None or isinstance(body, tree.Function) or self._redirections()[0]:
            self.fail("a function without a body in brackets, or with a redirection, is not read")
        if len(name) != 1 or not isinstance(name[0], Text) or name[0].quoted:
            self.fail("a function must have a plain name")
        return tree.Function(line, name[0].text, body)

    def _condition(self) -> tree.Grouping:
        terms = [("", self._term())]
        while not self._ahead("]]"):
            operator = self._ahead("&&", "||")
            if operator == "&&" and terms[-1][0] == "||":
                self.fail("[[ … || … && … ]] is not read")
            self.at += 2
            terms.append((operator, self._term()))
        self.at += 2
        return tree.Grouping((_joined(terms, ""),), False)

    def _term(self) -> tree.Condition:
        words: list[Word] = []
        negated = False
        self._newlines()
        while True:
            self.match(_BLANKS)
            if self._ahead("&&", "||") or self._keyword() == "]]":
                break
            if not words and self._keyword() == "!":
                self.at += 1
                negated = not negated
            else:
                words.append(self._next_word())
        parts = [it[0] if len(it) == 1 else None for it in words]
        bare = [it.text if isinstance(it, Text) and not it.quoted else "" for it in parts]
        if len(words) == 1 and bare[0] not in _OF_ONE:
            return tree.Condition(self.line, negated, "", tuple(words))
        if len(words) == 2 and bare[0] in _OF_ONE:
            return tree.Condition(self.line, negated, bare[0], (words[1],))
        if len(words) == 3 and bare[1] in _OF_TWO and bare[0] not in _OF_ONE:
            return tree.Condition(self.line, negated, bare[1], (words[0], words[2]))
        self.fail("[[ … ]] has a condition that is not read")

    def _next_word(self) -> Word:
        word = self.word()
        if not word:
            self.fail(f"{self.text[self.at : self.at + 2]!r} is not read here")
        return word

    def _redirections(self, of: list[Document] | None = None) -> tuple[bool, tuple[Word, ...]]:
        """Reads redirections; `of` gets the here-documents.

        Returns:
            Whether there was any, and the files.
        """
        any_there, files = False, list[Word]()
        while True:
            self.match(_BLANKS)
            found = _REDIRECTION.match(self.text, self.at)
            if found is None or PLACEHOLDER.match(self.text, self.at):
                return any_there, tuple(files)
            any_there = True
            self.at = found.end()
            self.match(_BLANKS)
            if re.match(r"\d+[<>]", self.text[self.at : self.at + 9]):
                self.fail("a number between two redirections is not read")
            if found[1] == "<<":
                end = self.match(_ENDS) or self.fail("the end of a here-document must be a plain word")
                self.documents.append(Document(end.strip("'\""), end[0] not in "'\""))
                if of is not None:
                    of.append(self.documents[-1])
                continue
            harmless = _HARMLESS.match(self.text, self.at)
            if found[1] in (">&", "<&") and not harmless:
                self.fail("a redirection to such a file is not read")
            if PLACEHOLDER.match(self.text, self.at):
                self.fail("a placeholder in a redirection is to be filled in")
            word = self._next_word()
            if found[1] == "<<<" and of is not None:
                of.append(Document("", False, word))
            elif not harmless:
                files.append(word)

    def _simple(self) -> tree.Simple | tree.Function:
        line, assignments, words = self.line, list[Assignment](), list[Word | Assignment]()
        documents: list[Document] = []
        declares = any_there = False
        files: tuple[Word, ...] = ()
        while True:
            redirected, more = self._redirections(documents)
            any_there, files = any_there | redirected, (*files, *more)
            if self.char() in ("", "\n", ";", "&", "|", ")"):
                break
            if (not words or declares) and (found := _ASSIGNED.match(self.text, self.at)):
                if any_there:
                    self.fail("an assignment behind a redirection is not read")
                (words if declares else assignments).append(self._assignment(found))
                continue
            word = self._next_word()
            if self.char() in ("<", ">") and self.text[self.at - 1] == "}":
                self.fail("a redirection behind a bracket is not read")
            if not words:
                first = word[0].text if isinstance(word[0], Text) and not word[0].quoted else ""
                if (len(word) == 1 and first in _RESERVED) or _HIDDEN.match(first):
                    self.fail(f"{first} is not read here")
                if not assignments and not any_there and _BRACKETS.match(self.text, self.at):
                    return self._function(line, word)
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

    def _assignment(self, found: re.Match[str]) -> Assignment:
        self.at = found.end()
        append = found[2] == "+="
        if self.char() != "(":
            return Assignment(found[1], append, (self.word(),), False)
        self.at += 1
        values: list[Word] = []
        self._newlines()
        while self.char() != ")":
            values.append(self._next_word())
            bare = "".join(it.text for it in values[-1] if isinstance(it, Text) and not it.quoted)
            if bare[:1] == "[" and ("]" not in bare or re.search(r"\]\+?=", bare)):
                self.fail("an array with indices of its own is not read")
            self._newlines()
        self.at += 1
        if self.char() not in (*META, ""):
            self.fail("characters behind an array are not read")
        return Assignment(found[1], append, tuple(values), True)


def _joined(terms: list[tuple[str, tree.Condition]], source: str) -> Chain:
    """Conditions with `&&` and `||`, as a chain."""
    items = tuple((operator, Pipeline((term,), False)) for operator, term in terms)
    return Chain(items, False, source, terms[0][1].line)
