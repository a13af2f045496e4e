"""Training over processes: buckets, the lane they travel on, and the ways in, `attach`, `ddp_hook` and `fsdp`."""

from thinwire.engine.attach import attach
from thinwire.engine.ddp import ddp_hook
from thinwire.engine.fsdp import fsdp
from thinwire.engine.wire import Wire

__all__ = ["Wire", "attach", "ddp_hook", "fsdp"]
