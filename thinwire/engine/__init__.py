"""Training over processes: buckets, the lane they travel on, and the two ways in, `attach` and `ddp_hook`."""

from thinwire.engine.attach import Wire, attach
from thinwire.engine.ddp import ddp_hook

__all__ = ["Wire", "attach", "ddp_hook"]
