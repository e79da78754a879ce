"""The user's `~/.ssh/config` and the machine's `/etc/ssh/ssh_config`, read once for a run.

Not the SSH library's own reader, which ignores `Include`. What preflight does not use is skipped,
so that a keyword unknown here never stops a run.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.transport.patterns import matches

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
MAX_DEPTH = 16
"""Of `Include`, as in OpenSSH (readconf.c, READCONF_MAX_DEPTH)."""
MANY = frozenset({"identityfile", "certificatefile"})
"""Keywords whose values add up; of all others the first one counts."""
KEPT = MANY | {
    "host",
    "hostname",
    "user",
    "port",
    "identitiesonly",
    "identityagent",
    "proxyjump",
    "proxycommand",
    "userknownhostsfile",
    "globalknownhostsfile",
    "hostkeyalias",
}
WHOLE = frozenset({"proxycommand"})
"""Keywords whose value is the rest of the line."""
CRITERIA = frozenset({"all", "host", "originalhost", "user", "localuser"})

_WORD = re.compile(r'"([^"]*)"|(\S+)')
_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$")


class Line(NamedTuple):
    """One line: a keyword in lower case, its words, and for `include` the files it brought."""

    keyword: str
    words: tuple[str, ...]
    files: tuple[tuple[Line, ...], ...] = ()
    ignored: str = ""
    """Of a `match` that cannot be evaluated: what to say if its section says anything to us."""


Settings = Mapping[str, list[str]]
"""Of each keyword found its values: one, or several for a list or for a keyword of `MANY`."""


def home() -> Path:
    """Return the user's home directory, as `$HOME` says; `/` for a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def local_user() -> str:
    """Return who runs this, the number where the machine knows no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class SshConfig:
    """Both files, ready to be asked about many hosts.

    Raises:
        ConfigError: a file is there but cannot be read.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        user_file: Path | None = None,
        system: Path = SYSTEM_CONFIG,
    ) -> None:
        user_file = user_file or home() / ".ssh" / "config"
        self._files = tuple(_parse(path, path.parent, warn, 0) for path in (user_file, system))
        self.lookup = lru_cache(maxsize=None)(self._lookup)

    def _lookup(self, host: str, user: str | None = None) -> Settings:
        """Return what the files say of a host; `user` is the one it was asked with, if any."""
        found: dict[str, list[str]] = {}
        for lines in self._files:
            _apply(lines, host, user, found)
        return found


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace `%h` and its kin, `${VARIABLE}` and a leading `~`.

    Raises:
        ConfigError: a variable that is not set, a token that does not exist here, a home folder
            of nobody, or a character that ends a path for the system.
    """

    def one(match: re.Match[str]) -> str:
        token, variable = match.groups()
        value = os.environ.get(variable) if variable else {**tokens, "%": "%"}.get(token)
        if value is None:
            what = "is not set in the environment" if variable else "is not known here"
            raise ConfigError(f"~/.ssh/config: {text!r}: {match.group()!r} {what}")
        return value

    replaced = re.sub(r"%(.)|\$\{(\w+)\}", one, text)
    if "\0" in replaced:
        raise ConfigError(f"~/.ssh/config: {text!r}: has a NUL character; remove it")
    try:
        return str(Path(replaced).expanduser()) if replaced.startswith("~") else replaced
    except RuntimeError as error:
        raise ConfigError(f"~/.ssh/config: {text!r}: there is no such home folder") from error


def _parse(path: Path, base: Path, warn: Callable[[str], None], depth: int) -> tuple[Line, ...]:
    lines = tuple(_lines(path, base, warn, depth))
    ignored = ""
    for line in lines:
        if line.keyword in {"host", "match"}:
            ignored = line.ignored
        elif ignored and (line.keyword != "include" or any(line.files)):
            warn(ignored)
            ignored = ""
    return lines


def _lines(path: Path, base: Path, warn: Callable[[str], None], depth: int) -> Iterator[Line]:
    if depth > MAX_DEPTH:
        raise ConfigError(
            f"{path}: Include: more than {MAX_DEPTH} in one another; does one include itself?"
        )
    for number, raw in enumerate(_read(path).splitlines(), 1):
        match = _LINE.match(raw)
        if match is None:
            continue
        keyword, rest = match.group(1).lower(), match.group(2)
        if keyword == "include":
            yield Line(keyword, (), tuple(_included(_words(rest), base, warn, depth)))
        elif keyword == "match":
            yield _match(_words(rest), f"{path}:{number}")
        elif keyword in KEPT:
            yield Line(keyword, (rest,) if keyword in WHOLE else _words(rest))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {(error.strerror or '').lower()}") from error


def _included(
    words: Sequence[str], base: Path, warn: Callable[[str], None], depth: int
) -> Iterator[tuple[Line, ...]]:
    for word in words:
        # not Path.glob: the pattern may be absolute
        for name in sorted(glob.glob(str(base / expand(word, {})))):  # noqa: PTH207
            yield _parse(Path(name), base, warn, depth + 1)


def _words(rest: str) -> tuple[str, ...]:
    words = []
    for match in _WORD.finditer(rest):
        if match.group().startswith("#"):
            break
        words.append(match.group(1) if match.group(2) is None else match.group(2))
    return tuple(words)


def _match(words: tuple[str, ...], where: str) -> Line:
    names = [word.lower().removeprefix("!") for word in words if word.lower() != "all"][::2]
    odd = [name for name in names if name not in CRITERIA]
    if not odd and words:
        return Line("match", words)
    why = f"{where}: Match {' '.join(odd)}: not evaluated here, its section is ignored"
    return Line("match", ("!all",), ignored=why)


def _apply(lines: Sequence[Line], host: str, user: str | None, found: dict[str, list[str]]) -> None:
    active = True
    for line in lines:
        if line.keyword == "host":
            active = matches(line.words, host)
        elif line.keyword == "match":
            active = _matched(line.words, host, user, found)
        elif active and line.keyword == "include":
            for file in line.files:
                _apply(file, host, user, found)
        elif active and line.keyword in MANY:
            found.setdefault(line.keyword, []).extend(line.words)
        elif active and line.words:
            found.setdefault(line.keyword, list(line.words))


def _matched(
    words: Sequence[str], host: str, user: str | None, found: Mapping[str, list[str]]
) -> bool:
    subjects = {
        "host": expand(found["hostname"][0], {"h": host}) if "hostname" in found else host,
        "originalhost": host,
        "user": user or found.get("user", [local_user()])[0],
        "localuser": local_user(),
    }
    rest = iter(words)
    for word in rest:
        criterion = word.lower()
        wanted = not criterion.startswith("!")
        criterion = criterion.removeprefix("!")
        fits = criterion == "all" or matches(next(rest, "").split(","), subjects[criterion])
        if fits is not wanted:
            return False
    return True
