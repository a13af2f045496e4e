"""Types in Triton's interpreter, which makes them anew for every number that a kernel computes: here, once each."""

from __future__ import annotations

from typing import Any

import pytest

PLAIN = {"fp32", "fp64", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
"""Types whose operations have the same type again, divisions as well; those of 16 bits are wider there."""


def install(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Until the test is over, a type of blocks keeps what is derived from it."""
    core = interpreter.tl.core
    blocks, tensors, semantics = core.block_type, core.tensor, type(interpreter.interpreter_semantic)
    make, derive, lower, fit = blocks.__init__, blocks.with_element_ty, blocks.to_ir, semantics.broadcast_impl_value
    numpy_type, prepare = interpreter._get_np_dtype, semantics.binary_op_type_checking_impl
    numbers: dict[tuple[object, ...], Any] = {}
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

    def prepared(self: Any, left: Any, right: Any, *args: bool, **kwargs: bool) -> Any:
        """Operands of one plain type stay as they are; a number that follows a tensor is spread out once."""
        if isinstance(left, tensors):
            if isinstance(right, tensors):
                if left.dtype.name == right.dtype.name and left.dtype.name in PLAIN:
                    return fitted(self, left, right)
            elif type(right) is int or (type(right) is float and right):  # zeros have signs, and True is 1
                shape = left.type.shape.values if left.type.is_block() else ()
                key = (type(right), right, left.dtype.name, *shape, "to", args, *kwargs.items())
                if key not in numbers:
                    first, second = prepare(self, left, right, *args, **kwargs)
                    if first is not left:
                        return first, second
                    numbers[key] = second
                return left, numbers[key]
        return prepare(self, left, right, *args, **kwargs)

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
        (semantics, "binary_op_type_checking_impl", prepared),
        (interpreter, "_get_np_dtype", as_numpy),
    ):
        patch.setattr(owner, name, function)
