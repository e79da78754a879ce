"""Takes out of a recording what says whose machine it is, and leaves what it says of the machine.

The same word becomes the same other word in all recordings that are made with one key, so several
nodes of a cluster still fit together; without the key nobody can try names until one fits.
Structure stays: two addresses of one subnet are still in one, `gpu[01-08]` is still a range.
Loopback and link-local addresses, netmasks and the users that every system has stay as they are.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.node.variables import HIDDEN
from preflight.secrecy import SECRET_IN_URL

FIRST_USER = 1000
"""UID_MIN of login.defs(5); below are the system's users and groups, the same everywhere."""
NOBODY = 65534
COMMON = frozenset(
    (
        *(
            "root",
            "nobody",
            "nogroup",
            "localhost",
            "localdomain",
            "user",
            "users",
            "admin",
            "test",
        ),
        *("ubuntu", "debian", "centos", "rocky", "fedora", "cloud-user", "ec2-user", "azureuser"),
        *("dev", "proc", "sys", "etc", "usr", "lib", "bin", "sbin", "opt", "var", "run", "tmp"),
        *(
            "home",
            "mnt",
            "data",
            "net",
            "class",
            "self",
            "node",
            "python",
            "python3",
            "torch",
            "ray",
        ),
        *("nvidia", "cuda", "nccl", "docker", "shm", "env", "conda", "train", "none", "default"),
    )
)
"""Names that tell of nobody; those of folders and programs must stay, since probes ask for them."""
SOURCE = re.compile(r"(?://)?([A-Za-z][A-Za-z0-9._-]*)(?=:/|/)")
"""Of a mount: the server."""
HOME = re.compile(r"/(?:home|Users)/([A-Za-z0-9_][A-Za-z0-9._-]*)")
LOGIN = re.compile(r"\busername=([^,\s]+)")
HOSTS_IN = ("HOSTNAME", "MASTER_ADDR", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST")
USERS_IN = ("USER", "LOGNAME", "SUDO_USER")
"""Variables whose value is a name."""
PATTERNS = {
    "key": r"-----BEGIN [^-]+-----.*?-----END [^-]+-----",
    "public": r"AAAA[A-Za-z0-9+/]{40,}={0,2}",
    "fingerprint": r"(?<=SHA256:)[\w+/]{43}|(?<=MD5:)(?:[0-9a-f]{2}:){15}[0-9a-f]{2}",
    "login": SECRET_IN_URL.pattern,
    "uuid": r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![\w-])",
    "machine": r"(?<!\w)[0-9a-f]{32}(?!\w)",
    "serial": r"(?i:(?<=serial: )|(?<=serial=)|(?<=serial number: ))[\w-]{4,}",
    "mac": r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5,19}[0-9A-Fa-f]{2}(?![\w:])",
    "bare_mac": r"(?<=enx)[0-9a-f]{12}(?!\w)",
    "guid": r"(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])",
    "ip6": r"(?<![\w:.])(?=[^\s:]*:[^\s:]*:)[0-9A-Fa-f:]+(?:\.\d+){0,3}(?![\w:])",
    "ip4": r"(?<![\w.])(?<![A-Za-z]-)\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\w)",
}
"""What is told by its looks; the first that fits counts."""


