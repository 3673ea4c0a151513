"""Finds places in C++ code that one small change turns into other code; scripts/mutate.py draws from them.

It reads text without a compiler, relying on clang-format's spacing (`a < b` compares, `f<b>` is a template). Its mistakes do
not compile, and are dropped before they count. Every change becomes an expression,

    (cortado_mutant(17) ? (a - b) : (a + b))

so that one build contains all of them, and CORTADO_MUTANT=17 chooses one at run time."""

import bisect
import dataclasses
import re

INCLUDE = '#include "cortado_mutant.h"\n'
HEADER = """#pragma once
#include <cstdlib>
inline bool cortado_mutant(int number) {
  static const int chosen = [] {
    const char* text = std::getenv("CORTADO_MUTANT");
    return text ? std::atoi(text) : 0;
  }();
  return number == chosen;
}
"""

TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<text>R"(?P<d>[^(]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\')'
    r"|(?P<number>\.?\d(?:[\w.']|[eE][+-])*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><<=|>>=|<=>|\.\.\.|->\*?|::|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)",
    re.S,
)
PRECEDENCE = {"*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7,
              "==": 6, "!=": 6, "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1}  # fmt: skip
OTHER_OPERATORS = {
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"],
    "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"],
}  # fmt: skip
DROPPED = {"+": "LR", "-": "L", "*": "LR", "/": "L", "&&": "LR", "||": "LR"}  # which operand may remain of L op R
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
OTHER_ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}
OTHER_NAMES = {"Add": "Sub", "Sub": "Add", "MulAdd": "NegMulAdd", "NegMulAdd": "MulAdd", "Max": "Min", "Min": "Max",
               "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "add_": "sub_",
               "sub_": "add_", "add": "sub", "sub": "add", "mul_": "div_", "div_": "mul_", "amax": "amin"}  # fmt: skip
# x.exp() -> x
DROPPED_CALLS = {"exp", "log", "neg", "sigmoid", "tanh", "square", "sqrt", "rsqrt", "cumsum", "flip", "transpose",
                 "softplus", "masked_fill", "clamp_min", "tril", "triu"}  # fmt: skip
STOP_WORDS = {"return", "co_return", "throw", "case", "else", "do", "new", "delete", "goto", "const", "auto", "static"}
STATEMENT_WORDS = STOP_WORDS | {"if", "for", "while", "switch", "break", "continue", "using", "template", "typename",
                                "struct", "class", "default", "constexpr", "static_assert", "int", "float", "bool",
                                "double", "void"}  # fmt: skip
# Statements and calls that contain messages, or are evaluated at compile time.
UNTOUCHED_STATEMENTS = {"constexpr", "static_assert", "using", "throw", "case", "namespace", "asm", "struct"}
MESSAGES = {"fail_input_if", "fail_if"}  # except their first argument
UNTOUCHED_CALLS = {"concat", "TORCH_CHECK", "expect_shape", "sizeof", "alignof", "decltype", "HWY_DYNAMIC_DISPATCH"}
COMMUTATIVE = {"max", "min", "maximum", "minimum", "Max", "Min", "Add", "Mul", "type_of", "accumulation_type"}
CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Change:
    """A replacement of the text from start to end by `after`. `kind` names the kind of change."""

    start: int
    end: int
    before: str
    after: str
    kind: str

    def schema(self, number):
        """Returns code that contains both versions."""
        if self.kind == "dropped statement":
            return f"\nif (!cortado_mutant({number})) {self.before}\n"
        return f"\n(cortado_mutant({number}) ? ({self.after}) : ({self.before}))\n"


