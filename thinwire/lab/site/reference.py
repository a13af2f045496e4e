"""The pages of the API reference, made from what is imported: every public name once, grouped by axis."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import thinwire
from thinwire.compressors import COMPRESSORS
from thinwire.lab.catalogue import SIZE, compressor_rows, method_row
from thinwire.lab.markdown import table
from thinwire.lab.records import Row
from thinwire.lab.site.groups import Group, compressors_by_group, methods_by_group
from thinwire.lab.site.integrations import integrations
from thinwire.lab.site.names import Name, Names, namespaces
from thinwire.lab.site.objects import entry, summary
from thinwire.lab.site.prose import inline, markdown

Pages = dict[str, str]
FACTS = (
    f"Facts are those of a compressor on {SIZE:,} elements; bits are those of one hop, measured on Gaussian data "
    "where they depend on the data."
)


def pages() -> Pages:
    """All of them by file, such as `api/methods`."""
    names = Names()
    made: Pages = {"api/thinwire": _top(names)}
    for path, module in namespaces():
        if path == "thinwire":
            continue
        found = names.spaces[path]
        file = f"api/{path.partition('.')[2]}"
        doc = markdown(inspect.cleandoc(module.__doc__ or ""), {}, names.link)
        if path == "thinwire.methods":
            made |= _methods(file, doc, found, names)
        elif path == "thinwire.compressors":
            made |= _compressors(file, doc, found, names)
        else:
            made[file] = _page(path, doc, found, names)
    made["api/integrations"] = integrations(names)
    made["api/index"] = _index(
        names, sorted(file for file in made if file.count("-") == 0 and file != "api/thinwire")
    )
    return made


def _page(title: str, doc: str, found: Sequence[Name], names: Names) -> str:
    return "\n\n".join([f"# {title}", doc, *_entries(found, names)]) + "\n"


def _entries(found: Iterable[Name], names: Names) -> list[str]:
    """An entry for each name that is at home here, and a line for one that is not."""
    told: set[str] = set()
    out = []
    for name in found:
        home = names.home[id(name.value)]
        if home == name.path:
            out += [f"## {name.short}", entry(name, names, told=told)]
        else:
            out += [f"`{name.path}` is [`{home}`](#{home})."]
    return out


def _top(names: Names) -> str:
    found = names.spaces["thinwire"]
    errors = [n for n in found if isinstance(n.value, type) and issubclass(n.value, BaseException)]
    classes = [n for n in found if isinstance(n.value, type) and n not in errors]
    functions = [n for n in found if not isinstance(n.value, type)]
    return _page("thinwire", "`import thinwire as tw`", [*functions, *classes, *errors], names)


def _index(names: Names, files: Sequence[str]) -> str:
    doc = markdown(inspect.cleandoc(thinwire.__doc__ or ""), {}, names.link)
    top = [
        [f"[`{name.path}`](#{name.path})", inline(summary(name.value), names.link)]
        for name in names.spaces["thinwire"]
        if names.home[id(name.value)] == name.path
    ]
    spaces = [
        [f"[`{path}`]({path.partition('.')[2]}.md)", inline(summary(module), names.link)]
        for path, module in namespaces()
        if path != "thinwire"
    ]
    spaces.append(["[`thinwire.integrations`](integrations.md)", "Adapters to other packages, imported when used."])
    parts = ["# API reference", doc, "## Namespaces", _words(["namespace", "about"], spaces)]
    parts += ["## Names of thinwire itself", _words(["name", "about"], top)]
    parts.append(_contents(["thinwire", *(file.partition("/")[2] for file in files)]))
    return "\n\n".join(parts) + "\n"


def _methods(file: str, doc: str, found: Sequence[Name], names: Names) -> Pages:
    by_id = {name.short.replace("_", "-"): name for name in found}
    groups = methods_by_group()
    assert {one for ids in groups.values() for one in ids} == by_id.keys(), "a method's id is its name"
    made, parts = {}, ["# thinwire.methods", doc, FACTS]
    for group, ids in groups.items():
        made[f"{file}-{group.file}"] = _group(group, [by_id[one] for one in ids], names)
        rows = [_method(by_id[one], method_row(one)) for one in ids]
        head = ["method", "about", "paper", "exchange", "memory", "bits per element"]
        parts += [f"## {group.title}", group.about, _words(head, rows)]
    parts.append(_contents([f"methods-{group.file}" for group in groups]))
    return {file: "\n\n".join(parts) + "\n", **made}


def _method(name: Name, row: Row) -> list[str]:
    paper = ", ".join(str(row[key]) for key in ("author", "year") if row[key])
    if row["arxiv"]:
        paper = f"[{paper or row['arxiv']}](https://arxiv.org/abs/{row['arxiv']})"
    about = str(row["about"]).partition(": ")[2] or str(row["about"])
    bits = f"{row['bits_per_element']:.2f}"
    return [f"[`{row['method']}`](#{name.path})", inline(about), paper, row["exchange"], row["memory"], bits]


def _compressors(file: str, doc: str, found: Sequence[Name], names: Names) -> Pages:
    rows: dict[str, list[Row]] = {}
    for row in compressor_rows():
        rows.setdefault(str(row["method"]).partition(":")[0], []).append(row)
    by_class = {name.value: name for name in found if isinstance(name.value, type)}
    homes: dict[str, Name] = {one: by_class[_made(one)] for one in rows}
    made, parts = {}, ["# thinwire.compressors", doc, FACTS]
    for group, ids in compressors_by_group(rows).items():
        made[f"{file}-{group.file}"] = _group(group, [homes[one] for one in ids], names)
        body = [_compressor(homes[one], row) for one in ids for row in rows[one]]
        head = ["compressor", "about", "bits per element", "unbiased", "omega", "delta"]
        parts += [f"## {group.title}", inline(group.about, names.link), _words(head, body)]
    rest = [name for name in found if name not in homes.values()]
    parts += [
        *_entries(rest, names),
        _contents([f"compressors-{group.file}" for group in compressors_by_group(rows)]),
    ]
    return {file: "\n\n".join(parts) + "\n", **made}


def _made(name: str) -> Any:
    """The class behind the name in an id."""
    return COMPRESSORS[name]


def _compressor(name: Name, row: Row) -> list[str]:
    about = str(row["about"]).partition(": ")[2] or str(row["about"])
    omega, delta = (f"{row[key]:.3g}" if row[key] is not None else "" for key in ("omega", "delta"))
    bits, unbiased = f"{row['bits_per_element']:.2f}", "yes" if row["unbiased"] else "no"
    return [f"[`{row['method']}`](#{name.path})", inline(about), bits, unbiased, omega, delta]


def _group(group: Group, members: Sequence[Name], names: Names) -> str:
    return _page(group.title, inline(group.about, names.link), members, names)


def _words(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return table(head, body, left=2 if len(head) < 6 else len(head))


def _contents(files: Sequence[str]) -> str:
    """The pages below this one, for the navigation alone."""
    return "\n".join(["```{toctree}", ":hidden:", "", *files, "```"])
