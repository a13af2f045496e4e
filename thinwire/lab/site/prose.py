"""Docstrings as Markdown: prose, equations, tables of parameters and examples, as our docstrings are written.

Indented blocks are equations; where their lines begin with parameters of the function, they become a table. Lines
with `>>>` are examples. Everything else is prose, of which only code in backticks is marked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

Link = Callable[[str], str | None]
"""The target for a name in backticks, or None."""
CODE = re.compile(r"(`[^`]+`)")
SPECIAL = re.compile(r"([\\*_<>\[\]{}|$#~^])")
LEAD = re.compile(r"^(References?|Departs from the papers?|Bounds?|Wire|State|Sends|Keeps)(:| )")
ITEM = re.compile(r"^(- |\d+\. )")
ROW = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*)$")
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def no_link(name: str) -> None:
    """Names stay plain code."""


def markdown(doc: str, parameters: Mapping[str, str] | None = None, link: Link = no_link) -> str:
    r"""The docstring `doc` (cleaned) of something that takes `parameters`, each with its default as text.

    >>> print(markdown("Rounds *x* to `s`.\n\n    y = s * x"))
    Rounds \*x\* to `s`.
    <BLANKLINE>
    ```text
    y = s * x
    ```
    >>> print(markdown("    bits    width\n            of a field", {"bits": "4"}))
    | parameter | default | meaning |
    | --- | --- | --- |
    | `bits` | `4` | width of a field |
    """
    return "\n\n".join(_render(block, parameters or {}, link) for block in _blocks(doc.splitlines()))


def inline(text: str, link: Link = no_link) -> str:
    r"""Prose with its special characters escaped, and with links at names and papers.

    >>> inline("a_b <= `c_d`, arXiv 1610.02132")
    'a\\_b \\<= `c_d`, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132)'
    """
    parts = [_code(part, link) if CODE.fullmatch(part) else _plain(part) for part in CODE.split(text)]
    return "".join(parts)


def _plain(text: str) -> str:
    return ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", SPECIAL.sub(r"\\\1", text))


def _code(span: str, link: Link) -> str:
    target = link(span.strip("`"))
    return f"[{span}](#{target})" if target else span


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines of one kind: an indented block keeps the empty lines inside it."""
    block: list[str] = []
    for line in lines:
        if block and _indented(block[0]) and (_indented(line) or not line):
            block.append(line)
        elif not line:
            yield from [block] if block else []
            block = []
        elif block and (_indented(block[0]) or _starts(line, block)):
            yield block
            block = [line]
        else:
            block.append(line)
    if block:
        yield block


def _starts(line: str, block: list[str]) -> bool:
    """Whether a line begins something new without an empty line before it: an example, or an indented block."""
    example = block[0].startswith(">>>")
    return (line.startswith(">>>") and not example) or (_indented(line) and not example and not ITEM.match(block[0]))


def _indented(line: str) -> bool:
    return line.startswith("    ")


def _render(block: list[str], parameters: Mapping[str, str], link: Link) -> str:
    while block and not block[-1]:
        block = block[:-1]
    if _indented(block[0]):
        cut = [line[4:] for line in block]
        rows = _rows(cut, parameters)
        return _table(rows, parameters, link) if rows else "\n".join(["```text", *cut, "```"])
    if block[0].startswith(">>>"):
        return "\n".join(["```pycon", *block, "```"])
    lead = LEAD.match(block[0])
    if lead and lead[2] == ":":
        return "\n".join([f"**{lead[1]}:**{inline(block[0][lead.end() :], link)}", *_lines(block[1:], link)])
    return "\n".join(_lines(block, link))


def _lines(block: list[str], link: Link) -> list[str]:
    """Code in backticks may go on in the next line, so that escapes are found in the whole."""
    out = inline("\n".join(block), link).split("\n")
    return [re.sub(r"^([+-])(?! )", r"\\\1", line) for line in out]


def _rows(lines: list[str], parameters: Mapping[str, str]) -> list[tuple[str, str]]:
    """(names, meaning) where a block explains parameters; otherwise nothing."""
    rows: list[tuple[str, str]] = []
    for line in lines:
        found = ROW.match(line)
        if found and set(found[1].split(", ")) <= parameters.keys():
            rows.append((found[1], found[2]))
        elif rows and (line.startswith("  ") or not line):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip())
        else:
            return []
    return rows


def _table(rows: list[tuple[str, str]], parameters: Mapping[str, str], link: Link) -> str:
    body = [
        f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {_defaults(names, parameters)} | "
        f"{inline(text, link)} |"
        for names, text in rows
    ]
    return "\n".join(["| parameter | default | meaning |", "| --- | --- | --- |", *body])


def _defaults(names: str, parameters: Mapping[str, str]) -> str:
    found = [parameters[name] for name in names.split(", ")]
    return ", ".join(f"`{text.replace('|', chr(92) + '|')}`" if text else "" for text in found)