class Source:
    """A file's tokens, matching brackets, and the tokens in bodies of functions."""

    def __init__(self, text):
        self.text = text
        self.tokens = self._read()
        self.partner = self._match()
        self.body = self._bodies()  # [token]: may be part of a change
        self.place = self._places()  # [token]: may be changed itself

    def _read(self):
        tokens, at = [], 0
        # Preprocessor lines and their continuations stay unchanged.
        directives = [m.span() for m in re.finditer(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", self.text, re.M)]
        starts = [start for start, _ in directives]
        while at < len(self.text):
            nearest = bisect.bisect_right(starts, at) - 1
            if nearest >= 0 and at < directives[nearest][1]:
                at = directives[nearest][1]
                tokens.append(Token("sign", ";", at, at))  # no expression extends across a directive
                continue
            match = TOKEN.match(self.text, at)
            if match.lastgroup != "skip" and not match.group("skip"):
                kind = next(k for k in ("text", "number", "name", "sign") if match.group(k))
                tokens.append(Token(kind, match.group(), at, match.end()))
            at = match.end()
        return tokens

    def word(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ";"

    def kind(self, i):
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else "sign"

    def spaced(self, i):
        """Whether the token has white space on both sides."""
        token = self.tokens[i]
        return self.text[token.start - 1 : token.start].isspace() and self.text[token.end : token.end + 1].isspace()

    def cut(self, first, last):
        """Returns the text of the tokens first..last."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def _match(self):
        """Maps each bracket to its partner, including templates' angle brackets."""
        partner, stack = {}, []
        for i, token in enumerate(self.tokens):
            text = token.text
            if token.kind != "sign":
                continue
            if text in CLOSING:
                stack.append(i)
            elif text in CLOSING.values():
                while stack and self.word(stack[-1]) == "<":
                    stack.pop()
                if stack:
                    partner[i] = stack.pop()
                    partner[partner[i]] = i
            elif text == "<" and (not self.spaced(i) or self.word(i - 1) == "template"):
                stack.append(i)
            elif text in (">", ">>") and not self.text[token.start - 1].isspace():
                for _ in text:
                    if stack and self.word(stack[-1]) == "<":
                        partner[i] = stack.pop()
                        partner[partner[i]] = i
        return partner

    def _opens_body(self, i):
        """Whether the { at i follows a parameter list."""
        at = i - 1
        while self.kind(at) == "name" and self.word(at) in {"const", "noexcept", "override", "mutable", "HWY_ATTR"}:
            at -= 1
        if self.word(at) != ")" or at not in self.partner:
            return False
        return not self.word(self.partner[at] - 1).startswith("TORCH_LIBRARY")

    def _bodies(self):
        """Returns for each token whether it is in a statement of a function's body that may be changed."""
        inside, at = [False] * len(self.tokens), 0
        while at < len(self.tokens):
            if self.word(at) == "{" and at in self.partner and self._opens_body(at):
                for i in range(at + 1, self.partner[at]):
                    inside[i] = True
                at = self.partner[at]
            at += 1
        for i, token in enumerate(self.tokens):
            if token.kind == "name" and token.text in UNTOUCHED_STATEMENTS:
                self._leave_out(inside, i, self.statement_end(i))
        return inside

    def _places(self):
        """Returns _bodies() without messages and template arguments."""
        inside = list(self.body)
        for i, token in enumerate(self.tokens):
            if token.text == "<" and i in self.partner:
                self._leave_out(inside, i, self.partner[i])
            if token.kind == "name" and self.word(i + 1) == "(" and i + 1 in self.partner:
                commas = self.commas(i + 1)
                if token.text in MESSAGES and commas:
                    self._leave_out(inside, commas[0], self.partner[i + 1])
                if token.text in UNTOUCHED_CALLS:
                    self._leave_out(inside, i, self.partner[i + 1])
        return inside

    @staticmethod
    def _leave_out(inside, first, last):
        for i in range(first, min(last + 1, len(inside))):
            inside[i] = False

    def statement_end(self, i):
        while i < len(self.tokens) and self.word(i) not in (";", "{"):
            i = self.partner[i] if self.word(i) in "([<" and self.partner.get(i, 0) > i else i
            i += 1
        return i

    def commas(self, opening):
        """Returns the commas between a call's arguments."""
        found, i = [], opening + 1
        while i < self.partner[opening]:
            if self.word(i) in ("(", "[", "{", "<") and self.partner.get(i, 0) > i:
                i = self.partner[i]
            elif self.word(i) == ",":
                found.append(i)
            i += 1
        return found

    def ends_operand(self, i):
        word = self.word(i)
        if self.kind(i) == "name":
            return word not in STATEMENT_WORDS
        return self.kind(i) in ("number", "text") or word in (")", "]") or (word in (">", "}") and i in self.partner)

    def is_binary(self, i):
        return (
            self.kind(i) == "sign" and self.word(i) in PRECEDENCE and self.spaced(i) and self.ends_operand(i - 1)
            and i not in self.partner
        )  # fmt: skip

    def _heads_statement(self, i):
        """Whether the ) at i closes `if (...)` and the like."""
        before = self.word(self.partner.get(i, 0) - 1)
        return before in ("if", "for", "while", "switch", "constexpr")

    def left(self, i, precedence):
        """Returns the first token of the operand that ends before i."""
        while True:
            before, word = i - 1, self.word(i - 1)
            if before < 0 or word in CLOSING or word in (",", ";", "?", ":") or word in ASSIGNMENTS:
                return i
            if self.kind(before) == "name" and word in STOP_WORDS:
                return i
            if self.is_binary(before) and PRECEDENCE[word] < precedence:
                return i
            if word in (")", "]", "}", ">", ">>") and before in self.partner:
                if word == ")" and self._heads_statement(before) or word == "}" and self.word(i) not in (".", "["):
                    return i
                before = self.partner[before]
            elif word == "<" and before in self.partner:
                return i
            i = before

    def right(self, i, precedence):
        """Returns the last token of the operand that begins after i."""
        while True:
            after, word = i + 1, self.word(i + 1)
            if word in (")", "]", "}", ",", ";", "?", ":") or word in ASSIGNMENTS:
                return i
            if self.is_binary(after) and PRECEDENCE[word] <= precedence:
                return i
            i = self.partner[after] if self.partner.get(after, 0) > after else after

    def chain_start(self, i):
        """Returns the first token of a chain such as `a.b<c>(d)->e` that ends with the name at i."""
        while True:
            word = self.word(i - 1)
            if word == "::":
                i -= 2 if self.kind(i - 2) == "name" or self.word(i - 2) == ">" else 1
            elif word in (".", "->"):
                i -= 2
            else:
                return i
            while i in self.partner and self.partner[i] < i:
                i = self.partner[i]
                if self.kind(i - 1) == "name" and self.word(i - 1) not in STATEMENT_WORDS or self.word(i - 1) in ")]>":
                    i -= 1

    def chain_end(self, i):
        """Returns the last token of the primary expression that begins at i."""
        while True:
            i = self.partner[i] if self.partner.get(i, 0) > i else i
            word = self.word(i + 1)
            if word in (".", "->", "::"):
                i += 2
            elif word in ("(", "[", "<") and self.partner.get(i + 1, 0) > i:
                i += 1
            else:
                return i


def places(text):
    """Returns {token number: possible changes there} for every place in the text."""
    source, found = Source(text), {}
    for i in range(len(source.tokens)):
        if not source.place[i]:
            continue
        changes = [*_operator(source, i), *_assignment(source, i), *_number(source, i), *_call(source, i)]
        changes = [c for c in changes if c.before != c.after and '"' not in c.before and "[&" not in c.before]
        if changes:
            found[i] = changes
    return found


def _change(source, first, last, after, kind):
    if not all(source.body[first : last + 1]):
        return []
    return [Change(source.tokens[first].start, source.tokens[last].end, source.cut(first, last), after, kind)]


def _operator(source, i):
    word = source.word(i)
    if source.kind(i) != "sign":
        return
    if source.is_binary(i) and word in OTHER_OPERATORS:
        first, last = source.left(i, PRECEDENCE[word]), source.right(i, PRECEDENCE[word])
        if not first < i < last:
            return
        left, right = source.cut(first, i - 1), source.cut(i + 1, last)
        for other in OTHER_OPERATORS[word]:
            yield from _change(source, first, last, f"{left} {other} {right}", f"{word} -> {other}")
        for side in DROPPED.get(word, ""):
            yield from _change(source, first, last, left if side == "L" else right, "dropped term")
    elif word in ("-", "!") and not source.ends_operand(i - 1) and source.kind(i + 1) in ("name", "number"):
        last = source.chain_end(i + 1)
        rest = source.cut(i + 1, last)
        yield from _change(source, i, last, rest if word == "-" else f"bool({rest})", f"{word} dropped")


def _assignment(source, i):
    word = source.word(i)
    if word not in ASSIGNMENTS or source.kind(i) != "sign":
        return
    first = source.left(i, 0)
    last = source.right(i, 0)
    while source.word(last + 1) == "?":  # a conditional expression is assigned as a whole
        colon = source.right(last + 1, 0) + 1
        if source.word(colon) != ":":
            return
        last = source.right(colon, 0)
    if word in OTHER_ASSIGNMENTS and first < i < last:
        left, right = source.cut(first, i - 1), source.cut(i + 1, last)
        other = OTHER_ASSIGNMENTS[word]
        yield from _change(source, first, last, f"{left} {other} {right}", f"{word} -> {other}")
    # Drops a whole statement, unless it is a declaration or is followed by `else`.
    if source.word(first - 1) in (";", "{", "}") and source.word(last + 1) == ";" and source.kind(first) == "name":
        if source.chain_end(first) == i - 1:
            yield from _change(source, first, last + 1, "", "dropped statement")


def _number(source, i):
    word = source.word(i)
    if source.kind(i) == "number" and source.word(i - 1) != "#":
        if re.fullmatch(r"\d+", word):
            yield from _change(source, i, i, str(int(word) + 1), "off by one")
        elif re.fullmatch(r"\d*\.\d*(e-?\d+)?f?", word) and float(word.rstrip("f")):
            yield from _change(source, i, i, f"-{word}", "sign")


def _call(source, i):
    word = source.word(i)
    if source.kind(i) != "name" or source.word(i + 1) != "(" or i + 1 not in source.partner or word in STATEMENT_WORDS:
        return
    first, last = source.chain_start(i), source.partner[i + 1]
    before = source.word(first - 1)
    if source.kind(first - 1) == "name" and before not in ("return", "else") or before in (">", "~"):
        return  # a declaration
    head = source.text[source.tokens[first].start : source.tokens[i].start]
    if word in OTHER_NAMES and head:
        rest = source.cut(i + 1, last)
        yield from _change(source, first, last, f"{head}{OTHER_NAMES[word]}{rest}", f"{word} -> {OTHER_NAMES[word]}")
    if word in DROPPED_CALLS and source.word(i - 1) == ".":
        yield from _change(source, first, last, source.cut(first, i - 2), f"{word} dropped")
    bounds = [i + 1, *source.commas(i + 1), last]
    arguments = [source.cut(a + 1, b - 1) for a, b in zip(bounds, bounds[1:])] if len(bounds) > 2 else []
    if word in MESSAGES | COMMUTATIVE or source.cut(first, last).count("\n") > 2:
        return
    for k in range(len(arguments) - 1):
        swapped = arguments[:k] + [arguments[k + 1], arguments[k]] + arguments[k + 2 :]
        yield from _change(source, first, last, f"{head}{word}({', '.join(swapped)})", "swapped arguments")


def with_mutants(text, mutants):
    """Returns the text with the changes {number: change}, which must not overlap, and the lines (from 1) of each change."""
    parts, lines, at, line = [INCLUDE], {}, 0, 2
    for number, change in sorted(mutants.items(), key=lambda item: item[1].start):
        parts += [text[at : change.start], change.schema(number)]
        line += text.count("\n", at, change.start)
        end = line + parts[-1].count("\n")
        lines[number] = range(line, end + 1)
        at, line = change.end, end
    return "".join([*parts, text[at:]]), lines
