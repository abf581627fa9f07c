"""Finds words and phrases that the project's plain English avoids, and suggests others.

    python -m tools.words                        all product files and pages
    python -m tools.words --files loader/run.py  some files, or all in some folders
    python -m tools.words --count                how many findings each folder has

In Python files it reads docstrings, comments and string literals (messages, help), in pages all text
but blocks of code, and in notebooks the cells of text. A phrase is also found where it is wrapped over two lines.

Exit code: 1 if something was found, and 0 otherwise or with --count.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

FOLDERS: Final = (
    *("loader", "sources", "transforms", "converters", "examples"),
    *("docs/how-to", "docs/tutorials"),
)
PAGES: Final = (
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"),
    *("docs/README.md", "docs/concepts.md", "docs/performance.md"),
)

# What to find, and what to write instead. A space stands for any white space.
WORDS: Final = {
    r"[Tt](?:old|ell|ells|elling)": "report, return, state, estimate or show",
    r"(?:[Gg]oes|[Gg]o|[Gg]oing|[Gg]one|[Ww]ent) on(?! to\b)": "resume or continue",
    r"[Cc]an not": "cannot",
    r"(?:is|are|was|were|be) none": "has no ..., or is not a ...",
    r"[Nn]one of both": "neither",
    r"(?<![Tt]here\s)(?:is|are) no(?! (?:longer|more|other|less)\b)": "is not a ...",
    r"[Ff]ar away": "remote",
    r"[Bb]esides?": "alongside, next to, or except",
    r"[Ll]ook(?:s|ed|ing)? at": "inspect, read or examine",
    r"[Ww]hoever|[Nn]obody|[Ss]omebody|Who(?= (?:gives|has|wants|asks)\b)": (
        "name the caller, the user or the worker"
    ),
    r"[Ss]o many": "the number of ..., or this many",
    r"as of": "since or from",
    r"(?:[Oo]f|[Ff]rom) (?:which|whom)": "a sentence of its own, or whose",
    r"[Tt]h(?:at|ose) of": "repeat the noun",
    r"[Ii]n words": "as text, or leave it out",
    r"(?:a|each|every|any|one) text|[Tt]exts": "string or strings",
    r"[Ff]urther (?:down|up)": "earlier or later in the chain",
    r"Of(?! course\b)": "begin with the subject: 'The ... of ...'",
    r"[Cc]omes? to(?= (?:\d|so\b|as\b|what\b))|[Ww]hat \w+ comes? to": "amount to, or the total",
    r"without a word": "silently",
}

# Per file, lines that may stay as they are, since they quote another program or a name.
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    # A key of the journal of a conversion.
    "converters/job/folder.py": ("told",),
}

_STARTS = re.compile(r"[A-Za-z]*(?:'''|\"\"\"|'|\")")
_FIELDS = re.compile(r"\{[^{}]*\}")
_MIDDLE: Final = getattr(tokenize, "FSTRING_MIDDLE", -1)
_SPACING: Final = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT})


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A phrase in a file, with the number of its line and what to write instead."""

    path: str
    line: int
    phrase: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}; write: {self.better}"


@dataclasses.dataclass(slots=True)
class Prose:
    """Lines of text that are read as one, each with its number in the file."""

    lines: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, first: int, text: str) -> None:
        """Add text that begins in line `first`."""
        self.lines.extend(enumerate(text.split("\n"), first))

    def findings(self, path: str) -> Iterator[Finding]:
        """Yield what the text has of the words."""
        text = "\n".join(line for _, line in self.lines)
        for match in _PATTERN.finditer(text):
            number, line = self.lines[text.count("\n", 0, match.start())]
            if not any(allowed in line for allowed in ALLOWED.get(path, ())):
                phrase = " ".join(match.group().split())
                assert match.lastgroup is not None
                yield Finding(path, number, phrase, _BETTER[match.lastgroup])


_BETTER: Final = {f"w{number}": better for number, better in enumerate(WORDS.values())}
# Not in names with underscores, hyphens or dots, such as fields and files.
_PATTERN: Final = re.compile(
    r"(?<![\w.-])(?:"
    + "|".join(f"(?P<w{i}>{words.replace(' ', chr(92) + 's+')})" for i, words in enumerate(WORDS))
    + r")(?![\w-])"
)


def python_prose(path: Path) -> Iterator[Prose]:
    """Yield comments and strings of a Python file; those that follow each other are one."""
    prose, kind, last_comment = Prose(), 0, 0
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                if kind != tokenize.COMMENT or line != last_comment + 1:
                    yield prose
                    prose = Prose()
                prose.add(line, token.string.lstrip("#"))
                kind, last_comment = tokenize.COMMENT, line
            elif token.type in (tokenize.STRING, _MIDDLE):
                if kind != tokenize.STRING:
                    yield prose
                    prose = Prose()
                prose.add(line, _string(token.string, token.type))
                kind = tokenize.STRING
            elif token.type not in _SPACING:
                kind = 0
    yield prose


def _string(literal: str, kind: int) -> str:
    """What a literal says, in as many lines as it has, without the expressions of an f-string."""
    if kind == tokenize.STRING:
        start = _STARTS.match(literal)
        assert start is not None
        quote = start.group().lstrip("rRbBuUfF")
        is_formatted = "f" in start.group().lower()
        literal = literal[start.end() : len(literal) - len(quote)]
        if is_formatted:
            literal = _FIELDS.sub("{}", literal)
    return literal.replace("\\n", " ").replace("\\t", " ")


def page_prose(path: Path) -> Iterator[Prose]:
    """Yield the text of a Markdown page, or of the text cells of a notebook, without blocks of code."""
    prose, is_code = Prose(), False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(x["source"]) for x in cells if x["cell_type"] == "markdown")
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        prose.add(number, "" if is_code else re.sub(r"`[^`]*`", "`...`", line))
    yield prose


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The Python files and pages among some paths, and in folders among them."""
    found: set[Path] = set()
    for path in paths:
        inside = (p for p in path.rglob("*") if p.suffix in (".py", ".md", ".ipynb"))
        found.update(inside if path.is_dir() else [path])
    return sorted(found)


def findings(path: Path) -> list[Finding]:
    """What one file has of the words, in the order of its lines."""
    path = path.resolve()
    shown = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    prose = python_prose(path) if path.suffix == ".py" else page_prose(path)
    found = [finding for part in prose for finding in part.findings(shown)]
    return sorted(found, key=lambda finding: finding.line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings, or how many there are, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", action="store_true", help="print how many each folder has")
    parser.add_argument("--files", nargs="+", type=Path, help="files or folders instead of all")
    given = parser.parse_args(arguments)
    usual = [path for name in (*FOLDERS, *PAGES) if (path := ROOT / name).exists()]
    found = [each for path in files_of(given.files or usual) for each in findings(path)]
    if not given.count:
        print(*found, *([f"{len(found):,} found"] if found else []), sep="\n")
        return int(bool(found))
    per_folder = collections.Counter(str(Path(each.path).parent) for each in found)
    for folder, count in sorted(per_folder.items()):
        print(f"{count:6,}  {folder}")
    print(f"{len(found):6,}  in all")
    for phrase, count in collections.Counter(each.phrase.lower() for each in found).most_common():
        print(f"{count:6,}  {phrase!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
