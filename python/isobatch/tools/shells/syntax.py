"""The syntax of bash: from the text of a script to its tree.

Written after the Shell Command Language of POSIX and bash's manual. A text that bash refuses is refused here,
and so are forms that few launch scripts have (bench/results/shells.md).
"""

import re

from isobatch.tools.shells import tree
from isobatch.tools.shells.simple import BLANKS, BRACKETS, RESERVED, SimpleReader
from isobatch.tools.shells.tree import Block, Chain, Command, Pipeline, Sum, Text, Word
from isobatch.tools.shells.words import META, NAME

_OF_ONE = {"-" + letter for letter in "abcdefghknprstuvwxzGLNOSR"}
_OF_TWO = {"=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"}
"""Operators of conditions."""
_KEYWORD = re.compile(r"[a-z]+|\{|\}|!|\[\[|\]\]")
_TIME = re.compile(r"time[ \t]+(?=[A-Za-z])")
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


class _Parser(SimpleReader):
    """Reads commands."""

    def commands(self) -> None:
        """Goes over the commands of `$( … )`, and its bracket."""
        inside = _Parser(self.text, self.first, self.depth)
        inside.at, inside.skips = self.at, True
        inside.closed(")", can_be_empty=True)
        self.at = inside.at

    def script(self) -> Block:
        """All of it."""
        if match := _UNREAD.search(self.text):
            self.at = match.start()
            self.fail(f"{match[0]!r} is not read")
        block = self._block()
        if self.char():
            self.fail(f"{self.char()!r} is not expected here")
        return block

    def closed(self, bracket: str, *, can_be_empty: bool = False) -> Block:
        """The commands behind an opening bracket."""
        block = self._block(can_be_empty=can_be_empty)
        if self.char() != bracket or self.documents:
            self.fail(f"{bracket} or the end of a here-document is missing")
        if not block and not can_be_empty:
            self.fail("a command is missing")
        self.at += 1
        return block

    def _keyword(self) -> str:
        """The reserved word at the place; empty where none is."""
        match = _KEYWORD.match(self.text, self.at)
        if match is None or match[0] not in RESERVED:
            return ""
        return match[0] if self.text[match.end() : match.end() + 1] in ("", *META) else ""

    def _take(self, keyword: str) -> None:
        self.newlines()
        if self._keyword() != keyword:
            self.fail(f"{keyword} is missing")
        self.at += len(keyword)

    def _block(self, *ends: str, can_be_empty: bool = False) -> Block:
        """Commands up to a reserved word, a bracket or the end."""
        chains: list[Chain] = []
        while True:
            self.newlines()
            if self.char() in ("", ")") or self.ahead(";;", ";&") or self._keyword() in ends:
                break
            chains.append(self._chain())
            self.match(BLANKS)
            if self.ahead(";;", ";&"):
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
            self.match(BLANKS)
            operator = self.ahead("&&", "||")
            if not operator:
                return Chain(tuple(items), False, self.text[first:end].strip(), line)
            self.at += 2
            self.newlines()

    def _pipeline(self) -> Pipeline:
        self.match(_TIME)
        negated = self._keyword() == "!"
        self.at += negated
        commands = [self._command()]
        self.match(BLANKS)
        while self.char() == "|" and not self.ahead("||", "|&"):
            self.at += 1
            self.newlines()
            commands.append(self._command())
            self.match(BLANKS)
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self.deeper(1)
        self.match(BLANKS)
        command = self._compound()
        if command is None:
            command = self.simple()
        elif not isinstance(command, tree.Function):
            skips = self.skips
            # How often `while read` goes round is not known, with the file and without.
            self.skips = skips or (isinstance(command, tree.Repetition) and not command.name)
            if files := self.redirections()[1]:
                command = tree.Redirection(self.line, command, files)
            self.skips = skips
        self.deeper(-1)
        return command

    def _compound(self) -> Command | None:
        line, first, keyword = self.line, self.at, self._keyword()
        if self.ahead("(("):
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
                self.match(BLANKS)
                return self.function(line, self.word())
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
        """`case`, as conditions on its patterns."""
        self.match(BLANKS)
        word = self.next_word()
        source = self.text[first : self.at]
        self._take("in")
        branches: list[tuple[Block | None, Block, str]] = []
        while True:
            self.newlines()
            if self._keyword() == "esac":
                self.at += 4
                return tree.Choice(line, tuple(branches))
            at = self.line
            terms = [tree.Condition(at, False, "==", (word, pattern)) for pattern in self._patterns()]
            alone = _joined(list(zip(["", *["||"] * len(terms)], terms, strict=False)), source)
            body = self._block("esac", can_be_empty=True)
            branches.append(((alone,), body, source))
            if self.ahead(";;&", ";&"):
                self.fail(";& in a case is not read")
            if self.ahead(";;"):
                self.at += 2
            elif self._keyword() != "esac":
                self.fail("esac is missing")

    def _patterns(self) -> list[Word]:
        self.at += self.char() == "("
        patterns: list[Word] = []
        while True:
            self.match(BLANKS)
            patterns.append(self.next_word())
            self.match(BLANKS)
            if self.char() not in ("|", ")"):
                self.fail("a pattern of case is not closed")
            self.at += 1
            if self.text[self.at - 1] == ")":
                return patterns

    def _loop(self, line: int, first: int, keyword: str) -> Command:
        name, words, start, condition, step = "", None, Block(), Block(), Block()
        self.match(BLANKS)
        if keyword != "for":
            condition = self._block("do")
        elif self.ahead("(("):
            # Under set -e a start or a step of 0 ends nothing, as behind `!`.
            parts = enumerate(self._counter())
            start, condition, step = (self._only(part, line, negated=place != 1) for place, part in parts)
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
            first, *rest = part.text.split(";")
            parts[-1] += (Text(first, True),)
            parts += [(Text(text, True),) for text in rest]
        if len(parts) != 3:
            self.fail("for (( … )) without three parts is not read")
        if not "".join(inner.text.strip() if isinstance(inner, Text) else "_" for inner in parts[1]):
            parts[1] = (Text("1", True),)
        if self.char() == ";":
            self.at += 1
        return [tree.Computation(line, Sum(inner, True, whole.source)) for inner in parts]

    def _for(self) -> tuple[str, tuple[Word, ...] | None]:
        name = self.match(NAME)
        if not name or self.char() not in (*META, ""):
            self.fail("the name of a variable is missing after for")
        words: list[Word] | None = None
        self.newlines()
        if self._keyword() == "in":
            self.at += 2
            words = []
            self.match(BLANKS)
            while self.char() not in (";", "\n", ""):
                words.append(self.next_word())
                self.match(BLANKS)
        if self.char() == ";" and not self.ahead(";;"):
            self.at += 1
        return name, None if words is None else tuple(words)

    def function(self, line: int, name: Word) -> tree.Function:
        """Reads a function, behind its name."""
        self.match(BRACKETS)
        self.newlines()
        body = self._compound()
        if body is None or isinstance(body, tree.Function) or self.redirections()[0]:
            self.fail("a function without a body in brackets, or with a redirection, is not read")
        if len(name) != 1 or not isinstance(name[0], Text) or name[0].quoted:
            self.fail("a function must have a plain name")
        return tree.Function(line, name[0].text, body)

    def _condition(self) -> tree.Grouping:
        terms = [("", self._term())]
        while not self.ahead("]]"):
            operator = self.ahead("&&", "||")
            if operator == "&&" and terms[-1][0] == "||":
                self.fail("[[ … || … && … ]] is not read")
            self.at += 2
            terms.append((operator, self._term()))
        self.at += 2
        return tree.Grouping((_joined(terms, ""),), True)  # one command to set -e, and it sets nothing

    def _term(self) -> tree.Condition:
        words: list[Word] = []
        negated = False
        self.newlines()
        while True:
            self.match(BLANKS)
            if self.ahead("&&", "||") or self._keyword() == "]]":
                break
            if not words and self._keyword() == "!":
                self.at += 1
                negated = not negated
            else:
                words.append(self.next_word())
        parts = [word[0] if len(word) == 1 else None for word in words]
        bare = [inner.text if isinstance(inner, Text) and not inner.quoted else "" for inner in parts]
        if len(words) == 1 and bare[0] not in _OF_ONE:
            return tree.Condition(self.line, negated, "", tuple(words))
        if len(words) == 2 and bare[0] in _OF_ONE:
            return tree.Condition(self.line, negated, bare[0], (words[1],))
        if len(words) == 3 and bare[1] in _OF_TWO and bare[0] not in _OF_ONE:
            return tree.Condition(self.line, negated, bare[1], (words[0], words[2]))
        self.fail("[[ … ]] has a condition that is not read")


def _joined(terms: list[tuple[str, tree.Condition]], source: str) -> Chain:
    """Conditions with `&&` and `||`, as a chain."""
    items = tuple((operator, Pipeline((term,), False)) for operator, term in terms)
    return Chain(items, False, source, terms[0][1].line)
