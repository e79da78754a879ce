"""`Node` from a recording: the same door as `toolbox.py`, with a machine that is not there.

A recording is JSON: for each method its answers by `key(args)`; an answer is the value, or
`{"unobservable": message}`, or `{"absent": message}`. What was not recorded is refused, so that a
probe can't pass by asking something else. Of use for cases and demos; `recorder.py` fills one.
Sent to nodes when they are recorded: stdlib only, Python 3.8.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from preflight.api import Absent, Account, Ran, Stat, StatVfs, Unobservable, Visit

LONGEST = 80
"""Characters of a question that a message shows."""


class Unrecorded(LookupError):
    """A recording has no answer; not `Unobservable`, which a probe may catch and go on."""

    def __init__(self, question: str) -> None:
        super().__init__(f"the recording has no answer to {question}; record it again")
        self.question = question


def key(*args: Any) -> str:
    """Return the words of a call as a recording writes them; a command as one line."""
    words = args[0] if args and isinstance(args[0], (list, tuple)) else args
    return " ".join(str(word) for word in words if word is not None)


def question(method: str, *args: Any) -> str:
    """Return a call in words; of a program that it carries only the interpreter."""
    words = key(*args).split(" -c ")[0][:LONGEST]
    return f"{method} {words!r}" if words else method


class Replay:
    """A recorded node; see `preflight.api.Node` for the methods.

    Args:
        recording: answers by method and key.
    """

    def __init__(self, recording: Mapping[str, Mapping[str, Any]]) -> None:
        self._recording = recording

    def answer(self, method: str, *args: Any) -> Any:
        """Return a recorded answer.

        Raises:
            Unrecorded: it has none.
        """
        answers = self._recording.get(method, {})
        if key(*args) not in answers:
            raise Unrecorded(question(method, *args))
        value = answers[key(*args)]
        if isinstance(value, dict) and set(value) == {"absent"}:
            raise Absent(value["absent"])
        if isinstance(value, dict) and set(value) == {"unobservable"}:
            raise Unobservable(value["unobservable"])
        return value

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float = 10,  # noqa: ARG002 - of the machine only
        env: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Ran:
        """Return a recorded command's end; `code` and `err` may be left out."""
        found = self.answer("run", list(argv))
        return Ran(found.get("code", 0), found.get("out", ""), found.get("err", ""))

    def read(self, path: str) -> str | None:
        """Return a recorded file."""
        found: str | None = self.answer("read", path)
        return found

    def listdir(self, path: str) -> list[str] | None:
        """Return a recorded directory."""
        found: list[str] | None = self.answer("listdir", path)
        return found

    def readlink(self, path: str) -> str | None:
        """Return a recorded link."""
        found: str | None = self.answer("readlink", path)
        return found

    def realpath(self, path: str) -> str:
        """Return a recorded path."""
        return str(self.answer("realpath", path))

    def stat(self, path: str) -> Stat | None:
        """Return a recorded stat."""
        found = self.answer("stat", path)
        return None if found is None else Stat(*found)

    def access(self, path: str, mode: str) -> bool:
        """Return a recorded permission."""
        return bool(self.answer("access", path, mode))

    def statvfs(self, path: str) -> StatVfs | None:
        """Return a recorded file system size."""
        found = self.answer("statvfs", path)
        return None if found is None else StatVfs(*found)

    def visit(
        self,
        paths: Sequence[str],
        limit_s: float = 2,  # noqa: ARG002 - of the machine only
    ) -> Mapping[str, Visit]:
        """Return recorded visits."""
        return {path: Visit(**self.answer("visit", path)) for path in paths}

    def which(self, program: str) -> str | None:
        """Return a recorded program's path."""
        found: str | None = self.answer("which", program)
        return found

    def environ(self) -> Mapping[str, str]:
        """Return the recorded environment."""
        found: dict[str, str] = self.answer("environ")
        return found

    def account(self, name: str | None = None) -> Account | None:
        """Return a recorded user."""
        found = self.answer("account", name)
        return None if found is None else Account(**found)

    def resolve(self, name: str) -> list[str]:
        """Return recorded addresses."""
        found: list[str] = self.answer("resolve", name)
        return found

    def limits(self) -> Mapping[str, tuple[int, int]]:
        """Return recorded limits."""
        return {name: (soft, hard) for name, (soft, hard) in self.answer("limits").items()}

    def now(self) -> float:
        """Return the recorded clock."""
        return float(self.answer("now"))

    def uname(self) -> Mapping[str, str]:
        """Return the recorded uname."""
        found: dict[str, str] = self.answer("uname")
        return found

    def psutil(self, function: str, *args: Any) -> Any:
        """Return a recorded answer of psutil."""
        return self.answer("psutil", function, *args)

    def process(self, pid: int) -> Mapping[str, Any] | None:
        """Return a recorded process."""
        found: dict[str, Any] | None = self.answer("process", pid)
        return found

    def nvml(self, function: str, *args: Any) -> Any:
        """Return a recorded answer of NVML."""
        return self.answer("nvml", function, *args)
