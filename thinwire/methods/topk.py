"""Top-k SGD: every rank sends its largest gradients and keeps the rest for later.

Sends k = round(ratio d) values and places to every other rank, every step: about 40 bits each at 1%. Each rank
keeps one residual e.

    p = g + e,    q = the k largest of p,    e = p - q,    x = x - (lr / n) sum_i q_i

Without error feedback (`feedback=False`) it stalls far from the optimum: what is never among the largest is never
sent.

Reference: Aji, Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, arXiv 1704.05021;
Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018, arXiv 1809.07599, algorithm 1.

Departs from the paper: see thinwire.compressors.topk. `block` takes the k largest of each block instead.
"""

from __future__ import annotations

from thinwire.compressors.block_topk import BlockTopK
from thinwire.compressors.sparse import Indices, Values
from thinwire.compressors.topk import TopK
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory import ErrorFeedback, NoMemory


@method("topk")
def topk(
    ratio: float = 0.01,
    values: Values = "fp32",
    indices: Indices = "gaps",
    block: int | None = None,
    feedback: bool = True,
) -> Method:
    """The largest `ratio` of the elements, of the whole message or of every `block` elements.

        ratio      k/d, the share of the elements that is sent
        values     how values are written: "fp32", "bf16" or "fp16"
        indices    how places are written: "gaps", Golomb coded, log2(d/k) + 1.5 bits each; "packed", fields of
                   ceil(log2 d) bits; ignored with `block`
        block      take the k largest of every `block` elements; None: of a message
        feedback   keep the residual e; False loses what is not sent

    >>> topk(ratio=0.001).id
    'topk:ratio=0.001'
    """
    memory = ErrorFeedback() if feedback else NoMemory()
    if block is None:
        return Method(AllGather(Channel(TopK(ratio, None, values, indices), memory)))
    return Method(AllGather(Channel(BlockTopK(block, max(1, round(ratio * block)), values), memory)))
