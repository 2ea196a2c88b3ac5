"""Words that pages, docstrings, comments and messages avoid, and the links of pages.

The readers are engineers who read quickly, many of them not in their first language. The words below come from an older style
of this project: idioms, archaic words, and verbs of speech for programs. A text that needs one of them as the name of something
puts it into backticks, because code is not checked.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import attrs

#: Regular expression -> better words.  Expressions ignore the case, and match whole words.
AVOID: dict[str, str] = {
    r"tells?|told|untold": "report, return, notify, name, show",
    r"hears?|heard": "receive, be notified, learn",
    r"hand(s|ed|ing)? out": "deliver, return, assign",
    r"(take|takes|taken|taking|took) up": "hold, start, acquire",
    r"(go|goes|going|went|gone) on": "continue, keep",
    r"(let|lets|letting) go": "revoke, release",
    r"(give|gives|given|giving|gave) up": "revoke, stop, time out",
    r"of (yours|ours|theirs|its own|one's own|your own|their own)": "your, our, its; separate",
    r"so (long|much|many|few)": "until, for this time; this number",
    r"(no|any) more(?! (than|of|\w+s|\w+ than)\b)": "no longer",
    r"anew": "again, from scratch",
    r"meanwhile": "at the same time, until then",
    r"beside|besides": "next to, with, in addition to",
    r"stands?|stood": "is, remains",
    r"by (itself|themselves)": "automatically, alone",
    r"(at|come|comes|came) (to )?rest": "stable, idle",
    r"whoever|whomever|nobody|somebody|everybody": "name the subject: a member, the caller, no member",
    r"in place of": "instead of",
    r"thereby|therein|thereof|hence|henceforth|lest|albeit": "so, in it",
}
#: A sentence does not begin with one of these words, because it must name its subject.
FIRST = re.compile(r"(?:^|(?<=[.!?:] )|(?<=\| )|(?<=\* ))(What|It|They|Those|Whoever|Whose)\b(?![^.|]*\?)")

_CODE = re.compile(
    r"^(?P<indent> *)(```|:::).*?^(?P=indent)(```|:::)$|^    \S.*?$|<!--.*?-->|`[^`\n]*(?:\n[^`\n]*)?`",
    re.MULTILINE | re.DOTALL,
)
#: Markup of Sphinx: a role, and code in two backticks.
_ROLE = re.compile(r":[\w:]+:`[^`]*`|``.*?``", re.DOTALL)
_LINK = re.compile(r"!?\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")
_WORDS = {re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE): better for words, better in AVOID.items()}


def prose(text: str) -> str:
    """Return a page with its code replaced by blanks, so that lines keep their numbers."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]) if "\n" in code[0] else "x", text)


def findings(text: str) -> Iterator[str]:
    """Yield the words to avoid in the text of a page, one line each: line, word, alternatives."""
    bare = prose(text)
    for words, better in _WORDS.items():
        for found in words.finditer(bare.replace("\n", " ")):
            yield f"line {bare.count(chr(10), 0, found.start()) + 1}: {found[0]!r}: better {better}"
    for number, line in enumerate(bare.splitlines(), 1):
        if not line.startswith("#"):
            for found in FIRST.finditer(line.strip()):
                if found.start() or not _continues(bare, number):
                    yield f"line {number}: a sentence begins with {found[1]!r}: name its subject"


def _continues(text: str, number: int) -> bool:
    """Return whether a line begins in the middle of a sentence."""
    before = text.splitlines()[number - 2].strip() if number > 1 else ""
    return bool(before) and not before.endswith((".", ":", "!", "?", "|"))


def links(text: str) -> Iterator[tuple[str, str]]:
    """Yield text and target of every link and image of a page, including those in HTML."""
    bare = prose(text)
    for link in _LINK.finditer(re.sub(r"`([^`\n]*)`", r"\1", _without_blocks(text))):
        yield link["text"], link["target"]
    for target in re.findall(r'(?:src|srcset|href)="([^"]+)"', bare):
        yield target, target


def _without_blocks(text: str) -> str:
    return re.sub(r"^( *)(```|:::).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", _without_blocks(page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", _LINK.sub(lambda link: link["text"], title).lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


@attrs.frozen
class Text:
    """A docstring, a comment or a string of a Python file, with its first line and its words."""

    line: int
    kind: Literal["docstring", "comment", "string"]
    words: str


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, the comments and the strings with at least two words of a Python file.

    Comments on consecutive lines are one text. In a string, a placeholder counts as one word.
    """
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (found := ast.get_docstring(node)) is not None:
            yield Text(node.body[0].lineno, "docstring", found)
    yield from _comments(source)
    # A docstring, and any other string without a use, is an expression statement; parts of an f-string are not texts.
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) not in skipped and (string := _string(node)) is not None and " " in string.strip():
            yield Text(node.lineno, "string", string)  # type: ignore[attr-defined]  # a node with a string has a line


def _string(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _comments(source: str) -> Iterator[Text]:
    first = last = 0
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa", "#!")):
            follows = token.start[0] == last + 1 and token.line.lstrip().startswith("#")
            if lines and not follows:
                yield Text(first, "comment", "\n".join(lines))
                lines = []
            first = first if lines else token.start[0]
            last = token.start[0]
            lines.append(token.string.lstrip("#:").strip())
    if lines:
        yield Text(first, "comment", "\n".join(lines))


def findings_in_python(source: str) -> Iterator[str]:
    """Yield the words to avoid in the texts of a Python file, one line each; messages may begin with any word."""
    for text in texts(source):
        bare = _ROLE.sub("x", text.words)
        for found in findings(bare):
            if text.kind != "string" or "begins with" not in found:
                yield f"{text.kind} at line {text.line}: {found.partition(': ')[2]}"
