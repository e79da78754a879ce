"""All that a check file imports, besides `preflight.node.*`.

A check is a file; what it needs of preflight is in this one: `Check`, verdicts, `Want`, the
protocols `Node` and `Fleet`, and `by_majority`. It holds no I/O, so that judges stay pure.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Generic,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

F = TypeVar("F")

PASS, SKIP, WARN, UNKNOWN, FAIL = "pass", "skip", "warn", "unknown", "fail"
STATUSES = (PASS, SKIP, WARN, UNKNOWN, FAIL)
"""In order of gravity."""
LEVELS = ("quick", "standard", "deep")


class Unobservable(Exception):  # noqa: N818 - a statement of the probe, not an error of ours
    """A probe could not look: permission, garbage, a time limit. Makes the result `unknown`."""


class Absent(Exception):  # noqa: N818 - a statement, as above
    """Internal to `Node` and shared probes: the thing asked for does not exist on this node."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one node.

    `summary` is one line that needs no context. `observed` and `expected` are JSON-able.
    `fix` is a command or a sentence; None takes the `Fix:` of the check's docstring.
    `reproduce` is how to see it by hand, as a command to run on the node. `scope` says what a
    failure is about: this `node`, the `pair` of it and `peers`, or the `cluster`, blaming none.
    """

    status: str
    summary: str
    observed: Any = None
    expected: Any = None
    details: Tuple[str, ...] = ()
    fix: Optional[str] = None
    reproduce: Optional[str] = None
    scope: str = "node"
    peers: Tuple[str, ...] = ()


def ok(summary: str, **more: Any) -> Verdict:
    """The claim holds."""
    return Verdict(PASS, summary, **more)


def skip(reason: str, **more: Any) -> Verdict:
    """Not applicable here, or not permitted."""
    return Verdict(SKIP, reason, **more)


def warn(summary: str, **more: Any) -> Verdict:
    """Training will work, but worse than it should, or not for long."""
    return Verdict(WARN, summary, **more)


def unknown(summary: str, **more: Any) -> Verdict:
    """It could not be told."""
    return Verdict(UNKNOWN, summary, **more)


def fail(summary: str, **more: Any) -> Verdict:
    """The claim does not hold."""
    return Verdict(FAIL, summary, **more)


class Ran(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str


class StatVfs(NamedTuple):
    """Size of a file system in bytes and inodes, as `statvfs(3)` for an ordinary user."""

    size: int
    free: int
    files: int
    files_free: int


class Account(NamedTuple):
    """One user of the node's user database (files, LDAP, sssd: whatever nsswitch says)."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: Mapping[str, int]
    """Names and gids of all its groups, the primary one included."""


class Stat(NamedTuple):
    """`stat(2)` of one path."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime: float


class Node(Protocol):
    """The one door through which a probe sees its machine; all of it is recordable.

    Every method raises `Unobservable` when it could not look, and `KeyError`, `Absent` or None
    as said where the thing does not exist.
    """

    def run(self, argv: Sequence[str], timeout_s: float = 10, env: Optional[Mapping[str, str]] = None) -> Ran:
        """Run a command without a shell, stdin closed, output capped at 256 KiB a stream.

        Raises:
            Absent: there is no such program.
            Unobservable: not permitted, or past its time.
        """

    def read(self, path: str) -> Optional[str]:
        """Return a file's text (UTF-8 with replacement, at most 256 KiB), None if there is none."""

    def listdir(self, path: str) -> Optional[List[str]]:
        """Return the sorted names in a directory, None if there is no such directory."""

    def readlink(self, path: str) -> Optional[str]:
        """Return where a symbolic link points, None if there is none."""

    def realpath(self, path: str) -> str:
        """Return the path with all links resolved."""

    def stat(self, path: str) -> Optional[Stat]:
        """Return `stat(2)` of a path, None if there is none. May hang on a dead mount."""

    def access(self, path: str, mode: str) -> bool:
        """Whether the login user may read, write or execute it: `mode` of the letters rwx."""

    def statvfs(self, path: str) -> Optional[StatVfs]:
        """Return the size of the file system that holds a path. May hang on a dead mount."""

    def which(self, program: str) -> Optional[str]:
        """Return the full path of a program on PATH, None if there is none."""

    def environ(self) -> Mapping[str, str]:
        """Return the environment of the non-login shell that started the agent."""

    def account(self, name: Optional[str] = None) -> Optional[Account]:
        """Return a user by name, or the login user; None if there is none of that name."""

    def resolve(self, name: str) -> List[str]:
        """Return the addresses of a name in the resolver's order, empty if it has none."""

    def limits(self) -> Mapping[str, Tuple[int, int]]:
        """Return soft and hard resource limits by name (memlock, nofile, nproc); -1: none."""

    def uname(self) -> Mapping[str, str]:
        """Return node, release, version and machine of `uname(2)`."""

    def psutil(self, function: str, *args: Any) -> Any:
        """Return what a function of psutil returns, named tuples as dicts, JSON-able.

        Raises:
            Unobservable: psutil could not be loaded, or permission.
        """

    def nvml(self) -> Any:
        """Return the driver and GPU facts of NVML, None where there is no NVML library.

        `preflight.node.nvml.Nvml` is its shape.
        """


