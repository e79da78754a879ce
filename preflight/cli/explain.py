"""`preflight explain`."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import catalog
from preflight.cli import complete, flags


@click.command(name="explain")
@click.argument("check_id", metavar="ID", shell_complete=complete.check_ids)
@flags.checks
def command(check_id: str, dirs: tuple[Path, ...]) -> int:
    """Print the manual page of a check, or of each check of a group."""
    known = catalog.load(dirs)
    click.echo("\n\n".join(page(known[i]) for i in known.match(check_id, "explain")))
    return 0


def page(one: catalog.Loaded) -> str:
    """Return one manual page."""
    manual, check = one.manual, one.check
    lines = [one.id, f"  {manual.claim}.", ""]
    for title, text in vars(manual).items():
        if title != "claim":
            lines += [f"{title.capitalize()}:", *(f"  {line}" for line in wrapped(text))]
    for expect in check.expects:
        unit = f", {expect.unit}" if expect.unit else ""
        kind = getattr(expect.type, "__name__", str(expect.type))
        lines.append(f"Expects: {expect.key} ({kind}{unit})")
    rights = ", needs root" if check.needs_root else ""
    lines.append(f"Level: {check.level}{rights}; at most {check.timeout_s:g} s a node")
    return "\n".join(lines)


def wrapped(text: str) -> list[str]:
    """Return a part's text in lines of at most 78 columns."""
    return click.wrap_text(text, 76, preserve_paragraphs=True).splitlines()
