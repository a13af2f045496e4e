"""Member: the handle of a replica whose peers may change. It is built as a `Wire` is, without a handshake."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from thinwire.core.method import Method
from thinwire.core.version import VERSION
from thinwire.engine.averages import may_keep_points
from thinwire.engine.crew import Crews, Nobody
from thinwire.engine.ending import release, watch_over
from thinwire.engine.hooks import Hooks
from thinwire.engine.legal import check_method
from thinwire.engine.loop import Loop
from thinwire.engine.misuse import check_unclaimed, claim, refuse_wrapper, unclaim
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.parameters import trained
from thinwire.engine.plan import Plan, announce, check_exclude, plan_of
from thinwire.engine.replicas import floating
from thinwire.engine.runner import Runner
from thinwire.engine.schedules.quorum import Quorum
from thinwire.engine.settings import Settings
from thinwire.engine.signal import source
from thinwire.engine.skipping import Skipping
from thinwire.engine.stepping import warn_without_round
from thinwire.engine.telemetry import Telemetry
from thinwire.engine.transport import Waits, answer, blocking
from thinwire.sync.delta import Delta

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def check_membership(method: Method) -> None:
    """Refuse a method that cannot go on when ranks come and go, with the line to write instead."""
    of, exchange = method.sync.of, method.exchange
    if not isinstance(of, Delta):
        raise ValueError(
            f"{method.id} has no outer loop, between whose rounds ranks could come and go; "
            "write thinwire.methods.diloco(), or Method(exchange, Sync(of=thinwire.sync.Delta(), every=50))"
        )
    if exchange.scope != "everybody" or exchange.groups(4):
        raise ValueError(f"{exchange.name} needs to know its ranks beforehand; write AllGather, or ScatterGather")
    if of.delay:
        raise ValueError(f"what travels when a rank is lost would be lost; got delay={of.delay}: write delay=0")
    if of.period.hears_loss or of.period.at_end:
        raise ValueError(
            f"a rank that comes has no losses, and does not know the end; got {of.period!r}: write Fixed()"
        )
    check_method(method, 2, drop_dead=False)


@final
class Member:
    """What `thinwire.integrations.torchft.outer` returns. Use it with `with`, or call `detach` at the end."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, method: Method, crews: Crews, settings: Settings
    ) -> None:
        members = self._trained = trained(model, optimizer)
        check_unclaimed(members)
        items = [item for _, item in members]
        check_exclude(items, settings.exclude)
        self._optimizer, self._crews = optimizer, crews
        self._quiet = 0  # depth of no_sync blocks
        self._plan = plan_of(method, items, settings.min_size, settings.exclude)
        announce(self._plan, settings.min_size, settings.exclude)
        nobody = Nobody()
        waits = Waits()
        telemetry = Telemetry(nobody.now, nobody.traffic, nobody.comm.size, lambda: waits.seconds)

        def timed(request: Any) -> Any:
            with waits:
                return answer(request)

        self._runner = Runner(method, nobody, telemetry, Motion(optimizer, depth_of(method)), settings.seed)
        self._loop = Loop(
            self._runner,
            self._plan,
            members,
            optimizer,
            Skipping(optimizer, settings.on_nonfinite),
            lambda: self._quiet > 0,
            source(method.sync.of, optimizer),
            "`with wire.no_sync():`",
            floating(model),
        )
        kinds = sorted({item.device.type for item in items})
        same = {
            "thinwire's version": VERSION,
            "its method": method.to_json(),
            "its model": str([(item.name, item.shape) for item in items]),
            "its plan": str(self._plan),
            "whether its optimizer may keep points": str(may_keep_points(optimizer)),
            "the sizes of its pieces": str({kind: method.overlap.sizes(kind) for kind in kinds}),
        }
        fields = {name: zlib.crc32(text.encode()) for name, text in same.items()}
        self._schedule = Quorum(self._loop, model, crews, fields)
        self._driver = Hooks(self._loop, self._schedule, partial(blocking, answer=timed))
        try:
            self._schedule.begin()
            self._driver.run(self._driver.start())
        except BaseException:
            self._close()
            raise
        self._refused = refuse_wrapper(model)
        claim(members, optimizer)
        watch_over(self)

    @property
    def method(self) -> Method:
        """The method in use."""
        return self._runner.method

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Optimizer steps in the block count for no round."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def samples(self, count: int) -> None:
        """Say how many samples the step that follows has: a way weighs as much as the samples on it.

        Call it before `optimizer.step()`, which may end the round that they belong to. Replicas that never say so
        weigh the same.
        """
        if count < 0:
            raise ValueError(f"samples({count}): write how many samples this step has seen, such as len(batch)")
        self._schedule.samples = max(0, self._schedule.samples) + count

    def stats(self) -> dict[str, float]:
        """As `Wire.stats`, with the size of the crew, `rounds_taken`, `rounds_again` and `healed`."""
        skipped = {"steps_skipped": self._loop.skipping.skipped}
        return {**skipped, **self._schedule.report(), **self._runner.telemetry.report()}

    def plan(self) -> Plan:
        """What happens to every tensor; it prints as a table."""
        return self._plan

    def anchor(self) -> dict[str, Tensor]:
        """The anchor by parameter, which is equal on all replicas that took the same rounds."""
        return self._schedule.anchor()

    def state_dict(self) -> dict[str, Any]:
        """The state of this replica, for torch.save: one file per replica, between two steps."""
        return blocking(self._schedule.save())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. Replicas that load states of the same round go on from it together.

        In the next round a replica of fewer rounds than another takes over the state of that one.
        """
        self._driver.load(state, resized=False)

    def leave(self, why: str) -> None:
        """Detach because the interpreter ends."""
        self.detach()

    def detach(self) -> None:
        """Take part no longer; the others go on."""
        release(self)
        warn_without_round(self.method, self._runner.round, self._driver.steps)
        self._refused.remove()
        unclaim(self._trained, self._optimizer)
        self._close()

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _close(self) -> None:
        self._driver.close()
        self._runner.motion.close()
        self._crews.leave()
