"""The syntax of bash: from the text of a script to its tree.

Written after the Shell Command Language of POSIX and bash's manual. A text that bash refuses is refused here, and so are a few forms
that no launch script has: `select`, `coproc` and the `for` of three parts.
"""

from __future__ import annotations

import re

from isobatch.tools.shells.quotes import MAX_DEPTH
from isobatch.tools.shells.simple import CommandReader
from isobatch.tools.shells.tree import (
    Block,
    Chain,
    Choice,
    Command,
    Computed,
    Condition,
    Document,
    Function,
    Grouping,
    Pipeline,
    Repetition,
    Selection,
    Text,
    Word,
)


def parse(text: str, line: int = 1) -> Block:
    """Parses a script.

    Raises:
        InputError: bash would refuse it too, or it has a form that is not read; the message has the line.

    >>> [chain.source for chain in parse("B=4; torchrun t.py --lr $B")]
    ['B=4', 'torchrun t.py --lr $B']
    """
    return _Parser(text, line).script()


def document_word(document: Document, line: int) -> Word:
    """A here-document's text as a word, with what is expanded in it."""
    if not document.expands:
        return (Text(document.text, True),)
    return _Parser(document.text, line).parts("", quoted=True, document=True)


class _Parser(CommandReader):
    """Reads commands."""

    def script(self) -> Block:
        """All of it."""
        found = self._block()
        if self.char():
            self.fail(f"{self.char()!r} is not expected here")
        return found

    def commands_inside(self) -> None:
        """`$( … )`: what is read is only where it ends."""
        held, self.documents = self.documents, []
        self._closed(")", can_be_empty=True)
        self.documents = held

    def _closed(self, bracket: str, *, can_be_empty: bool = False) -> Block:
        """The commands behind an opening bracket."""
        found = self._block(can_be_empty=can_be_empty)
        if self.char() != bracket:
            self.fail(f"{bracket} is missing")
        self.step()
        return found

    def _take(self, keyword: str) -> None:
        self._newlines()
        if self._keyword() != keyword:
            self.fail(f"{keyword} is missing")
        self.step(len(keyword))

    def _block(self, *ends: str, can_be_empty: bool = False) -> Block:
        """Commands up to a reserved word, a bracket or the end."""
        chains: list[Chain] = []
        while True:
            self._newlines()
            if (
                not self.char()
                or self.char() == ")"
                or self._ahead(";;")
                or self._ahead(";&")
                or self._keyword() in ends
            ):
                break
            chains.append(self._chain())
            self._blanks()
            if self.char() == "&":
                self.step()
                chains[-1] = chains[-1]._replace(background=True)
            elif self.char() == ";" and not self._ahead(";;") and not self._ahead(";&"):
                self.step()
            elif self.char() not in ("\n", ")", "") and not self._ahead(";;") and not self._ahead(";&"):
                self.fail(f"{self.char()!r} is not expected here")
        if ends and not chains and not can_be_empty:
            self.fail("a command is missing")
        return tuple(chains)

    def _chain(self) -> Chain:
        first, line, items, operator = self.at, self.line, list[tuple[str, Pipeline]](), ""
        while True:
            items.append((operator, self._pipeline()))
            end = self.at
            self._blanks()
            if not self._ahead("&&") and not self._ahead("||"):
                return Chain(tuple(items), False, self.text[first:end].strip(), line)
            operator = self.text[self.at : self.at + 2]
            self.step(2)
            self._newlines()

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._keyword() in ("!", "time"):
            negated ^= self._keyword() == "!"
            self.step(len(self._keyword()))
            self._blanks()
            if self._ahead("-p "):
                self.step(2)
                self._blanks()
        commands = [self._command()]
        self._blanks()
        while self.char() == "|" and not self._ahead("||"):
            self.step(2 if self._ahead("|&") else 1)
            self._newlines()
            commands.append(self._command())
            self._blanks()
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"commands stand more than {MAX_DEPTH} deep in each other")
        self._blanks()
        found = self._compound()
        if found is None:
            found = self._simple()
        elif not isinstance(found, Function):
            self._redirections()
        self.depth -= 1
        return found

    def _compound(self) -> Command | None:
        line, first, keyword = self.line, self.at, self._keyword()
        if self._ahead("((("):
            self.fail("((( is not read: put blanks between the brackets")
        if self._ahead("(("):
            self.step()
            if (inside := self.sum_inside()) is not None:
                return Computed(line, inside)
            self.at = first
        if self.char() == "(":
            self.step()
            return Grouping(self._nonempty(self._closed(")")), True)
        if keyword in ("if", "case", "for", "while", "until", "function", "{", "[["):
            self.step(len(keyword))
        match keyword:
            case "":
                return None
            case "{":
                body = self._block("}")
                self._take("}")
                return Grouping(body, False)
            case "[[":
                return Condition(line, self._test_words())
            case "if":
                return self._choice(line)
            case "case":
                return self._selection(line, first)
            case "for" | "while" | "until":
                return self._loop(line, first, keyword)
            case "function":
                self._blanks()
                name = self._literal(self.word())
                self._brackets()
                return self.function_behind(name)
        self.fail(f"{keyword} is not expected here")

    def _nonempty(self, body: Block) -> Block:
        if not body:
            self.fail("a command is missing")
        return body

    def _choice(self, line: int) -> Choice:
        branches: list[tuple[Block | None, Block, str]] = []
        while True:
            first = self.at
            condition = self._block("then")
            source = " ".join(self.text[first : self.at].split()).rstrip("; ")
            self._take("then")
            branches.append((condition, self._block("elif", "else", "fi"), source))
            keyword = self._keyword()
            self.step(len(keyword))
            if keyword == "else":
                branches.append((None, self._block("fi"), ""))
                self._take("fi")
            if keyword != "elif":
                if keyword == "":
                    self.fail("fi is missing")
                return Choice(line, tuple(branches))

    def _selection(self, line: int, first: int) -> Selection:
        self._blanks()
        word = self.word()
        source = self.text[first : self.at]
        self._newlines()
        if not word or not re.match(r"in(?=[ \t\n(]|\\\n|$)", self.text[self.at : self.at + 4]):
            self.fail("in is missing behind case")
        self.step(2)
        branches: list[tuple[tuple[Word, ...], Block, str]] = []
        while True:
            self._newlines()
            if self._keyword() == "esac":
                self.step(4)
                return Selection(line, word, tuple(branches), source)
            patterns = self._patterns()
            body = self._block("esac", can_be_empty=True)
            end = next((it for it in (";;&", ";;", ";&") if self._ahead(it)), "")
            if not end and self._keyword() != "esac":
                self.fail("esac is missing")
            self.step(len(end))
            branches.append((patterns, body, end or ";;"))

    def _patterns(self) -> tuple[Word, ...]:
        if self.char() == "(":
            self.step()
        patterns: list[Word] = []
        while True:
            self._blanks()
            patterns.append(self.word())
            self._blanks()
            char = self.char()
            if not patterns[-1] or char not in ("|", ")") or self._ahead("||"):
                self.fail("a pattern of case is not closed")
            self.step()
            if char == ")":
                return tuple(patterns)

    def _loop(self, line: int, first: int, keyword: str) -> Repetition:
        name, words, condition = "", None, None
        if keyword == "for":
            name, words = self._for()
        else:
            condition = self._block("do")
        source = " ".join(self.text[first : self.at].split()).rstrip("; ")
        self._take("do")
        body = self._block("done")
        self._take("done")
        return Repetition(line, name, words, condition, keyword == "until", body, source)

    def _for(self) -> tuple[str, tuple[Word, ...] | None]:
        self._blanks()
        if self._ahead("(("):
            self.fail("for (( … )) is not read: write for i in 1 2 3")
        name = self._literal(self.word())
        if not name.isidentifier():
            self.fail(f"{name!r} is no name of a variable")
        words: list[Word] | None = None
        self._newlines()
        if re.match(r"in(?=[ \t\n;]|\\\n|$)", self.text[self.at : self.at + 4]):
            self.step(2)
            words = []
            self._blanks()
            while self.char() not in (";", "\n", ""):
                words.append(self._next_word())
                self._blanks()
        if self.char() == ";" and not self._ahead(";;"):
            self.step()
        return name, None if words is None else tuple(words)

    def function_behind(self, name: str) -> Function:
        self._newlines()
        body = self._compound()
        if body is None or isinstance(body, Function):
            self.fail(f"the function {name} has no body in brackets")
        self._redirections()
        return Function(name, body)

    def _test_words(self) -> tuple[Word, ...]:
        words: list[Word] = []
        while True:
            self._newlines()
            operator = next((it for it in ("&&", "||", "(", ")", "<", ">") if self._ahead(it)), "")
            if operator:
                self.step(len(operator))
                words.append((Text(operator, False),))
                continue
            if self._ahead("]]"):
                if not words:
                    self.fail("a condition is missing")
                self.step(2)
                return tuple(words)
            is_pattern = bool(words) and words[-1] == (Text("=~", False),)
            word = self.parts(" \t\n") if is_pattern else self.word()
            if not word:
                self.fail("]] is missing")
            words.append(word)
