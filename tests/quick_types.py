"""Types in Triton's interpreter, which makes them anew for every number that a kernel computes: here, once each."""

from __future__ import annotations

from typing import Any

import pytest


def install(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Until the test is over, a type of blocks keeps what is derived from it."""
    core = interpreter.tl.core
    blocks, tensors, semantics = core.block_type, core.tensor, type(interpreter.interpreter_semantic)
    make, derive, lower, fit = blocks.__init__, blocks.with_element_ty, blocks.to_ir, semantics.broadcast_impl_value
    numpy_type = interpreter._get_np_dtype
    made: dict[tuple[object, ...], dict[str, Any]] = {}
    numpy_types: dict[str, Any] = {}

    def made_once(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple(getattr(size, "value", size) for size in getattr(shape, "value", shape))
        key = (type(element), element.name, *sizes)
        if key not in made:
            make(self, element, shape)
            made[key] = dict(vars(self))
        vars(self).update(made[key])

    def derived(self: Any, element: Any) -> Any:
        known = vars(self).setdefault("others", {})
        if element.name not in known:
            known[element.name] = derive(self, element)
        return known[element.name]

    def lowered(self: Any, builder: Any) -> Any:
        if "lower" not in vars(self):
            self.lower = lower(self, builder)
        return self.lower

    def equal(self: Any, other: Any) -> bool:
        return self is other or (isinstance(other, blocks) and self.name == other.name)

    def tensor(self: Any, handle: Any, of: Any) -> None:
        if "sizes" not in vars(of):
            sizes = of.shape if of.is_block() else ()
            of.sizes = core.tuple([core.constexpr(size) for size in sizes])
            of.count = core.constexpr(core.math.prod(sizes))
        self.handle, self.type, self.dtype, self.shape, self.numel = handle, of, of.scalar, of.sizes, of.count

    def fitted(self: Any, left: Any, right: Any) -> Any:
        a, b = left.type, right.type
        if a.is_block() and b.is_block() and a.shape.values == b.shape.values:
            return left, right
        return fit(self, left, right)

    def as_numpy(of: Any) -> Any:
        name = of.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(of)
        return numpy_types[name]

    for owner, name, function in (
        (blocks, "__init__", made_once),
        (blocks, "with_element_ty", derived),
        (blocks, "to_ir", lowered),
        (blocks, "__eq__", equal),
        (tensors, "__init__", tensor),
        (semantics, "broadcast_impl_value", fitted),
        (interpreter, "_get_np_dtype", as_numpy),
    ):
        patch.setattr(owner, name, function)
