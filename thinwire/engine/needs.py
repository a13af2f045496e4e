"""Needs: which module needs which parameters, so that each waits for its own and for no others.

A module is asked before it computes, by a hook. It needs its own parameters, and those that it was seen to use first
in the forward passes before the first step: `nn.MultiheadAttention` reads the parameters of its `out_proj` without
calling it, and a tied weight may be read far from the module that owns it. Until a pass has been seen, all is waited
for in the step itself.

Reading parameters by `state_dict`, and setting them by `load_state_dict`, needs all of them. A copy of the model is
refused while parameters lack something, because torch copies some of them before anybody could be asked.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinwire.engine.uncopied import Uncopied

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from thinwire.engine.parameters import Trained

Arrive: TypeAlias = Callable[[Collection[Tensor] | None], None]


@final
class Needs:
    """Hooks on every module of a model and on its optimizer, until `remove`.

    `arrive` lets these parameters, or all, take what they lack, and `lacks` says whether any does. The hooks keep
    nothing alive, and copies of the model have none of them.
    """

    def __init__(
        self,
        model: nn.Module,
        members: Sequence[Trained],
        optimizer: Optimizer | None,
        arrive: weakref.WeakMethod[Arrive],
        lacks: weakref.WeakMethod[Callable[[], bool]],
    ) -> None:
        self._arrive, self._lacks = arrive, lacks
        refuse_compiled(model)
        known = {id(one.parameter) for one in members}
        self._own: dict[int, dict[int, Tensor]] = {
            id(module): {id(p): p for p in module.parameters(recurse=False) if id(p) in known}
            for module in model.modules()
        }
        self._seen: _Seen | None = _Seen(known)
        self._hooks: list[RemovableHandle] = []
        self._learning: list[RemovableHandle] = []
        before, after, anybody = _hooks(weakref.ref(self))
        for module in model.modules():
            self._hooks += [
                module.register_forward_pre_hook(before, prepend=True),
                module.register_state_dict_pre_hook(anybody),
                module.register_load_state_dict_pre_hook(anybody),
            ]
            self._learning.append(module.register_forward_hook(after, always_call=True))
        if optimizer is not None:
            self._hooks += [
                optimizer.register_state_dict_pre_hook(anybody),
                optimizer.register_load_state_dict_pre_hook(anybody),
            ]

    def remove(self) -> None:
        """Take all hooks away."""
        for hook in (*self._hooks, *self._learning):
            hook.remove()
        self._hooks, self._learning = [], []

    def stepped(self) -> None:
        """The optimizer has stepped: now or in the next forward pass, what it lacks must be waited for."""
        seen = self._seen
        if seen is None:
            return
        if seen.passes and not seen.inside:
            self._seen = None
            for module, p in seen.first.values():
                self._own.setdefault(module, {})[id(p)] = p
            for hook in self._learning:
                hook.remove()
            self._learning = []
        else:
            self.all()

    def all(self) -> None:
        """Somebody reads or sets parameters."""
        if (arrive := self._arrive()) is not None:
            arrive(None)

    def before(self, module: nn.Module) -> None:
        """A module is about to compute."""
        if self._seen is not None and torch.is_grad_enabled():
            self._seen.enter(module)
        own = self._own.get(id(module))
        if own and (arrive := self._arrive()) is not None:
            arrive(own.values())

    def after(self, module: nn.Module) -> None:
        """A module has computed."""
        if self._seen is not None:
            self._seen.leave(module)

    def copied(self) -> None:
        """Somebody copies the model or saves it whole."""
        if (lacks := self._lacks()) is not None and lacks():
            raise RuntimeError(
                "parameters still lack the update of the last step, and so would this copy of the model; write "
                "wire.settle() before it"
            )


@final
class _Seen(TorchDispatchMode):
    """Watches which parameters the operations of a forward pass read, and in which module each is read first."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = known
        self.inside: list[int] = []  # the modules that are computing, the innermost last
        self.first: dict[int, tuple[int, Tensor]] = {}  # by parameter: the module, and the parameter itself
        self.passes = 0

    def enter(self, module: nn.Module) -> None:
        """A module begins to compute."""
        if not self.inside:
            self.__enter__()  # type: ignore[no-untyped-call]
        self.inside.append(id(module))

    def leave(self, module: nn.Module) -> None:
        """A module has ended, as have those inside it that raised an error."""
        if id(module) not in self.inside:
            return
        while self.inside.pop() != id(module):
            pass
        if not self.inside:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.passes += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and id(one) in self._known and id(one) not in self.first and self.inside:
                self.first[id(one)] = (self.inside[-1], one)
        return func(*args, **(kwargs or {}))


def _hooks(needs: weakref.ref[Needs]) -> tuple[Uncopied, Uncopied, Uncopied]:
    """Before a module computes, after it, and before parameters are read or set by name."""

    def before(module: nn.Module, args: Any) -> None:
        one = needs()
        if one is not None and not torch.compiler.is_compiling():
            one.before(module)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        one = needs()
        if one is not None and not torch.compiler.is_compiling():
            one.after(module)

    def anybody(*args: Any) -> None:
        one = needs()
        if one is not None:
            one.all()

    def copied() -> None:
        one = needs()
        if one is not None:
            one.copied()

    return Uncopied(before, copied), Uncopied(after), Uncopied(anybody)


def refuse_compiled(model: nn.Module) -> None:
    """ValueError for a model whose hooks torch.compile may have left out."""
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule":
            raise ValueError(
                f"{name or 'the model'} is compiled, and its parts cannot be asked to wait for their parameters; "
                "write Overlap(into_forward=None)"
            )
