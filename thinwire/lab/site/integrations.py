"""The reference of `thinwire.integrations`, read from its sources: what they adapt to need not be installed."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import thinwire
from thinwire.lab.site.names import Names
from thinwire.lab.site.prose import markdown

FOLDER = Path(thinwire.__file__).parent / "integrations"
Public = ast.FunctionDef | ast.ClassDef


def integrations(names: Names) -> str:
    """One page: each adapter with its public functions and classes."""
    parts = ["# thinwire.integrations", _doc(ast.parse((FOLDER / "__init__.py").read_text()), names)]
    for path in sorted(FOLDER.glob("[!_]*.py")):
        tree = ast.parse(path.read_text())
        parts += [f"## {path.stem}", _doc(tree, names)]
        for node in _public(tree):
            parts.append(_entry(f"thinwire.integrations.{path.stem}.{node.name}", node, names))
    return "\n\n".join(parts) + "\n"


def _public(tree: ast.Module) -> list[Public]:
    """What a module defines for others: in its `__all__`, or else without an underscore before it."""
    listed = {
        value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for value in ast.literal_eval(node.value)
    }
    found = [node for node in tree.body if isinstance(node, Public)]
    return [node for node in found if (node.name in listed if listed else not node.name.startswith("_"))]


def _entry(path: str, node: Public, names: Names) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"::::{{py:function}} {path}{_signature(node, names)}\n\n{_doc(node, names)}\n::::"
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
    made = next((_signature(m, names).partition(" -> ")[0] for m in methods if m.name == "__init__"), "")
    body = [_doc(node, names)]
    for method in methods:
        if not method.name.startswith("_") and ast.get_docstring(method):
            head = f"{method.name}{_signature(method, names)}"
            body.append(f"::::{{py:method}} {head}\n\n{_doc(method, names)}\n::::")
    return f":::::{{py:class}} {path}{made}\n\n" + "\n\n".join(body) + "\n:::::"


def _signature(node: ast.FunctionDef, names: Names) -> str:
    taken = node.args
    if taken.args and taken.args[0].arg in ("self", "cls"):
        taken.args = taken.args[1:]
    back = f" -> {names.typed(ast.unparse(node.returns))}" if node.returns else ""
    return f"({names.typed(ast.unparse(taken))}){back}"


def _doc(node: ast.Module | Public, names: Names) -> str:
    return markdown(inspect.cleandoc(ast.get_docstring(node) or ""), {}, names.link)
