"""Pairs of nodes: which are tried, and who is to blame where some of them fail. Pure.

A pair is directed: (a, b) is a towards b. Exercises ask whom each node meets (`partners`,
`rounds`), judges who explains the bad pairs (`blame`).
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import (
    AbstractSet,
    Any,
    Container,
    Iterable,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
    TypedDict,
    TypeVar,
    cast,
)

from preflight.api import some

ALL_UP_TO = 64
"""Nodes of which all pairs are tried; beyond, a sample."""
MEETS = 8
"""Nodes that each one meets at least in a sample, besides the master. A node whose pairs with eight
others all fail is at fault, for that eight others are so at once is not to be expected."""
TOLERATED = 10
"""Of so many of its pairs one may work, and a node or direction is still to blame for the others:
what fails may do so most of the time only."""

Pair = Tuple[str, str]
Fact = TypeVar("Fact", bound=Mapping[str, Any])


def partners(nodes: Sequence[str], master: str = "") -> dict[str, list[str]]:
    """Return by node whom it goes to: all others, of many nodes a sample.

    In a sample each node goes to others at four distances around the circle, and is gone to from
    as many; and each one and the master go to each other.
    """
    count = len(nodes)
    if count <= ALL_UP_TO:
        return {node: [other for other in nodes if other != node] for node in nodes}
    # Far apart, so that a rack of neighbours meets others than itself.
    steps = {1, count // 7 + 1, count // 3 + 1, count // 2 - 1}
    found = {
        node: dict.fromkeys(nodes[(place + step) % count] for step in sorted(steps))
        for place, node in enumerate(nodes)
    }
    for node in nodes if master in found else ():
        if node != master:
            found[node].setdefault(master)
            found[master].setdefault(node)
    return {node: list(others) for node, others in found.items()}


def of_all(met: int, count: int) -> str:
    """Return in words that those who were met are a sample of all others, where they are.

    Args:
        met: how many were.
        count: of all nodes.
    """
    return f" (a sample of {count - 1})" if met < count - 1 and count > ALL_UP_TO else ""


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return rounds in which no node is twice: all pairs, in one direction each.

    N-1 rounds of an even number of nodes, N of an odd one (the circle method).
    """
    ring: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        facing = zip(ring[:half], reversed(ring[half:]))
        found.append([(one, other) for one, other in facing if one and other])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def some_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return rounds, of many nodes some of them: each one meets at least eight others."""
    found = rounds(nodes)
    if len(nodes) <= ALL_UP_TO:
        return found
    meets = MEETS + len(nodes) % 2  # of an odd number, each one sits out once
    return found[:: len(found) // meets][:meets]


def disjoint(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return pairs in groups in which no node is twice."""
    groups: list[list[Pair]] = []
    for pair in pairs:
        fits = (g for g in groups if not {*pair} & {node for other in g for node in other})
        group = next(fits, None)
        if group is None:
            groups.append([pair])
        else:
            group.append(pair)
    return groups


def present(facts: Mapping[str, Fact], *keys: str) -> dict[str, Fact]:
    """Return the facts of nodes, without what they met at others that have none.

    Those were lost meanwhile: that access.ssh tells, and what others met there follows from it.

    Args:
        facts: by node.
        keys: of a fact, under which something is told by other node.
    """
    return {
        node: cast(Fact, {**fact, **{key: of_those(fact[key], facts) for key in keys}})
        for node, fact in facts.items()
    }


def of_those(told: Mapping[str, Any], nodes: Container[str]) -> dict[str, Any]:
    """Return what is told of some nodes."""
    return {other: one for other, one in told.items() if other in nodes}


class Culprit(NamedTuple):
    """What explains some bad pairs."""

    kind: str
    """`node` (all of its pairs), `out` or `in` (all that go out from it, or come to it), `pair`
    (both ways between two), `way` (one way between two), `group` (between it and the rest), or
    `cluster` (all there are)."""
    nodes: tuple[str, ...]
    """Who; of a pair or way both ends, of a group its members."""
    pairs: frozenset[Pair]
    """The bad pairs that it explains."""
    place: str = ""
    """Of a group, what all of its members are in or at and nobody else: a subnet, else a switch;
    empty without one."""

    @property
    def members(self) -> str:
        """In words, who they are, and what they have in common."""
        return some(self.nodes) + (f" (the nodes of {self.place})" if self.place else "")


class Placed(TypedDict, total=False):
    """Where a node is among others."""

    subnet: str
    """Of its address; empty or left out where the netmask is not known."""
    switch: str
    """That it is wired to; of a bond there may be several. Empty or left out: not known."""


def blame(
    tried: Mapping[Pair, bool], facts: Mapping[str, Placed] = MappingProxyType({})
) -> list[Culprit]:
    """Return the fewest culprits that explain all bad pairs, that with most pairs first.

    Not both ends of one bad pair: whoever is blamed has all of its pairs bad, but for one of ten,
    or of a direction; what no node explains stays with the pair.

    Args:
        tried: whether each pair that was tried is good.
        facts: of all nodes, by which a group of them is named.
    """
    bad = {pair for pair, good in tried.items() if not good}
    left, found = set(bad), []
    candidates = list(suspects(tried, bad)) if bad else []
    while left:
        # The first of equals: the least is claimed that will do.
        best = max(candidates, key=lambda one: len(one.pairs & left) - one.against(bad))
        place = common(best.nodes, facts) if best.kind == "group" else ""
        found.append(Culprit(best.kind, best.nodes, frozenset(best.pairs & left), place))
        left -= best.pairs
    return found


