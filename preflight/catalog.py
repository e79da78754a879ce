"""Finds, loads and validates check files; nothing is contacted before all of them are right."""

from __future__ import annotations

import difflib
import graphlib
import importlib.metadata
import importlib.util
import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from preflight.api import LEVELS, Check, Expect
from preflight.errors import ConfigError
from preflight.shape import returned

MODULES = "preflight.checks"
"""Check files are loaded under this name, here and on nodes; it is no importable package."""
PARTS = ("Why", "Facts", "Source", "Fix")
ALWAYS = "access"
"""The group that is always selected: without it no row says why a node is missing."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
GROUPS = ("access", "software", "launch", "network", "rdma", "gpu", "host", "storage", "collective")
"""The built-in groups, in the order in which things are shown; others follow by name."""
FUNCTIONS = ("probe", "exercise", "judge", "compare", "args", "pairs", "curves")
KINDS = (int, float, str, bool, list, dict)
"""What an expected value may be; a list is of text, or of mappings with the fields declared."""


@dataclass(frozen=True)
class Manual:
    """A check's docstring, taken apart."""

    claim: str
    why: str
    facts: str
    source: str
    fix: str


@dataclass(frozen=True)
class Loaded:
    """A check file that is fit to run."""

    id: str
    path: Path
    text: str
    check: Check[Any]
    manual: Manual

    @property
    def group(self) -> str:
        """The folder's name."""
        return self.id.split(".", maxsplit=1)[0]

    @property
    def module(self) -> str:
        """The name it is loaded under, on both sides."""
        return f"{MODULES}.{self.id}"

    def call(self, args: Sequence[Any]) -> tuple[str, str, tuple[Any, ...]]:
        """Return module, function and arguments of its probe."""
        probe = self.check.probe
        if probe is None:
            raise TypeError(f"{self.id} has no probe")
        return probe.__module__, probe.__name__, tuple(args)

    @property
    def evidence(self) -> str:
        """Return the key of its facts in the report.

        A probe's arguments are no part of it: facts are judged again with other inventories.
        """
        if self.check.probe is None:
            return self.check.facts_of or self.id
        rooted = " as root" if self.check.needs_root else ""
        return f"{self.check.probe.__module__}:{self.check.probe.__name__}{rooted}"

    @property
    def promise(self) -> Any:
        """Return what its facts of one node are, as annotated; Any where that is not told."""
        if self.check.exercise:
            return (*get_args(returned(self.check.exercise)), Any, Any)[1]
        return returned(self.check.probe) if self.check.probe else Any


class Catalog(Mapping[str, Loaded]):
    """All checks by id, in the order in which they are shown."""

    def __init__(self, loaded: Iterable[Loaded]) -> None:
        ranks = {group: rank for rank, group in enumerate(GROUPS)}
        ordered = sorted(loaded, key=lambda one: (ranks.get(one.group, len(ranks)), one.group))
        self._checks = {one.id: one for one in ordered}

    def __getitem__(self, check_id: str) -> Loaded:
        return self._checks[check_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checks)

    def __len__(self) -> int:
        return len(self._checks)

    @property
    def expects(self) -> tuple[Expect, ...]:
        """All keys that checks read under `expect:`."""
        return tuple(expect for one in self.values() for expect in one.check.expects)

    def match(self, word: str, option: str) -> list[str]:
        """Return the ids that a word of `--only`, `--skip` or `--require` means.

        Raises:
            ConfigError: no such check or group.
        """
        found = [i for i in self if i == word or i.split(".")[0] == word]
        if found:
            return found
        known = [*self, *dict.fromkeys(one.group for one in self.values())]
        near = difflib.get_close_matches(word, known, 1)
        more = f", did you mean {near[0]!r}?" if near else "; `preflight checks` lists them"
        raise ConfigError(f"{option}: there is no check or group {word!r}{more}")

    def select(self, only: Sequence[str], level: str) -> list[Loaded]:
        """Return the checks of a run. `--only` a check's own id overrules the level.

        Raises:
            ConfigError: an unknown id.
        """
        wanted = {i for word in only for i in self.match(word, "--only")}
        reach = LEVELS.index(level)
        return [
            one
            for one in self.values()
            if one.group == ALWAYS
            or (one.id in only)
            or ((not only or one.id in wanted) and LEVELS.index(one.check.level) <= reach)
        ]