HALF = (1 << 64) - 1
PRIVATE = tuple(map(ipaddress.IPv4Network, ("172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))


def anonymise(document: Any, key: bytes) -> Any:
    """Return a JSON document about one node with whatever says whose it is replaced.

    Args:
        document: a recording, with or without what was made of it.
        key: a secret; the same gives the same replacements.
    """
    return _Words(key, document).replaced(document)


class _Cipher:
    """What stands in for what, by a keyed hash."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @functools.cache  # noqa: B019 - lives as long as one recording's replacement
    def digest(self, kind: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{kind}:{text}".encode(), "sha256")

    def tag(self, kind: str, text: str) -> str:
        """Return six digits that stand for a text."""
        return self.digest(kind, text).hex()[:6]

    def alike(self, text: str) -> str:
        """Return a text of the same shape: digits for digits, letters for letters."""
        found = []
        for place, old in enumerate(text):
            number = self.digest("text", f"{place} {text}")[0]
            kinds = (
                string.digits,
                "abcdef",
                "ABCDEF",
                string.ascii_lowercase,
                string.ascii_uppercase,
            )
            kind = next((kind for kind in kinds if old in kind), old)
            found.append(kind[number % len(kind)])
        return "".join(found)

    def scrambled(self, kind: str, number: int, width: int, first: int, last: int) -> int:
        """Return a number with some of its bits changed, as the bits before each say.

        So numbers that begin alike still begin alike, and no two become one (as Crypto-PAn has it).
        """
        found = number
        for bit in range(first, last):
            before = number >> (width - bit)
            found ^= (self.digest(kind, f"{bit} {before}")[0] & 1) << (width - 1 - bit)
        return found

    def ip4(self, text: str) -> str:
        """Return another address; the last octet and the first stay, of private ones the prefix."""
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return text
        first = next((n.prefixlen for n in PRIVATE if address in n), 8)
        if address.packed[0] in (0, 127, 255) or address.is_link_local or address.is_multicast:
            return text
        return str(ipaddress.IPv4Address(self.scrambled("ip4", int(address), 32, first, 24)))

    def ip6(self, text: str) -> str:
        """Return another address; of a link-local one the half that may hold a MAC is changed."""
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return text
        if address.ipv4_mapped:
            return f"::ffff:{self.ip4(str(address.ipv4_mapped))}"
        number = int(address)
        if number < 1 << 32 or address.is_multicast:  # ::, ::1
            return text
        if not address.is_link_local:
            number = self.scrambled("ip6", number, 128, 16, 64)
        if number & HALF > 0xFFFF:  # a small one was given by hand, as `::17`
            number = self.scrambled("ip6", number, 128, 64, 128)
        found = ipaddress.IPv6Address(number)
        return found.exploded if len(text) == len(found.exploded) else str(found)

    def device(self, text: str) -> str:
        """Return a MAC or GUID with other last three bytes; those of its maker stay."""
        digits = re.sub("[:-]", "", text)
        if set(digits) <= {"0"} or set(digits) <= {"f", "F"}:
            return text
        number = self.scrambled(
            "mac", int(digits, 16), 4 * len(digits), 4 * len(digits) - 24, 4 * len(digits)
        )
        fresh = iter(f"{number:0{len(digits)}x}")
        return "".join(old if old in ":-" else next(fresh) for old in text)


class _Words:
    """All that is replaced in one document."""

    def __init__(self, key: bytes, document: Any) -> None:
        self._cipher = _Cipher(key)
        self._names = self._replacements(document)
        longest_first = sorted(self._names, key=len, reverse=True)
        names = "|".join(map(_whole, longest_first)) or "(?!)"
        # one pass, so that nothing is replaced twice
        parts = {**PATTERNS, "name": f"(?i:{names})"}
        self._pattern = re.compile("|".join(f"(?P<{n}>{p})" for n, p in parts.items()), re.DOTALL)

    def replaced(self, value: Any, about: str = "") -> Any:
        """Return a value with all texts in it replaced, keys of mappings too."""
        if isinstance(value, str):
            if "serial" in about.lower():
                return self._cipher.alike(value)
            return self._pattern.sub(self._other, value)
        if isinstance(value, list):
            return [self.replaced(part, about) for part in value]
        if isinstance(value, Mapping):
            return {self.replaced(name): self.replaced(part, name) for name, part in value.items()}
        return value

    def _other(self, match: re.Match[str]) -> str:
        kind, text = str(match.lastgroup), match.group()
        cipher = self._cipher
        return {
            "key": lambda: HIDDEN,
            "login": lambda: f"{HIDDEN}@",
            "mac": lambda: cipher.device(text),
            "bare_mac": lambda: cipher.device(text),
            "guid": lambda: cipher.device(text),
            "ip6": lambda: cipher.ip6(text),
            "ip4": lambda: cipher.ip4(text),
            "name": lambda: self._names[text.lower()],
        }.get(kind, lambda: cipher.alike(text))()

    def _replacements(self, document: Any) -> dict[str, str]:
        """Return what stands in for each name, in small letters."""
        found: dict[str, str] = {}
        for name in _groups(document):
            found[name.lower()] = f"group{self._cipher.tag('user', name)}"
        for name in _users(document):
            found[name.lower()] = f"user{self._cipher.tag('user', name)}"
        for host in _hosts(document):
            name, _, domain = host.lower().partition(".")
            stem = name.rstrip(string.digits)
            tag = self._cipher.tag("host", stem)
            found[name] = "-".join(filter(None, ("host", tag, name[len(stem) :])))
            found[domain] = f"{self._cipher.tag('domain', domain)}.example"
        return {name: new for name, new in found.items() if _tells(name)}


def _tells(name: str) -> bool:
    """Whether a name is one that tells of somebody, and no number or address."""
    return len(name) > 1 and name not in COMMON and bool(re.search("[a-z]", name))


def _whole(name: str) -> str:
    """Return the pattern of a name that is not a part of a longer one.

    A dash makes it longer, but for a name that ends with its number: `gpu07-ib0` is `gpu07` too.
    """
    more = "A-Za-z0-9_" if name[-1].isdigit() else "A-Za-z0-9_-"
    return f"(?<![{more}]){re.escape(name)}(?![{more}])"


def _answers(document: Any, method: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document.get("node", {}).get(method, {})
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, keys of mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _hosts(document: Any) -> Iterator[str]:
    """Yield names of machines, this one's and others', with or without a domain."""
    launch = document.get("want", {}).get("launch", {})
    for uname in _answers(document, "uname").values():
        yield uname["node"]
    for environ in _answers(document, "environ").values():
        yield from (environ[name] for name in HOSTS_IN if name in environ)
    yield from (word for word in (launch.get("master"),) if word)
    yield from (name for name in _answers(document, "resolve") if not _is_address(name))
    table = _answers(document, "read").get("/proc/self/mountinfo")
    sources = re.findall(r" - \S+ (\S+)", table) if isinstance(table, str) else []
    mounts = document.get("want", {}).get("expect", {}).get("mounts", ())
    for source in [*sources, *(mount.get("source", "") for mount in mounts)]:
        if match := SOURCE.match(source):
            yield match.group(1)


def _users(document: Any) -> Iterator[str]:
    """Yield names of people."""
    for account in filter(None, _answers(document, "account").values()):
        if "name" in account and FIRST_USER <= account["uid"] != NOBODY:
            yield account["name"]
    for environ in _answers(document, "environ").values():
        yield from (environ[name] for name in USERS_IN if name in environ)
    for process in filter(None, _answers(document, "process").values()):
        yield process.get("username") or ""
    yield document.get("want", {}).get("launch", {}).get("user") or ""
    for text in _texts(document):
        yield from HOME.findall(text)
        yield from LOGIN.findall(text)


def _groups(document: Any) -> Iterator[str]:
    """Yield names of groups that are not the system's."""
    for account in filter(None, _answers(document, "account").values()):
        for name, gid in account.get("groups", {}).items():
            if FIRST_USER <= gid != NOBODY:
                yield name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
