"""Network file systems are mounted alike on all nodes, as expected, and answer.

Why: where /data is missing, or another export, ranks read other data, write checkpoints that
    nobody finds, or fill the local disk. A hung mount stops every process that touches it, in a
    state that even SIGKILL does not end.
Facts: network (mounts of network file systems), expected (where each path of expect.mounts leads),
    visits (how each answered within 2 s, in a process of its own), automounts, user, own (host name
    and addresses: a node that is the server need not mount what it has).
    Nothing is written: whether one may write is access(2) and the mount's options, so a server
    that refuses root's or the user's writes all the same is not seen here.
Source: /proc/self/mountinfo, stat(2), statvfs(3), access(2), uname(2), getifaddrs(3) by psutil.
Fix: mount it as on the other nodes, and put it into /etc/fstab so that it stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any, Mapping, Sequence

from preflight.api import (
    NO_ANSWER,
    STATUSES,
    Check,
    Expect,
    Verdict,
    Want,
    fail,
    ok,
    same_everywhere,
    skip,
    some,
    unknown,
    warn,
)
from preflight.node.mounts import (
    Mount,
    Mounts,
    common,
    compared,
    expected_paths,
    exported,
    is_nested,
    is_network,
    is_private,
    joined,
    kind,
    mounted_at,
    mounts,
    normal,
    one_name,
    remount,
    same_source,
    same_type,
    server_of,
    split,
    waits,
)

WORDS = {
    NO_ANSWER: "does not answer in 2 s: whatever touches it hangs",
    "ESTALE": "is stale: the server no longer knows it (stale file handle)",
    "EIO": "gives input/output errors",
    "ENOTCONN": "lost its file system daemon (transport endpoint is not connected)",
}
HARMLESS = ("", "ENOENT", "ENOTDIR", "EACCES", "EPERM")
"""A mount that answers so is alive: hidden by another mount, or closed to the login user."""
SLOW_S = 1.0
"""A server that answers does so in milliseconds; half of the limit of a visit."""
ABSENT = "not mounted"
SEVERAL = 3
"""Servers of one export without a majority: two are as likely two file systems."""
FOLLOWS = (
    *("storage.coherence", "storage.same_data", "storage.space", "storage.cache_dirs"),
    "launch.paths",
)
"""The last one only where what launch names lies on what fails."""
NUMBERS = re.compile(r"[\d.]+|\[?[\da-fA-F]*:[\da-fA-F:]*\]?")
"""Of a server: storage that gives each client another address. Nobody gives it other names."""
ASK = "name it under expect.mounts, so that it is looked at"
KNOWN = "if they are, say so: a pattern for source under expect.mounts"


def compare(facts: Mapping[str, Mounts], want: Want) -> dict[str, Verdict]:
    entries = {normal(entry["path"]): entry for entry in want.get("expect.mounts", ())}
    served = {node: exported(node, facts, entries) for node in facts}
    found = {
        node: [*dead(fact), *unexpected(fact, entries, want, served[node])]
        for node, fact in facts.items()
    }
    paths = {mount["path"] for fact in facts.values() for mount in fact["network"]}
    for path in sorted(paths - {"/"}):  # a root over the network belongs to its node
        of_path = parity(facts, path, entries.get(path, {}), served)
        of_path.update(owners(facts, path, served), **unasked(facts, path))
        for node, verdict in of_path.items():
            said = any(path in (v.observed or ()) for v in found[node] if v.status == "fail")
            if verdict.status != "pass" and not said:
                found[node].append(verdict)
    nothing = not entries and not any(fact["network"] for fact in facts.values())
    if nothing:
        return dict.fromkeys(facts, skip("no network file system on any node, and none expected"))
    return {
        node: gravest(found[node], want) if found[node] else sound(fact, entries, served[node])
        for node, fact in facts.items()
    }


def sound(fact: Mounts, entries: Mapping[str, Any], served: Mapping[str, Mount]) -> Verdict:
    """Return the verdict of a node with which nothing is wrong, as far as was looked."""
    visited = {mount["device"] for mount in fact["network"] if mount["path"] in fact["visits"]}
    seen = {mount["path"] for mount in fact["network"] if mount["device"] in visited}
    if served and not seen | set(entries):
        return ok(f"serves what the others mount: {some(sorted(served))}")
    words = some(sorted(seen | set(entries))) or "nothing now, all by automount"
    rest = len({mount["path"] for mount in fact["network"]} - seen - set(entries))
    be = "were" if rest > 1 else "was"
    return ok(f"mounted and answering: {words}" + (f"; {rest} more {be} not visited" * bool(rest)))


def gravest(found: Sequence[Verdict], want: Want) -> Verdict:
    """Return the gravest of what was found, a fault of its own first; the rest are its details."""
    worst = max(found, key=lambda one: (STATUSES.index(one.status), not one.explained_by))
    rest = tuple(verdict.summary for verdict in found if verdict is not worst)
    named = [str(want.get(key, "")) for key in ("launch.workdir", "launch.python")]
    failing = [normal(one.observed[0]) + "/" for one in found if one.status == "fail"]
    holds = any(path.startswith(mount) for path in named for mount in failing)
    return replace(
        worst,
        details=(*worst.details, *rest),
        explains=FOLLOWS if holds else FOLLOWS[:-1],
        explained_by=worst.explained_by or (),
    )


# ---- what one node shows by itself ---------------------------------------------------------


def dead(fact: Mounts) -> list[Verdict]:
    """Return what is wrong with mounts that do not answer, or do so slowly."""
    known = {mount["path"]: mount for mount in fact["network"]}
    known.update({path: place["mount"] for path, place in fact["expected"].items()})
    found = []
    for path, visit in fact["visits"].items():
        error = visit["error"]
        if error not in HARMLESS:
            words = WORDS.get(error, "cannot be used: " + error)
            found.append(
                fail(
                    f"{path} {words}",
                    observed=[path, error],
                    details=(shown(known[path]),),
                    fix=revive(known[path]),
                    reproduce=f"stat -f {quote(path)} &",
                )
            )
        elif visit["seconds"] > SLOW_S:
            found.append(warn("{} took {:.1f} s to answer".format(path, visit["seconds"])))
    return found


def revive(mount: Mount) -> str:
    """Return what brings a dead mount back."""
    path, server = quote(mount["path"]), server_of(mount)
    remount = f"umount -f -l {path} && mount {path}"
    if mount["type"].startswith("nfs"):
        return f"see that {server} answers on TCP port 2049, then: {remount}"
    return f"see that {server} answers, then: {remount}"


def unexpected(
    fact: Mounts,
    entries: Mapping[str, Mapping[str, Any]],
    want: Want,
    served: Mapping[str, Mount],
) -> list[Verdict]:
    """Return what differs from expect.mounts; a path that does not answer is told elsewhere."""
    found = []
    for path, entry in entries.items():
        if path not in fact["visits"]:
            found.append(unknown(f"{path} was not looked at in this run"))
        elif fact["visits"][path]["error"] in HARMLESS:
            found += against(fact, path, entry, want, path in served)
    return found


def against(
    fact: Mounts, path: str, entry: Mapping[str, Any], want: Want, is_server: bool
) -> list[Verdict]:
    """Return how an expected path that answers differs from what is expected of it."""
    place, visit = fact["expected"][path], fact["visits"][path]
    mount = place["mount"]
    wanted = " ".join(entry[key] for key in ("type", "source") if key in entry)
    say = partial(fail, observed=[path], expected=dict(entry), fix=mend(path, entry))
    if visit["error"] in {"ENOENT", "ENOTDIR"}:
        return [say(f"{path} does not exist" + (", expected " + wanted if wanted else ""))]
    if is_server:
        return permitted(fact, path, entry, want)
    if mount["path"] != place["real"] and not is_inside(mount, entry):
        lies = "it lies on {path} ({type} {source})".format(**mount)
        return [say(f"nothing is mounted on {path}: {lies}")]
    if not same_type(mount, entry.get("type")) or not same_source(mount, entry.get("source")):
        return [say(f"{path} is {kind(mount)}, expected {wanted}")]
    lacking = [o for o in wanted_options(entry) if o not in mount["options"]]
    if lacking:
        return [say("{} is mounted without {}".format(path, ",".join(lacking)))]
    return permitted(fact, path, entry, want)


def is_inside(mount: Mount, entry: Mapping[str, Any]) -> bool:
    """Whether a path that is no mount point lies in the right file system all the same.

    A root file system over the network holds every path where something is not mounted.
    """
    if mount["path"] == "/":
        return False
    if "type" not in entry and "source" not in entry:
        return is_network(mount)
    return same_type(mount, entry.get("type")) and same_source(mount, entry.get("source"))


def permitted(fact: Mounts, path: str, entry: Mapping[str, Any], want: Want) -> list[Verdict]:
    """Return whether the job's user may use an expected mount as it must."""
    visit, options = fact["visits"][path], fact["expected"][path]["mount"]["options"]
    if entry.get("writable") and "ro" in options:
        return [
            fail(
                f"{path} is mounted read-only, expected writable",
                observed=[path, "ro"],
                expected=dict(entry),
                fix=f"mount -o remount,rw {quote(path)}",
            )
        ]
    user = want.get("launch.user", fact["user"])
    if user != fact["user"]:
        return []  # what another user may do cannot be asked
    lacks = "enter" if not visit["readable"] else "write to"
    if visit["readable"] and (visit["writable"] or not entry.get("writable")):
        return []
    return [
        fail(
            f"{user or 'the login user'} may not {lacks} {path}",
            observed=[path, lacks],
            expected=dict(entry),
            fix=f"give {user or 'the user'} permission on {path}: chown, chmod, or the export's"
            " squash options",
            reproduce=f"ls -ld {quote(path)}",
            explained_by=("storage.identity",),
        )
    ]


