"""The golden file of all that preflight says of what is wrong: read it aloud, as a beginner would.

Tests put there what they have provoked, each in a section that is called as the test is, so that
one file shows all words and one place provokes each of them.
"""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from preflight.errors import TransportError
from preflight.no_agent import AgentError

TESTS = Path(__file__).parent.parent
GOLDEN = Path(__file__).with_name("golden.txt")
HEAD = """\
# All that preflight says of what is wrong, by the tests that provoke it. [kind] begins what a
# report says of a node, > is what to do next. Written by pytest --update-golden.
"""
VOLATILE = {
    r"(?<=127\.0\.0\.1:)\d{4,5}\b": "PORT",
    r"(?<=\[127\.0\.0\.1\]:)\d{4,5}\b": "PORT",
    r"(?<=-p )\d{4,5}\b": "PORT",
    r"(?<=SHA256:)[\w+/]{43}": "FINGERPRINT",
    r"(?<=is Python )[23]\.\d+\.\d+": "VERSION",
    r"(?<=does not resolve: ).*": "REASON",
    r"(?<=does not resolve there: ).*": "REASON",
    rf"\b{getpass.getuser()}(?=@127|')": "USER",
}
"""What is another one at each run or on each machine, and what stands in for it."""

Sections = dict[str, dict[str, list[str]]]
"""Lines by file of tests and by title."""


class Aloud:
    """What one test has provoked.

    Args:
        test: its file, as seen from the root.
        title: its name in words.
        places: folders and files of this run, with what stands in for them.
        update: whether the golden file is written instead of compared.
    """

    def __init__(self, test: str, title: str, places: Mapping[str, str], update: bool) -> None:
        self._test, self._title, self._update = test, title, update
        self._places = {**places, str(TESTS.parent): "ROOT", sys.executable: "PYTHON"}

    def __call__(self, *said: Exception | str, about: str = "") -> None:
        """See that it is what the golden file has; `about` tells sections of one test apart."""
        title = f"{self._title}: {about}" if about else self._title
        lines = [line for one in said for line in self._lines(one)]
        sections = read()
        if self._update:
            sections.setdefault(self._test, {})[self._same(title)] = lines
            write(sections)
        assert read().get(self._test, {}).get(self._same(title)) == lines

    def _lines(self, said: Exception | str) -> list[str]:
        if isinstance(said, (TransportError, AgentError)):
            words = f"[{said.kind}] {said.message}" + (f"\n> {said.hint}" if said.hint else "")
        else:
            words = str(said)
        return self._same(words).splitlines()

    def _same(self, words: str) -> str:
        for place, name in sorted(self._places.items(), key=lambda item: -len(item[0])):
            words = words.replace(place, name)
        for pattern, name in VOLATILE.items():
            words = re.sub(pattern, name, words)
        return words


def read() -> Sections:
    """Return the golden file, taken apart."""
    found: Sections = {}
    text = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    for part in text.split("\n## ")[1:]:
        name, *rest = part.splitlines()
        sections = found.setdefault(name, {})
        for line in filter(None, rest):
            if line.startswith("  "):
                sections[next(reversed(sections))].append(line[2:])
            else:
                sections[line] = []
    return found


def write(sections: Sections) -> None:
    """Write the golden file."""
    lines = [HEAD]
    for name, those in sorted(sections.items()):
        lines += [f"## {name}", ""]
        for title, said in sorted(those.items()):
            lines += [title, *(f"  {line}" for line in said), ""]
    GOLDEN.write_text("\n".join(lines), encoding="utf-8")