def common(nodes: Sequence[str], facts: Mapping[str, Placed]) -> str:
    """Return the subnet, else the switch, that these nodes share and no other; empty: neither."""
    subnets = {node: fact.get("subnet", "") for node, fact in facts.items()}
    wired = {node: fact.get("switch", "") for node, fact in facts.items()}
    switch = only(nodes, wired)
    return only(nodes, subnets) or (f"switch {switch}" if switch else "")


def only(nodes: Sequence[str], places: Mapping[str, str]) -> str:
    """Return the place that all of these nodes are at and no other, empty without one."""
    found = {places.get(node, "") for node in nodes}
    others = {place for node, place in places.items() if node not in nodes}
    return found.pop() if len(found) == 1 and not found & others else ""


class Suspect(NamedTuple):
    """A culprit that may be, and all pairs that would then be bad."""

    kind: str
    nodes: tuple[str, ...]
    pairs: frozenset[Pair]

    def against(self, bad: AbstractSet[Pair]) -> int:
        """Return how many of its pairs are good, which speaks against it."""
        return len(self.pairs - bad)


def suspects(tried: Mapping[Pair, bool], bad: AbstractSet[Pair]) -> Iterable[Suspect]:
    """Yield who may be to blame, those of whom the least is claimed first."""
    for a, b in sorted(bad):
        both = frozenset({(a, b), (b, a)}) & bad
        yield Suspect("way", (a, b), frozenset({(a, b)}))
        yield Suspect("pair", (min(a, b), max(a, b)), both)
    ends = by_end(tried)
    for kind, of in ends.items():
        for node, pairs in sorted(of.items()):
            if len(pairs - bad) * TOLERATED <= len(pairs):
                yield Suspect(kind, (node,), frozenset(pairs))
    for members in groups(tried, list(ends["node"])):
        across = frozenset(p for p in tried if (p[0] in members) != (p[1] in members))
        if across and across <= bad:
            yield Suspect("group", tuple(sorted(members)), across)
    if len(bad) == len(tried):
        yield Suspect("cluster", tuple(sorted(ends["node"])), frozenset(bad))


def by_end(tried: Iterable[Pair]) -> dict[str, dict[str, set[Pair]]]:
    """Return the pairs that begin at a node (`out`), end there (`in`), or do either (`node`)."""
    ends: dict[str, dict[str, set[Pair]]] = {"out": {}, "in": {}, "node": {}}
    for pair in tried:
        for kind, node in (("out", pair[0]), ("in", pair[1]), *(("node", end) for end in pair)):
            ends[kind].setdefault(node, set()).add(pair)
    return ends


def groups(tried: Mapping[Pair, bool], nodes: Sequence[str]) -> list[set[str]]:
    """Return sets of two or more nodes that are joined by good pairs, but for the largest."""
    joined: dict[str, set[str]] = {node: {node} for node in nodes}
    for (a, b), good in tried.items():
        if good and joined[a] is not joined[b]:
            small, large = sorted((joined[a], joined[b]), key=len)
            large |= small
            for node in small:
                joined[node] = large
    sets = sorted({id(one): one for one in joined.values()}.values(), key=len)
    return [one for one in sets[:-1] if len(one) > 1]


def stricken(culprits: Sequence[Culprit], nodes: Sequence[str]) -> dict[str, Culprit]:
    """Return by node the gravest culprit that its row is about.

    A pair has one row: its first end's, or the other's where the first is about another culprit.
    """
    found: dict[str, Culprit] = {}
    for culprit in culprits:
        free = [node for node in culprit.nodes if node not in found]
        for node in free[:1] if culprit.kind in ("pair", "way") else free:
            found[node] = culprit
    return {node: found[node] for node in nodes if node in found}


def told(culprit: Culprit, node: str, verb: str = "reach") -> str:
    """Return in words what is wrong with the pairs of a culprit, for the row of a node."""
    others: list[str] = [one for one in culprit.nodes if one != node]
    start, end = ends(culprit, node)
    return {
        "node": f"it and the other nodes do not {verb} each other",
        "out": f"it does not {verb} the other nodes",
        "in": f"the other nodes do not {verb} it",
        "pair": f"it and {some(others)} do not {verb} each other",
        "way": f"{start} does not {verb} {end}",
        "group": f"{culprit.members} {verb} each other and none of the other nodes",
        "cluster": f"the nodes do not {verb} each other",
    }[culprit.kind]


def between(culprit: Culprit, node: str) -> str:
    """Return in words which way the pairs of a culprit go, for the row of a node."""
    others = some([one for one in culprit.nodes if one != node])
    start, end = ends(culprit, node)
    return {
        "node": "between it and the other nodes",
        "out": "from it to the other nodes",
        "in": "from the other nodes to it",
        "pair": f"between it and {others}",
        "way": f"from {start} to {end}",
        "group": f"between {culprit.members} and the other nodes",
        "cluster": "between the nodes",
    }[culprit.kind]


def ends(culprit: Culprit, node: str) -> tuple[str, str]:
    """Return in words where the pairs of a culprit begin and end that is one way of a pair."""
    first, last = ("it" if one == node else one for one in (culprit.nodes[0], culprit.nodes[-1]))
    return first, last


def about(culprit: Culprit, node: str, count: int) -> dict[str, Any]:
    """Return `scope` and `peers` of a verdict on a culprit, for the row of a node.

    Of two halves that do not meet neither is to blame, as where none of the nodes meet.

    Args:
        culprit: what the verdict is on.
        node: whose row it is.
        count: of all nodes.
    """
    if culprit.kind in ("pair", "way"):
        return {"scope": "pair", "peers": tuple(one for one in culprit.nodes if one != node)}
    whole = culprit.kind == "cluster" or 2 * len(culprit.nodes) == count
    return {"scope": "cluster" if whole else "node"}
