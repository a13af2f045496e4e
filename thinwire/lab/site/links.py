"""Code in the pages that names something of ours becomes a link to the reference: each name once per page."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from thinwire.core.method import METHODS
from thinwire.lab.site.names import Names

CALL = re.compile(r"(?:tw|thinwire)\.([\w.]+)(?:\(.*\))?", re.DOTALL)
MADE = re.compile(r"([a-z][\w-]*)(?:\(.*\)|:[\w=.,:()-]+)?", re.DOTALL)


def target(code: str) -> str | None:
    """The public path that code in a page stands for: `tw.attach(...)`, `qsgd(bits=4)`, `qsgd:bits=4`.

    >>> target("tw.methods.qsgd(bits=4)"), target("ecq-sgd"), target("tw.attach"), target("every=8")
    ('thinwire.methods.qsgd', 'thinwire.methods.ecq_sgd', 'thinwire.attach', None)
    """
    if found := CALL.fullmatch(code):
        path = f"thinwire.{found[1]}"
        return _homes().get(path)
    if found := MADE.fullmatch(code):
        name = found[1].replace("_", "-")
        return f"thinwire.methods.{name.replace('-', '_')}" if name in METHODS else None
    return None


@cache
def _homes() -> dict[str, str]:
    return Names().paths


def link_code(app: Any, doctree: Any) -> None:
    """Sphinx's event `doctree-read`: wrap literals that stand for a name, outside of links and of headings."""
    from docutils import nodes  # noqa: PLC0415  (the extra `docs`)
    from sphinx.addnodes import desc, pending_xref  # noqa: PLC0415

    if app.env.docname.startswith("api/"):
        return
    seen: set[str] = set()
    for literal in list(doctree.findall(nodes.literal)):
        path = target(literal.astext())
        inside = {type(node) for node in _above(literal)}
        if path is None or path in seen or inside & {nodes.reference, nodes.title, desc, pending_xref}:
            continue
        seen.add(path)
        link = pending_xref("", refdomain="py", reftype="obj", reftarget=path, refdoc=app.env.docname, refwarn=True)
        literal.replace_self(link)
        link += literal


def _above(node: Any) -> list[Any]:
    out = []
    while node.parent is not None:
        node = node.parent
        out.append(node)
    return out
