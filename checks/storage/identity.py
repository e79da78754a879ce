"""The job's user is the same user on all nodes: uid, gid and groups.

Why: shared storage knows numbers, not names. With another uid on one node its ranks cannot read the
    data or write a checkpoint, or leave files behind that no other node may touch.
Facts: asked (launch.user, else null for the login user); name, uid, gid, groups (name to gid) and
    home of the account, null where there is none; home_error: empty, or why nobody gets to it.
Source: getpwnam(3) and getgrouplist(3), so whatever nsswitch.conf says (files, LDAP, sssd).
Fix: give the user the other nodes' numbers with usermod and groupmod, or see that sssd or LDAP
    answers on the node; then change the owner of files left with the old numbers.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import Collection, Mapping, Sequence, TypedDict

from preflight.api import NO_ANSWER, Check, Node, Verdict, Want, fail, same_everywhere, some, warn

SYSTEM_GID_MAX = 999
"""SYS_GID_MAX of login.defs(5): groups of the system (docker, render), numbered as packages come;
files on shared storage do not belong to them. One that is so on some node is so on all."""

RENUMBER = "if files on shared storage belong to it, give it one number: groupmod -g NUMBER {}"


class User(TypedDict):
    """An account."""

    name: str
    uid: int
    gid: int
    groups: dict[str, int]
    home: str


class Identity(TypedDict):
    asked: str | None
    user: User | None
    home_error: str


def who(want: Want) -> tuple[str | None]:
    return (want.get("launch.user"),)


def probe(node: Node, name: str | None) -> Identity:
    account = node.account(name)
    if account is None:
        return Identity(asked=name, user=None, home_error="")
    user = User(
        name=account.name,
        uid=account.uid,
        gid=account.gid,
        groups=dict(account.groups),
        home=account.home,
    )
    home = node.visit([account.home])[account.home]
    return Identity(asked=name, user=user, home_error=home.error)


def compare(facts: Mapping[str, Identity], want: Want) -> dict[str, Verdict]:
    name = called(facts)
    what, see = (f"user {name}", f"id {name}") if name else ("the login user", "id")
    users = {node: fact["user"] for node, fact in facts.items()}
    known = {node: user for node, user in users.items() if user}
    if not known:
        nobody = f"there is no {what}" if name else f"{what} has no entry in the user database"
        return {node: fail(nobody, observed=None, reproduce=see) for node in facts}
    spelt = {node: numbers(user) for node, user in users.items()}
    verdicts = same_everywhere(spelt, what + ":", reproduce=see)
    by_number = {numbers(user): user for user in known.values()}
    names = {gid: name for user in known.values() for name, gid in user["groups"].items()}
    of_system_names = {name for user in known.values() for name in system(user)}
    of_files = same_everywhere({n: files(u, of_system_names) for n, u in known.items()}, what)
    of_system = same_everywhere({n: listed(u, of_system_names) for n, u in known.items()}, what)
    either = numbered(known, of_system_names)
    for node, verdict in verdicts.items():
        user = users[node]
        if verdict.status == "fail":
            verdicts[node] = renumbered(verdict, user, by_number.get(verdict.expected))
        elif user:
            more = (
                member(of_files[node], user, names, what),
                homeless(facts[node], user),
                in_system(of_system[node], user, what),
                either.get(node),
            )
            verdicts[node] = next((found for found in more if found), verdict)
    return verdicts


def called(facts: Mapping[str, Identity]) -> str:
    """Return the user's name, empty where it has no name, or not the same everywhere."""
    names = {fact["user"]["name"] if fact["user"] else fact["asked"] for fact in facts.values()}
    return (names.pop() or "") if len(names) == 1 else ""


def numbers(user: User | None) -> str:
    """Return uid and gid as people write them."""
    return "uid {uid}, gid {gid}".format(**user) if user else "unknown here"


def renumbered(verdict: Verdict, user: User | None, right: User | None) -> Verdict:
    """Return the verdict with the command that gives the user the others' numbers."""
    if right is None:  # no majority says which are right
        return verdict
    words = ["usermod" if user else "useradd"]
    if user is None or user["uid"] != right["uid"]:
        words.append("-u {}".format(right["uid"]))
    if user is None or user["gid"] != right["gid"]:
        words.append("-g {}".format(right["gid"]))
    fix = " ".join([*words, right["name"]])
    if user is None:
        fix += ", or see that sssd or LDAP answers there"
    return replace(verdict, fix=fix)