def mend(path: str, entry: Mapping[str, Any]) -> str:
    """Return the command that mounts it as expected."""
    words = ["mount"]
    if "*" not in entry.get("type", "*"):
        words += ["-t", entry["type"]]
    if entry.get("options"):
        words += ["-o", ",".join(wanted_options(entry))]
    return joined([*words, *([entry["source"]] if "source" in entry else []), path])


def wanted_options(entry: Mapping[str, Any]) -> list[str]:
    """Return the expected options as the mount table spells them."""
    options = [option.strip() for option in entry.get("options", "").split(",")]
    return [option.replace("nfsvers=", "vers=") for option in options if option]


# ---- what differs between nodes ------------------------------------------------------------


def owners(
    facts: Mapping[str, Mounts], path: str, served: Mapping[str, Mapping[str, Mount]]
) -> dict[str, Verdict]:
    """Return the verdicts of servers whose own path may lead elsewhere than their export."""
    found = {}
    for node, own in served.items():
        if path in own:
            export = "/" + split(own[path]["source"])[1]
            place = facts[node]["expected"].get(path)
            leads = (path, place["real"] if place else path)
            if not any(a.endswith(b) for one in leads for a, b in ((export, one), (one, export))):
                words = f"{path} is on the others what this node serves: {kind(own[path])}"
                fix = f"see that {path} leads to {export} here too: mount --bind, or a link"
                found[node] = warn(words, observed=[path], fix=fix)
    return found


