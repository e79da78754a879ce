"""All that a check file imports, besides `preflight.node.*`.

A check is a file; what it needs of preflight is in this one: `Check`, verdicts, `Want`, the
protocols `Node` and `Fleet`, and `same_everywhere`. It holds no I/O, so that judges stay pure.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    ContextManager,
    Generic,
    Mapping,
    NamedTuple,
    NewType,
    Protocol,
    Sequence,
    TypeVar,
)

Address = NewType("Address", str)
"""An IP address, or a subnet's with its length; empty for none. An answer with other text in its
place is not understood."""
PortNumber = NewType("PortNumber", int)
"""Of TCP or UDP; 0 for none. An answer with another number in its place is not understood."""
F = TypeVar("F")
R = TypeVar("R", contravariant=True)

PASS, SKIP, WARN, UNKNOWN, FAIL = "pass", "skip", "warn", "unknown", "fail"
STATUSES = (PASS, SKIP, WARN, UNKNOWN, FAIL)
"""In order of gravity."""
LEVELS = ("quick", "standard", "deep")


class Unobservable(Exception):
    """A probe could not look: permission, garbage, a time limit. Makes the result `unknown`."""


class Absent(Unobservable):
    """What a probe asked for does not exist on this node: catch it, absence is a fact."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one node.

    `summary` is one line that needs no context. `observed` and `expected` are JSON-able.
    `fix` is a command or a sentence; None takes the `Fix:` of the check's docstring.
    `reproduce` is how to see it by hand, as a command to run on the node. `scope` says what a
    failure is about: this `node`, the `pair` of it and `peers`, or the `cluster`, blaming none.
    `explains` is which of the checks that its check explains can follow from this failure (None:
    all), `explained_by` from which this one can follow (None: all that say so; empty: it is a fault
    of its own).
    """

    status: str
    summary: str
    observed: Any = None
    expected: Any = None
    details: tuple[str, ...] = ()
    fix: str | None = None
    reproduce: str | None = None
    scope: str = "node"
    peers: tuple[str, ...] = ()
    explains: tuple[str, ...] | None = None
    explained_by: tuple[str, ...] | None = None


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


class Visit(NamedTuple):
    """What became of going to a path that may lie on a dead mount.

    `error` is empty, `no answer`, or the name of an errno such as `ESTALE`; then the rest is empty.
    """

    error: str
    real: str = ""
    """The path with all links resolved."""
    readable: bool = False
    """Whether the login user may enter and list it."""
    writable: bool = False
    size: int = 0
    """Bytes of the file system."""
    free: int = 0
    seconds: float = 0.0
    """How long it took to answer."""


NO_ANSWER = "no answer"
"""The `error` of a visit that did not come back in time."""


class Node(Protocol):
    """The one door through which a probe sees its machine; all of it is recordable.

    Every method raises `Unobservable` when it could not look, and `KeyError`, `Absent` or None
    as said where the thing does not exist.
    """

    def run(
        self, argv: Sequence[str], timeout_s: float = 10, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command without a shell, stdin closed, output capped at 256 KiB a stream.

        Raises:
            Absent: there is no such program.
            Unobservable: not permitted, or past its time.
        """

    def read(self, path: str) -> str | None:
        """Return a file's text (UTF-8 with replacement), None if there is none.

        At most 256 KiB; of the kernel's tables in /proc, 8 MiB.
        """

    def listdir(self, path: str) -> list[str] | None:
        """Return the sorted names in a directory, None if there is no such directory."""

    def readlink(self, path: str) -> str | None:
        """Return where a symbolic link points, None if there is none."""

    def realpath(self, path: str) -> str:
        """Return the path with all links resolved."""

    def stat(self, path: str) -> Stat | None:
        """Return `stat(2)` of a path, None if there is none. May hang on a dead mount."""

    def access(self, path: str, mode: str) -> bool:
        """Whether the login user may read, write or execute it: `mode` of the letters rwx."""

    def statvfs(self, path: str) -> StatVfs | None:
        """Return the size of the file system that holds a path. May hang on a dead mount."""

    def visit(self, paths: Sequence[str], limit_s: float = 2) -> Mapping[str, Visit]:
        """Go to several paths at once, each in a process of its own: none can hang the others.

        One that does not come back within the limit is left behind, and killed.
        """

    def which(self, program: str) -> str | None:
        """Return the full path of a program on PATH, None if there is none."""

    def environ(self) -> Mapping[str, str]:
        """Return the environment of the non-login shell that started the agent."""

    def account(self, name: str | None = None) -> Account | None:
        """Return a user by name, or the login user; None if there is none of that name."""

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name in the resolver's order, empty if it has none."""

    def limits(self) -> Mapping[str, tuple[int, int]]:
        """Return soft and hard resource limits by name (memlock, nofile, nproc); -1: none."""

    def now(self) -> float:
        """Return this machine's clock, seconds since the epoch."""

    def uname(self) -> Mapping[str, str]:
        """Return node, release, version and machine of `uname(2)`."""

    def psutil(self, function: str, *args: Any) -> Any:
        """Return what a function of psutil returns, named tuples as dicts, JSON-able.

        Raises:
            Unobservable: psutil could not be loaded, or permission.
        """

    def process(self, pid: int) -> Mapping[str, Any] | None:
        """Return pid, name, username, cmdline (list) and create_time of a process, None if gone.

        What may not be seen is None.
        """

    def nvml(self, function: str, *args: Any) -> Any:
        """Return what an NVML function returns, such as `nvmlDeviceGetName` of GPU index 0.

        The handle that `nvmlDevice...` functions take first is given as the GPU's NVML index;
        structures come as dicts.

        Raises:
            Absent: there is no NVML library, or this driver or GPU has no such function.
            Unobservable: NVML said anything else; the message is NVML's own.
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
        launch: Mapping[str, Any] | None = None,
        expect: Mapping[str, Any] | None = None,
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


class Opened(Protocol[R]):
    """The node's end of an open call: a function that stays until it is told to stop.

    `Opened[...]` says what it tells once it is in place.
    """

    def ready(self, facts: R) -> None:
        """Tell the controller that the function is in place, and what it must know of it."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when the controller says stop."""


