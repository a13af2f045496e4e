"""LAGS-SGD: top-k of every layer by itself, sent as soon as backward has its gradient.

Sends, of layer l, k_l values and their places to every other rank, while the layers below it still compute. Each rank
keeps one residual e.

    p_l = g_l + e_l,    q_l = the k_l largest of p_l,    e_l = p_l - q_l,    x_l = x_l - (lr / n) sum_i q_l,i

k_l is the share `ratio` of the layer, or what `ratios` says for it by name. `thinwire.sync.hidden` finds the largest
shares whose exchange takes no longer than what is left of backward, from a profile and a link.

Reference: Shi, Tang, Wang, Zhao, Chu, "Layer-wise adaptive gradient sparsification for distributed deep learning with
convergence guarantees", ECAI 2020, arXiv 1911.08727, algorithm 1.

Departs from the paper: e is in units of the gradient, and is rescaled when the learning rate changes. Small tensors
that `attach` does not compress travel together when backward ends; small matrices share buckets of 10,000 elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from thinwire.compressors.topk import TopK
from thinwire.core.channel import Channel
from thinwire.core.method import Method, Overlap, method
from thinwire.core.per_tensor import PerTensor
from thinwire.exchange.all_gather import AllGather
from thinwire.memory import ErrorFeedback

ALONE = Overlap(bucket_mb=1e-6)  # less than any tensor has: each is a bucket of its own


@method("lags")
def lags(ratio: float = 0.01, ratios: Mapping[str, float] | None = None) -> Method:
    """The largest `ratio` of each layer, or the share that `ratios` gives it.

        ratio      k/d, the share of the elements of a layer that is sent
        ratios     the shares of single layers by the names of their parameters, as `thinwire.sync.hidden` returns
                   them; None: `ratio` for all

    >>> lags(ratio=0.001).id
    'lags:ratio=0.001'
    """
    shares = dict(sorted((ratios or {}).items()))
    options = list(dict.fromkeys([ratio, *shares.values()]))
    choice = tuple((name, options.index(share)) for name, share in shares.items())
    compressor = PerTensor(tuple(TopK(ratio=share, indices="packed") for share in options), choice)
    return Method(AllGather(Channel(compressor, ErrorFeedback())), overlap=ALONE)