def parity(
    facts: Mapping[str, Mounts],
    path: str,
    entry: Mapping[str, Any],
    served: Mapping[str, Mapping[str, Mount]],
) -> dict[str, Verdict]:
    """Return the verdicts of one mount point on all nodes that should have it mounted now."""
    by_node = mounted_at(facts, path)
    mounted = {n: m for n, m in by_node.items() if m}
    if 2 * len(mounted) <= len(by_node) and all(map(is_private, mounted.values())):
        return {n: only_here(path, kind(m)) for n, m in mounted.items()}
    servers = {split(mount["source"])[0] for mount in mounted.values()}
    looked = {
        n: m
        for n, m in by_node.items()
        if m
        or not (path in served[n] or waits(facts[n], path) or is_nested(facts[n], path, servers))
    }
    own = {n: {n, n.split(".")[0], *facts[n]["own"]} for n in mounted}
    names = one_name(mounted, own, entry.get("source"))
    kinds = {n: "{} {}".format(m["type"], names[n]) if m else ABSENT for n, m in looked.items()}
    usual = next((n for n in mounted if kinds[n] == common(kinds)), None)
    fix = remount(mounted[usual], names[usual]) if usual else None
    verdicts = same_everywhere(kinds, path + ":", fix=fix)
    for node, verdict in verdicts.items():
        if verdict.expected == ABSENT:
            verdicts[node] = only_here(path, kinds[node])
        elif verdict.status == "fail":
            verdicts[node] = aliased(path, replace(verdict, observed=[path, kinds[node]]), kinds)
    alike = {n: m for n, m in mounted.items() if verdicts[n].status == "pass"}
    verdicts.update(other_options(path, alike))
    return verdicts