class Want:
    """What the inventory expects, as judges and exercises read it.

    Args:
        launch: the inventory's `launch`, JSON-able; `master` always filled in.
        expect: the inventory's `expect`.
        nodes: the names of all nodes of the run, in the inventory's order.
    """

    def __init__(
        self,
        launch: Optional[Mapping[str, Any]] = None,
        expect: Optional[Mapping[str, Any]] = None,
        nodes: Sequence[str] = (),
    ) -> None:
        self.launch = dict(launch or {})
        self.expect = dict(expect or {})
        self.nodes = tuple(nodes)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key such as `launch.port` or `expect.mtu`."""
        value: Any = {"launch": self.launch, "expect": self.expect}
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return default if value is None else value


class Opened(Protocol):
    """The node's end of an open call: a function that stays until it is told to stop."""

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Tell the controller that the function is in place, and what it must know of it."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when the controller says stop."""


class Problem(Dict[str, Any]):
    """Why there is no value: `kind` and `message`, for a bug also `traceback`."""


class Reply(NamedTuple):
    """What a call on a node gave: a value, or a problem (then the value is None)."""

    value: Any
    problem: Optional[Mapping[str, Any]] = None


class Running(Protocol):
    """An open call: `ready` holds its facts, `stop` ends it and returns its answer."""

    ready: Mapping[str, Any]

    def stop(self) -> Reply:
        """Tell it to stop, and wait for its answer."""


class Fleet(Protocol):
    """The reached nodes, as an exercise sees them. All methods may be called from threads."""

    nodes: Tuple[str, ...]
    """Names of the nodes that were reached, in the inventory's order."""

    def login(self, node: str) -> Mapping[str, Any]:
        """Return how the login on any node of the run went, reached or not."""

    def clock(self, node: str) -> Mapping[str, Any]:
        """Return `offset_s` of the node's clock to the controller's, and `error_s` around it."""

    def call(self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10) -> Reply:
        """Run a function of this check's file or of `preflight.node` on one node; never raises."""

    def map(
        self, function: Callable[..., Any], args: Mapping[str, Sequence[Any]], timeout_s: float = 10
    ) -> Mapping[str, Reply]:
        """Run it on several nodes at once, each with its own arguments."""

    def start(
        self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10
    ) -> ContextManager[Union[Running, Reply]]:
        """Start a function `f(node, opened, ...)` that stays; gives a `Reply` if it could not."""


@dataclass(frozen=True)
class Expect:
    """A key under `expect:` that a check reads.

    `type` is what YAML gives: int, float, str, bool, list or dict. `unit` is a word for people.
    """

    key: str
    type: Any
    unit: str = ""
    about: str = ""


@dataclass(frozen=True)
class Check(Generic[F]):
    """One claim about the cluster. Its id is its path, its manual page the module docstring.

    Exactly one of `probe` (runs on each node) and `exercise` (runs here, drives nodes), and
    exactly one of `judge` (one node alone) and `compare` (all at once).
    `args` gives a probe its arguments from what the inventory wants: JSON-able, the same for all.
    `explains` names checks whose failures can follow from this one's.
    """

    probe: Optional[Callable[..., F]] = None
    exercise: Optional[Callable[[Fleet, Want], Mapping[str, F]]] = None
    judge: Optional[Callable[[F, Want], Verdict]] = None
    compare: Optional[Callable[[Mapping[str, F], Want], Mapping[str, Verdict]]] = None
    args: Optional[Callable[[Want], Sequence[Any]]] = None
    level: str = "quick"
    timeout_s: float = 10
    needs_root: bool = False
    expects: Tuple[Expect, ...] = ()
    explains: Tuple[str, ...] = ()
