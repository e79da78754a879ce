"""Why a login failed, in words: the kinds that no socket error tells."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.errors import TransportError, printable
from preflight.transport.destination import Destination
from preflight.transport.dial import Wire, foreign

TOO_MANY = "too many authentication failures"
"""What OpenSSH says when it ends a login after MaxAuthTries."""
THROTTLED = "throttled"
TURNED_AWAY = (b"Exceeded MaxStartups", b"Not allowed at this time")
"""What OpenSSH says in place of its version (sshd.c: drop_connection, PerSourcePenalties)."""


def broken(
    there: Destination, wire: Wire, *, in_time: bool, words: str, incompatible: bool
) -> TransportError:
    """Return why a login ended before it was either accepted or refused.

    Args:
        there: where to.
        wire: the connection, closed.
        in_time: false if the time limit ended it.
        words: the server's last words, or the SSH library's.
        incompatible: whether both sides speak SSH but share no algorithm.
    """
    where, limit = there.address, f"within {there.login_timeout_s:g} s"
    if wire.gone():
        return lost_with(where, wire.gone())
    if there.proxy_command and not wire.heard:
        said = f": {wire.last_words}" if wire.last_words else ""
        outcome = "ended without reaching a server" if in_time else f"brought no answer {limit}"
        message = f"{where}: ProxyCommand {there.proxy_command!r} {outcome}{said}"
        hint = "run the command by hand; it is ProxyCommand in ~/.ssh/config"
        return TransportError("proxy", message, hint)
    if not wire.heard:
        return _mute(where, limit, in_time)
    if wire.heard.startswith(TURNED_AWAY):
        return _throttled(where, foreign(wire.heard))
    if not any(line.startswith(b"SSH-") for line in wire.heard.splitlines()):
        message = f"{where}: not an SSH server, it says '{foreign(wire.heard)}'"
        return TransportError("not ssh", message, "give the port of its sshd: ssh.port")
    if incompatible:
        reason = words.removeprefix("Incompatible ssh peer ").strip("()")
        message = f"{where}: the server and preflight share no algorithm: {reason}"
        hint = (
            "update OpenSSH there, or allow more in its sshd_config: KexAlgorithms, Ciphers, MACs"
        )
        return TransportError("negotiation", message, hint)
    if not in_time:
        return TransportError(
            "login timeout",
            f"{where}: the login did not end {limit}",
            "the server hangs: look there at its load, DNS, PAM and home directories",
        )
    return lost(where, words, "during the login")


def lost(where: str, words: str, when: str = "") -> TransportError:
    """Return that a connection ended that should have stayed."""
    reason = f": {words}" if words else ""
    message = " ".join(f"{where}: connection lost {when}".split())
    hint = "see the log of sshd there, and whether the machine went down"
    return TransportError("lost", message + reason, hint)


def lost_with(where: str, jump: str) -> TransportError:
    """Return that a connection ended because that to the jump host did."""
    return TransportError(
        "lost",
        f"{where}: connection lost with that to jump host {jump}",
        f"see the log of sshd on {jump}, and whether that machine went down",
    )


def refused(
    there: Destination,
    tried: Sequence[str],
    allowed: Sequence[str],
    problems: Sequence[TransportError],
) -> TransportError:
    """Return why nobody was let in: the key that could not be used, or those that were refused."""
    if not tried and problems:
        first = problems[0]
        return TransportError(first.kind, f"{there.address}: {first.message}", first.hint)
    who = f"{there.address}: {there.user!r} is refused"
    parts = [f"tried {', '.join(tried)}" if tried else "there is no key to try"]
    parts += [problem.message for problem in problems]
    if allowed:
        parts.append(f"the server allows {printable(', '.join(allowed))}")
    hint = "see ssh.user and ssh.key, and ~/.ssh/authorized_keys of that user there"
    if allowed and "publickey" not in allowed:
        hint = "allow PubkeyAuthentication in its sshd_config: preflight never asks for a password"
    return TransportError("authentication refused", f"{who}: {'; '.join(parts)}", hint)


def too_many(there: Destination, tried: Sequence[str]) -> TransportError:
    """Return that the server took no more offers before the right one came."""
    return TransportError(
        TOO_MANY,
        f"{there.address}: the server gave up after {len(tried)} keys: {', '.join(tried)}",
        "name the right key: ssh.key, or IdentityFile with IdentitiesOnly in ~/.ssh/config",
    )


def exec_refused(there: Destination, words: str) -> TransportError:
    """Return that a login is of no use, since the server will not start a command."""
    return TransportError(
        "exec refused",
        f"{there.address}: logged in, but the server refuses to run a command: {words}",
        "see the log of sshd there; MaxSessions, ForceCommand, the login shell or a limit on "
        "the account's processes (ulimit -u) may forbid it",
    )


def _throttled(where: str, said: str) -> TransportError:
    return TransportError(
        THROTTLED,
        f"{where}: the server turns logins away, it says '{said}'",
        "raise MaxStartups in its sshd_config, see PerSourceMaxStartups and PerSourcePenalties "
        "there; or lower ssh.fanout",
    )


def _mute(where: str, limit: str, in_time: bool) -> TransportError:
    if in_time:
        return TransportError(
            "closed",
            f"{where}: the connection was closed before the server said anything",
            "see the log of sshd there: MaxStartups, PerSourcePenalties and fail2ban do that",
        )
    return TransportError(
        "silent",
        f"{where}: accepts connections but says nothing {limit}",
        "sshd there hangs, or the port is not its own: see its log, and ssh.port",
    )