class Reply(NamedTuple):
    """What a call on a node gave: a value, or a problem (then the value is None).

    A problem has `kind` (unobservable, timeout, died, bug, too_large, garbled, needs_root,
    not_reached) and `message`; a bug also its `traceback`. A value is as the function's annotations
    say, else it is garbled. `seconds` is the time that it took on the node.
    """

    value: Any
    problem: Mapping[str, Any] | None = None
    seconds: float = 0.0


class Running(Protocol):
    """An open call: `ready` holds its facts, `stop` ends it and returns its answer."""

    ready: Mapping[str, Any]

    def stop(self) -> Reply:
        """Tell it to stop, and wait for its answer."""


class Fleet(Protocol):
    """The reached nodes, as an exercise sees them. All methods may be called from threads."""

    nodes: tuple[str, ...]
    """Names of the nodes that were reached, in the inventory's order."""
    level: str
    """Of the run: how much an exercise may ask of them."""

    def login(self, node: str) -> Mapping[str, Any]:
        """Return how the login on any node of the run went, reached or not."""

    def clocks(self) -> Mapping[str, Mapping[str, float]]:
        """Return of each node `offset_s`, its clock's lead over ours, and `error_s` around it."""

    def call(
        self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10
    ) -> Reply:
        """Run a function of this check's file or of `preflight.node` on one node; never raises."""

    def map(
        self, function: Callable[..., Any], args: Mapping[str, Sequence[Any]], timeout_s: float = 10
    ) -> Mapping[str, Reply]:
        """Run it on several nodes at once, each with its own arguments."""

    def start_all(
        self, function: Callable[..., Any], args: Mapping[str, Sequence[Any]], timeout_s: float = 10
    ) -> ContextManager[Mapping[str, Running | Reply]]:
        """As `start`, on several nodes at once, each with its own arguments."""

    def start(
        self, node: str, function: Callable[..., Any], *args: Any, timeout_s: float = 10
    ) -> ContextManager[Running | Reply]:
        """Start a function `f(node, opened, ...)` that stays; gives a `Reply` if it could not."""


@dataclass(frozen=True)
class Expect:
    """A key under `expect:` that a check reads.

    `type` is what YAML gives: int, float (whole numbers too), str, bool, list (of strings), or
    dict. `unit` is a word for people. `fields` are the keys of a dict, or of each dict in a list;
    `required` is for them: a key under `expect:` itself is always optional.
    """

    key: str
    type: Any
    unit: str = ""
    about: str = ""
    fields: tuple[Expect, ...] = ()
    required: bool = False


class Point(NamedTuple):
    """What a message of one size took; of several ranks the slowest one counts."""

    bytes: int
    ms: float
    algbw: float
    """GB/s: bytes over time."""
    busbw: float
    """GB/s that each way carries: algbw * 2 (n-1) / n of an all_reduce of n ranks."""


TOGETHER = "*"
"""In place of a node's name: what is told is of all of them together."""