def builtin_folder() -> Path:
    """Return where the checks of this installation are.

    Raises:
        ConfigError: neither a wheel's folder nor a checkout's.
    """
    package = Path(__file__).parent
    if next((package / "checks").glob("*/*.py"), None):
        return package / "checks"
    if (package.parent / "pyproject.toml").exists() and (package.parent / "checks").is_dir():
        return package.parent / "checks"
    raise ConfigError(f"no checks beside {package}: the installation is incomplete; do it anew")


def load(dirs: Sequence[Path] = ()) -> Catalog:
    """Return the built-in checks, those of installed plug-ins, and those of these folders.

    Raises:
        ConfigError: one of them is not right; the message names its file.
    """
    found: dict[str, Loaded] = {}
    for folder in [builtin_folder(), *plugin_folders(), *dirs]:
        for path in files(folder):
            one = load_file(path)
            if one.id in found:
                raise ConfigError(
                    f"{path}: the id {one.id} is taken by {found[one.id].path}; rename one"
                )
            found[one.id] = one
    claimed: dict[str, Loaded] = {}
    for one in found.values():
        for expect in one.check.expects:
            if claimed.setdefault(expect.key, one) is not one:
                other = claimed[expect.key].path
                raise ConfigError(
                    f"{one.path}: expect.{expect.key} is declared by {other} too; rename one"
                )
    see_what_is_shared(found)
    see_no_circle(found)
    return Catalog(found.values())


def files(folder: Path) -> list[Path]:
    """Return the check files of a folder.

    Raises:
        ConfigError: there is none: whoever named it believes that it is checked.
    """
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"{folder}: is no folder of checks: {str(error.strerror).lower()}; "
            "see --checks and checks.dirs"
        ) from error
    found = sorted(folder.glob("*/*.py"))
    if not found:
        raise ConfigError(
            f"{folder}: has no check in it; a check is a file like network/mtu.py there"
        )
    return found


def see_what_is_shared(found: Mapping[str, Loaded]) -> None:
    """Raise a ConfigError where a check judges facts that its own exercise would not give."""
    given = {i: one.check.exercise for i, one in found.items() if not one.check.facts_of}
    for one in found.values():
        of = one.check.facts_of
        if of and not (one.check.exercise and given.get(str(of)) is one.check.exercise):
            raise ConfigError(f"{one.path}: facts_of={of!r} is no check with the same exercise=")


def see_no_circle(found: Mapping[str, Loaded]) -> None:
    """Raise a ConfigError where checks explain each other in a circle: no cause would be left."""
    explained: dict[str, set[str]] = {i: set(one.check.explains) for i, one in found.items()}
    graph = graphlib.TopologicalSorter(explained)
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(error.args[1])
        path = found[next(i for i in error.args[1] if i in found)].path
        raise ConfigError(
            f"{path}: checks explain each other in a circle, {circle}; take one out of explains="
        ) from error