def unasked(facts: Mapping[str, Mounts], path: str) -> dict[str, Verdict]:
    """Return the verdicts of nodes where an automounter has not yet mounted what most have."""
    mounted = [m for m in mounted_at(facts, path).values() if m]
    if 2 * len(mounted) <= len(facts):
        return {}
    words = f"{path} waits for its automounter: not looked at, while most nodes have it mounted"
    idle = [node for node, fact in facts.items() if path in fact["automounts"]]
    return {node: warn(words, observed=[path], fix=ASK) for node in idle}


def only_here(path: str, there: str) -> Verdict:
    return warn(f"{path} is mounted here only: {there}", observed=[path, there])


def other_options(path: str, alike: Mapping[str, Mount]) -> dict[str, Verdict]:
    """Return the verdicts of nodes whose mount of the same thing has other options."""
    found: dict[str, Verdict] = {}
    modes = {n: "ro" if "ro" in m["options"] else "rw" for n, m in alike.items()}
    tuned = {n: ",".join(o for o in m["options"] if compared(o)) for n, m in alike.items()}
    fix = (
        f"umount {quote(path)} && mount {quote(path)}, with the other nodes' options in /etc/fstab"
    )
    for values, say in ((tuned, warn), (modes, fail)):
        verdicts = same_everywhere(values, f"{path}: options", show=listed, say=say, fix=fix)
        for node, verdict in verdicts.items():
            if verdict.status != "pass":
                found[node] = replace(verdict, observed=[path, values[node]])
    return found


def listed(options: str) -> str:
    return options or "none"


def aliased(path: str, verdict: Verdict, kinds: Mapping[str, str]) -> Verdict:
    """Return a milder verdict where one export comes from many servers, or many addresses.

    That is how scale-out storage spreads its clients; no mount table tells it from a mistake.
    """
    if ABSENT in kinds.values():
        return verdict
    types, sources = zip(*(kind.split(" ", 1) for kind in kinds.values()))
    servers, exports = zip(*map(split, sources))
    many = len(set(servers))
    numbered = all(NUMBERS.fullmatch(server) for server in servers)
    enough = numbered or (verdict.scope == "cluster" and many >= SEVERAL)
    if not enough or len({*exports}) > 1 or len({*types}) > 1:
        return verdict
    words = f"{path} comes from {many} servers" if verdict.scope == "cluster" else verdict.summary
    return replace(verdict, status="warn", summary=f"{words}: are they one file system?", fix=KNOWN)


def shown(mount: Mount) -> str:
    return "{} on {}: {}".format(kind(mount), mount["path"], ",".join(mount["options"]))


CHECK = Check(
    probe=mounts,
    compare=compare,
    args=expected_paths,
    expects=(
        Expect(
            "mounts",
            list,
            "",
            "What must be mounted on every node.",
            fields=(
                Expect("path", str, "", "Where.", required=True),
                Expect("type", str, "", "Such as nfs4; also a pattern such as fuse.*."),
                Expect("source", str, "", "Such as nas01:/export/data; also a pattern."),
                Expect("options", str, "", "Those that it must have, such as vers=4.2,hard."),
                Expect("writable", bool, "", "Whether the job must be able to write there."),
            ),
        ),
    ),
    explains=FOLLOWS,
)
