"""Training over processes: buckets, the lane they travel on, and the ways in, `attach`, `ddp_hook` and `fsdp`."""

from thinwire.engine.attach import Wire, attach
from thinwire.engine.ddp import ddp_hook
from thinwire.engine.fsdp import fsdp

__all__ = ["Wire", "attach", "ddp_hook", "fsdp"]