@dataclass(frozen=True)
class Check(Generic[F]):
    """One claim about the cluster. Its id is its path, its manual page the module docstring.

    Exactly one of `probe` (runs on each node) and `exercise` (runs here, drives nodes), and
    exactly one of `judge` (one node alone) and `compare` (all at once).
    `args` gives a probe its arguments from what the inventory wants: JSON-able, the same for all.
    Of an exercise it says what its facts depend on; left out: on all of `launch`.
    `lane` of an exercise that bears others beside it says what it has to itself, such as a port:
    those of one lane go one after the other, different lanes side by side. Left out, as where
    anything is timed: it has the cluster to itself.
    `facts_of` is another check with the same exercise: it is done once, and both judge its facts.
    `explains` names checks whose failures can follow from this one's; a verdict may narrow it.
    `pairs` gives of facts about pairs of nodes what came of each, by both nodes: a word or two,
    nothing where it is good. The report shows it beside the cause.
    `curves` gives of facts how a rate grows with the size of a message, by node or of all together
    (`TOGETHER`): of each size bytes, ms, algbw and busbw in GB/s. The report shows it for people.
    """

    probe: Callable[..., F] | None = None
    exercise: Callable[[Fleet, Want], Mapping[str, F]] | None = None
    judge: Callable[[F, Want], Verdict] | None = None
    compare: Callable[[Mapping[str, F], Want], Mapping[str, Verdict]] | None = None
    args: Callable[[Want], Sequence[Any]] | None = None
    lane: str = ""
    facts_of: str = ""
    level: str = "quick"
    timeout_s: float = 10
    needs_root: bool = False
    expects: tuple[Expect, ...] = ()
    explains: tuple[str, ...] = ()
    pairs: Callable[[Mapping[str, F]], Mapping[str, Mapping[str, str]]] | None = None
    curves: Callable[[Mapping[str, F]], Mapping[str, Sequence[Point]]] | None = None


def same_everywhere(
    values: Mapping[str, Any],
    what: str,
    expected: Any = None,
    show: Callable[[Any], str] = str,
    say: Callable[..., Verdict] = fail,
    **more: Any,
) -> dict[str, Verdict]:
    """Return the verdicts of a claim that all nodes have the same of something.

    The odd nodes are named where more than half of the nodes agree; without such a majority all
    nodes differ and none is blamed (`scope` cluster). With `expected`, each node is held to that.

    Args:
        values: JSON-able, by node; None: the node has no such thing.
        what: its name, such as `NVIDIA driver`.
        expected: from the inventory; None: whatever the majority has.
        show: how a value is written.
        say: `fail` or `warn`.
        more: `fix`, `reproduce` and so on, for the nodes that are not right.
    """
    kinds: dict[str, list[str]] = {}
    for node, value in values.items():
        kinds.setdefault(json.dumps(value, sort_keys=True), []).append(node)
    written = {k: "no " + what if k == "null" else what + " " + show(json.loads(k)) for k in kinds}
    good = json.dumps(expected, sort_keys=True) if expected is not None else majority(kinds)
    if expected is None and list(kinds) == ["null"]:
        return {node: skip(f"no {what} on any node") for node in values}
    if good is None:
        return differ(kinds, written, say, more)
    right = expected if expected is not None else json.loads(good)
    count = len(kinds.get(good, ()))
    beside = "expected"
    if expected is None:
        rest = len(values) - count
        beside = f"the {count} others have" if rest == 1 else f"{count} of {len(values)} nodes have"
    verdicts = {}
    for kind, nodes in kinds.items():
        wrong = f"{written[kind]}, {beside} {'none' if right is None else show(right)}"
        for node in nodes:
            verdicts[node] = (
                ok(written[kind], observed=values[node])
                if kind == good
                else say(wrong, observed=values[node], expected=right, **more)
            )
    return verdicts


def majority(kinds: Mapping[str, Sequence[str]]) -> str | None:
    """Return the kind that more than half of all nodes are of, None if there is none."""
    total = sum(len(nodes) for nodes in kinds.values())
    return next((kind for kind, nodes in kinds.items() if 2 * len(nodes) > total), None)


def differ(
    kinds: Mapping[str, Sequence[str]],
    written: Mapping[str, str],
    say: Callable[..., Verdict],
    more: Mapping[str, Any],
) -> dict[str, Verdict]:
    """Return the verdicts where no majority says who is right: the cluster differs."""
    parts = [f"{written[kind]} on {some(nodes)}" for kind, nodes in kinds.items()]
    summary = "differs: " + "; ".join(parts)
    return {
        node: say(summary, observed=json.loads(kind), scope="cluster", **more)
        for kind, nodes in kinds.items()
        for node in nodes
    }


def some(names: Sequence[str], most: int = 4) -> str:
    """Return a list of names for people, cut short where it is long."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
