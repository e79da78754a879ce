"""A page of text for a terminal: escapes what is foreign, wraps, and keeps commands whole.

All text goes through `Page`, so that nothing a node said can move the cursor, set a colour or
forge a line. Plain ASCII apart from what nodes said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.cells import cell_len, chop_cells
from rich.text import Text

from preflight.errors import printable

INDENT = 3
"""Of what belongs to a heading."""
LABEL = 5
"""Columns of the widest label, `why: `."""
MOST = 400
"""Characters of one piece of foreign text: five lines of an 80-column terminal."""
MOST_OF_LABEL = 60
MOST_BLANKS = 16
NARROWEST = 8
"""Columns of text, however much stands before it."""
MOST_OF_COMMAND = 2000
"""A command that is cut is of no use, so there is room for any that somebody would copy."""

_WORD = re.compile(r"`[^`]*`\S*|\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PROSE = re.compile(r"[,:] |\b(?:the|and|or|it|is|that|which|with|your)\b", re.IGNORECASE)


def is_command(text: str) -> bool:
    """Whether a fix is to be typed rather than read, as far as its words tell.

    In doubt it is: prose that is not wrapped still reads, a command that is broken does not run.
    """
    return not _PROSE.search(_QUOTED.sub("", text))


@dataclass
class Page:
    """Lines of a width, for an output of an encoding."""

    width: int
    encoding: str = "utf-8"
    lines: list[Text] = field(default_factory=list)

    def clean(self, text: str, most: int = MOST) -> str:
        """Return foreign text fit for this output, on one line."""
        if len(text) > most:
            text = text[: most - 3] + "..."
        return printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def blank(self) -> None:
        """Leave a line free, unless one is or nothing is above."""
        if self.lines and self.lines[-1].plain:
            self.lines.append(Text())

    def line(self, *parts: tuple[str, str]) -> None:
        """Write a line of texts with their styles, as they are: they must fit."""
        self.lines.append(Text.assemble(*((self.clean(text), style) for text, style in parts)))

    def title(self, text: str) -> None:
        """Begin a section."""
        self.blank()
        self.line((text, "bold"))

    def wrap(
        self,
        text: str,
        label: str = "",
        indent: int = INDENT,
        style: str = "",
        label_style: str = "dim",
        most: int = MOST,
    ) -> None:
        """Write text on as many lines as it takes, the label before the first."""
        label = self.clean(label, MOST_OF_LABEL)
        inside = indent + (max(LABEL, len(label) + 1) if label else 0)
        for number, words in enumerate(wrapped(self.clean(text, most), self.width - inside)):
            before = " " * indent + label if number == 0 else ""
            self.lines.append(Text.assemble((before.ljust(inside), label_style), (words, style)))

    def keep(self, text: str, indent: int) -> None:
        """Write a line with the blanks it begins with, such as one of a traceback."""
        blanks = min(len(text) - len(text.lstrip(" ")), MOST_BLANKS)
        self.wrap(text, indent=indent + blanks, style="dim")

    def command(self, text: str, label: str, where: str = "") -> None:
        """Write commands to copy, one a line, never broken; `where` says on which nodes."""
        texts = [self.clean(line, MOST_OF_COMMAND) for line in text.split("\n")]
        room = self.width - INDENT - LABEL
        begin = " " * INDENT + label.ljust(LABEL)
        if len(texts) == 1 and not where and cell_len(texts[0]) <= room:
            self.lines.append(Text.assemble((begin, "dim"), (texts[0], "cyan")))
            return
        self.lines.append(Text((begin + self.clean(where)).rstrip(), "dim"))
        self.lines += [
            Text.assemble(" " * (INDENT + LABEL if cell_len(line) <= room else 0), (line, "cyan"))
            for line in texts
        ]

    def heading(self, lead: str, who: str, summary: str, right: str) -> None:
        """Write what a block is about: on one line if it fits, else the summary below."""
        before, after = f"{lead} ".ljust(INDENT), self.clean(right, MOST_OF_LABEL)
        name, said = self.clean(who), self.clean(summary)
        room = self.width - len(before) - cell_len(after) - 2
        if cell_len(name) + 2 + cell_len(said) <= room:
            self._spread(Text.assemble((before + name, "bold"), "  ", said), after)
            return
        for number, words in enumerate(wrapped(name, room)):
            start = Text((before if number == 0 else " " * INDENT) + words, "bold")
            self._spread(start, after if number == 0 else "")
        self.wrap(summary)

    def _spread(self, left: Text, right: str) -> None:
        if right:
            gap = self.width - left.cell_len - cell_len(right)
            left = Text.assemble(left, " " * gap, (right, "dim"))
        self.lines.append(left)

    def text(self) -> Text:
        """Return all of it."""
        return Text("\n").join(self.lines)


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines; only a word wider than a line is broken, after a comma if it can be."""
    lines, width = [""], max(width, NARROWEST)
    for word in _WORD.findall(text):
        for piece in _pieces(word, width):
            longer = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(longer) <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """Yield a word in pieces that are as wide as a line, so that no two fit on one."""
    if cell_len(word) <= width:
        yield word
        return
    piece = ""
    for part in re.findall(r"[^,]*,|[^,]+", word):
        if piece and cell_len(piece + part) > width:
            yield piece
            piece = ""
        *full, piece = chop_cells(piece + part, width)
        yield from full
    yield piece
