"""SparseLoCo: of the way of `every` local steps, the largest elements of each block, with values of two bits.

Sends 0.219 bits per element to every other rank, once in `every` steps: of each block of 4096 the 64 largest, 14 bits
each. Keeps the anchor and a residual on every rank; the residual takes the place of DiLoCo's outer momentum.

    d_i = anchor - x_i                       after `every` steps of the inner optimizer (the paper: AdamW)
    e_i = beta e_i + d_i,    q_i = SparseLoco(e_i),    e_i = e_i - q_i
    anchor = anchor - outer_lr (1/n) sum_i q_i,    x_i = anchor

Reference: Sarfi, Therien, Lidin, Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025,
arXiv 2508.15706, and the code of templar (tplr-ai), whose settings are the defaults.

Departs from the paper: small tensors that `attach` does not compress travel in float32. The rest is as for the
compressor (thinwire/compressors/sparse_loco.py). The memory is ErrorFeedback with alpha = beta. `sparse_loco_step`
exchanges every gradient in this way.
"""

from __future__ import annotations

from thinwire.compressors.sparse_loco import SparseLoco
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.sync.delta import Delta
from thinwire.sync.outer_steps import Sgd


@method("sparse-loco")
def sparse_loco(every: int = 30, k: int = 64, block: int = 4096, beta: float = 0.95, outer_lr: float = 1.0) -> Method:
    """The `k` largest of every `block` elements of the way; the residual forgets with factor `beta`.

        every      local steps from one round to the next
        k          elements that are sent of every block
        block      elements among which k are chosen
        beta       what a round leaves of the residual e
        outer_lr   of the outer optimizer, which has no momentum

    >>> sparse_loco(every=15, k=32).id
    'sparse-loco:every=15,k=32'
    """
    exchange = AllGather(Channel(SparseLoco(block, k), ErrorFeedback(alpha=beta, beta=beta)))
    return Method(exchange, Sync(of=Delta(Sgd(outer_lr, 0.0)), every=every))