def plugin_folders() -> Iterator[Path]:
    """Yield the folders of packages with an entry point in the group `preflight.checks`."""
    for point in importlib.metadata.entry_points(group="preflight.checks"):
        spec = importlib.util.find_spec(point.module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(place)


def load_file(path: Path) -> Loaded:
    """Load one check file.

    Raises:
        ConfigError: it does not import, or is no check; the message names the file.
    """
    group, name = path.parent.name, path.stem
    if not (NAME.fullmatch(group) and NAME.fullmatch(name)):
        raise ConfigError(
            f"{path}: folder and file must be named like network/mtu.py: small letters, digits, _"
        )
    check_id = f"{group}.{name}"
    spec = importlib.util.spec_from_file_location(f"{MODULES}.{check_id}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code: whatever it raises, also to exit, is its row
        raise ConfigError(
            f"{path}:{line_of(error, path)}: does not import: {words_of(error)}"
        ) from error
    check = getattr(module, "CHECK", None)
    if not isinstance(check, Check):
        raise ConfigError(f"{path}: has no line CHECK = Check(...)")
    validate(path, spec.name, check)
    text = importlib.util.decode_source(path.read_bytes())
    return Loaded(check_id, path, text, check, manual(path, module.__doc__ or ""))


def line_of(error: BaseException, path: Path) -> int:
    """Return the line of a check file that an error comes from."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    here = str(path.absolute())
    return next((one.lineno or 1 for one in reversed(frames) if one.filename == here), 1)


def words_of(error: BaseException) -> str:
    """Return what an error says, without Python's names for kinds of errors where it says much."""
    if isinstance(error, SyntaxError):
        return f"not Python: {error.msg}"
    if isinstance(error, SystemExit):
        return "it exits; remove that"
    if isinstance(error, KeyError):
        return f"there is no key {error}"
    text = str(error).replace(".__init__()", "(...)") or type(error).__name__
    return text[0].lower() + text[1:] if re.match("[A-Z][a-z]+ ", text) else text


def validate(path: Path, module: str, check: Check[Any]) -> None:
    """Raise a ConfigError where a check is built wrongly."""
    for flaw in (*flaws(module, check), *flaws_of_expects(check.expects)):
        raise ConfigError(f"{path}: {flaw}")


def flaws(module: str, check: Check[Any]) -> Iterator[str]:
    """Yield what is wrong with the way a check is built."""
    if (check.probe is None) == (check.exercise is None):
        yield "CHECK needs exactly one of probe= and exercise="
    if (check.judge is None) == (check.compare is None):
        yield "CHECK needs exactly one of judge= and compare="
    yield from (
        f"{name}= must be a function"
        for name in FUNCTIONS
        if getattr(check, name) is not None and not callable(getattr(check, name))
    )
    if check.probe and not findable(module, check.probe):
        yield "probe= must be a function with a name of its own, in this file or in preflight.node"
    yield from flaws_of_values(check)


def flaws_of_values(check: Check[Any]) -> Iterator[str]:
    """Yield what is wrong with what a check says of itself."""
    if check.level not in LEVELS:
        yield f"level {check.level!r} is not one of {', '.join(LEVELS)}"
    limit_s: Any = check.timeout_s
    if not isinstance(limit_s, (int, float)) or not 0 < limit_s < math.inf:
        yield f"timeout_s {limit_s!r} is not a number above 0"
    if not many(check.explains, str):
        yield "explains= must be a tuple of ids, such as ('network.port',)"
    lane: Any = check.lane
    if not isinstance(lane, str):
        yield f"lane {lane!r} is not text, such as 'launch port'"
    elif lane and check.probe:
        yield "lane= is for an exercise: probes run side by side anyway"


def findable(module: str, probe: Any) -> bool:
    """Whether a node can find a probe by its module and name, which is all that it is told."""
    place, name = getattr(probe, "__module__", ""), getattr(probe, "__name__", "")
    sent = place == module or place.startswith("preflight.node.")
    return sent and getattr(sys.modules.get(place), name, None) is probe


def flaws_of_expects(expects: Any, around: str = "expects") -> Iterator[str]:
    """Yield what is wrong with declared keys, and with the fields of each."""
    if not many(expects, Expect):
        yield f"{around} must be a tuple of Expect(...)"
        return
    kinds = [kind.__name__ for kind in KINDS]
    for key, times in Counter(str(one.key) for one in expects).items():
        if not NAME.fullmatch(key) or key.startswith("model_"):
            yield f"{around}: the key {key!r} must be small letters, digits, _; not model_ first"
        if times > 1:
            yield f"{around}: the key {key!r} is there {times} times"
    for one in expects:
        if one.type not in KINDS:
            yield f"{around}: the type of {one.key!r} must be one of {', '.join(kinds)}"
        if not many((one.unit, one.about), str):
            yield f"{around}: unit and about of {one.key!r} must be text"
        yield from flaws_of_expects(one.fields, f"{around}: fields of {one.key!r}")


def many(value: Any, kind: type) -> bool:
    """Whether it is a tuple, or a list, of such things."""
    return isinstance(value, (tuple, list)) and all(isinstance(one, kind) for one in value)


def manual(path: Path, docstring: str) -> Manual:
    """Take a docstring apart.

    Raises:
        ConfigError: the claim or one of the parts is missing.
    """
    claim, _, rest = docstring.strip().partition("\n")
    found = dict(re.findall(r"^(\w+):[ \n](.*?)(?=^\w+:[ \n]|\Z)", rest, re.DOTALL | re.MULTILINE))
    parts = {name: re.sub(r"\n {4}", "\n", found.get(name, "").rstrip()) for name in PARTS}
    for name, text in {"claim in the first line": claim, **parts}.items():
        if not text.strip():
            raise ConfigError(
                f"{path}: the docstring lacks the part {name!r}; see preflight explain network.mtu"
            )
    return Manual(claim.rstrip("."), *(parts[name] for name in PARTS))
