"""SparseLoCo in every step: the largest elements of each block with two-bit values, and a residual that fades.

Sends 0.219 bits per element to every other rank, every step: of each block of 4096 the 64 largest, 14 bits each.
Keeps a residual on every rank.

    e = beta e + g,    q = SparseLoco(e),    e = e - q,    x = x - lr (1/n) sum_i q_i

Reference: Sarfi, Therien, Lidin, Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025,
arXiv 2508.15706, and the code of templar (tplr-ai).

Departs from the paper: it exchanges what 30 local AdamW steps change (`sparse_loco`), where this exchanges every
gradient. The rest is as for the compressor (thinwire/compressors/sparse_loco.py). The memory is ErrorFeedback with
alpha = beta.
"""

from __future__ import annotations

from thinwire.compressors.sparse_loco import SparseLoco
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.error_feedback import ErrorFeedback


@method("sparse-loco-step")
def sparse_loco_step(k: int = 64, block: int = 4096, beta: float = 0.95) -> Method:
    """The `k` largest of every `block` elements; the residual forgets with factor `beta`.

        k       elements that are sent of every block
        block   elements among which k are chosen
        beta    what a step leaves of the residual e

    >>> sparse_loco_step(k=32).id
    'sparse-loco-step:k=32'
    """
    return Method(AllGather(Channel(SparseLoco(block, k), ErrorFeedback(alpha=beta, beta=beta))))