# ---- groups --------------------------------------------------------------------------------


def system(user: User) -> list[str]:
    """Return the names of the system's groups, whose numbers may differ."""
    return [name for name, gid in user["groups"].items() if gid <= SYSTEM_GID_MAX]


def files(user: User, of_system: Collection[str]) -> list[int]:
    """Return the gids of groups to which files on shared storage may belong."""
    return sorted({gid for name, gid in user["groups"].items() if name not in of_system})


def listed(user: User, of_system: Collection[str]) -> list[str]:
    """Return which of the system's groups a user is in."""
    return sorted(name for name in user["groups"] if name in of_system)


def numbered(known: Mapping[str, User], of_system: Collection[str]) -> dict[str, Verdict]:
    """Return warnings of groups that have a number of the system's on some nodes only."""
    found: dict[str, Verdict] = {}
    for name in sorted(of_system):
        gids = {n: user["groups"][name] for n, user in known.items() if name in user["groups"]}
        if max(gids.values()) > SYSTEM_GID_MAX:
            what, fix = f"group {name}: gid", RENUMBER.format(quote(name))
            verdicts = same_everywhere(gids, what, say=warn, fix=fix, reproduce="id")
            found.update({n: v for n, v in verdicts.items() if v.status != "pass"})
    return found


def member(verdict: Verdict, user: User, names: Mapping[int, str], what: str) -> Verdict | None:
    """Return the verdict of groups that the user lacks here, or has only here."""
    if verdict.status == "pass":
        return None
    if verdict.scope == "cluster":
        return replace(verdict, summary=f"the groups of {what} differ", reproduce="id")
    lacks = [gid for gid in verdict.expected if gid not in verdict.observed]
    extra = [gid for gid in verdict.observed if gid not in verdict.expected]
    if not lacks:
        words = some([f"{names[gid]} (gid {gid})" for gid in extra])
        return warn(f"{what} is only here in group {words}", observed=extra, reproduce="id")
    other = [gid for gid in lacks if names[gid] in user["groups"]]
    if other:
        name, right = names[other[0]], other[0]
        wrong = user["groups"][name]
        summary = f"group {name} of {what} has gid {wrong}, on the others {right}"
        fix = f"groupmod -g {right} {quote(name)}"
        return fail(summary, observed=wrong, expected=right, fix=fix, reproduce="id")
    words = some([f"{names[gid]} (gid {gid})" for gid in lacks])
    fix = joining([names[gid] for gid in lacks], user)
    summary = f"{what} is not in group {words} as on the others"
    return fail(summary, observed=verdict.observed, expected=lacks, fix=fix, reproduce="id")


def in_system(verdict: Verdict, user: User, what: str) -> Verdict | None:
    """Return a warning where the user lacks a group of the system, such as docker."""
    lacks = [name for name in verdict.expected or () if name not in verdict.observed]
    if not lacks:
        return None
    summary = f"{what} is not in group {some(lacks)} as on the others"
    fix = joining(lacks, user)
    return warn(summary, observed=verdict.observed, expected=lacks, fix=fix, reproduce="id")


def joining(groups: Sequence[str], user: User) -> str:
    """Return the command that puts the user into groups."""
    return "usermod -a -G {} {}".format(quote(",".join(groups)), quote(user["name"]))


# ---- home ----------------------------------------------------------------------------------


def homeless(fact: Identity, user: User) -> Verdict | None:
    """Return a warning of a home that is not there, or cannot be used; what it lies on may fail.

    Another user's home is rightly closed.
    """
    home, error = user["home"], fact["home_error"]
    if error in {"ENOENT", "ENOTDIR"}:
        fix = "mkhomedir_helper {name}, or mount what holds {home}".format(**user)
        return warn(f"the home {home} does not exist", observed=home, fix=fix)
    if not error or (fact["asked"] and error in {"EACCES", "EPERM"}):
        return None
    words = "does not answer in 2 s" if error == NO_ANSWER else f"cannot be used: {error}"
    return warn(
        f"the home {home} {words}",
        observed=error,
        fix=f"see storage.mounts, and what {home} lies on",
        reproduce=f"ls -ld {quote(home)} &",
    )


CHECK = Check(
    probe=probe,
    compare=compare,
    args=who,
    explains=("storage.mounts", "storage.coherence", "storage.cache_dirs", "launch.paths"),
)
