"""ATOMO: each rank sends a few atoms of its gradient, drawn so that the mean is exact and the variance least.

Sends, every step, to every other rank: 32 (m + k) bits for each of about `budget` singular vectors of an m x k
matrix, or (form=entries, form=fourier) 32 bits and a place for each of the share `budget` of the elements or of the
cosines of a tensor's chunks; keeps no state.

    x = x - (lr / n) sum_i sum_j t_ij (lambda_ij / p_ij) a_ij,    t_ij ~ Bernoulli(p_ij)

Reference: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic
sparsification", NeurIPS 2018, arXiv 1806.04090, algorithm 1.

Departs from the paper: see thinwire.compressors.atomo and thinwire.compressors.atomo_fourier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from thinwire.compressors.atomo import AtomoEntries, AtomoSpectral
from thinwire.compressors.atomo_fourier import AtomoFourier
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.config import check_choice
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather

FORMS: dict[str, tuple[Callable[[float], Compressor], float]] = {
    "svd": (AtomoSpectral, 3.0),
    "entries": (AtomoEntries, 0.01),
    "fourier": (AtomoFourier, 0.01),
}


@method("atomo")
def atomo(form: Literal["svd", "entries", "fourier"] = "svd", budget: float | None = None) -> Method:
    """`budget` singular vectors per matrix (3), or that share of the entries or cosines (0.01).

        form     "svd": atoms a_ij are pairs of singular vectors; "entries": single elements; "fourier": cosines
        budget   sum_j p_ij, the expected number of atoms: per matrix for "svd" (3), as a share of the elements for
                 "entries" and "fourier" (0.01); None takes the number in parentheses

    >>> atomo(form="entries", budget=0.05).id
    'atomo:form=entries,budget=0.05'
    """
    check_choice("atomo", "form", form, tuple(FORMS))
    make, usual = FORMS[form]
    return Method(AllGather(Channel(make(usual if budget is None else budget))))
