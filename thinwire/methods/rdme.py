"""Randomised distributed mean estimation: a rank sends a few elements and a centre that stands for all the others.

Sends the centre mu_i and the share `ratio` of the elements to every other rank, every step. With p = "optimal" each
takes 2 bits and a place, and 32 bits more where it was certain to be sent; with p = "uniform" 32 bits, since places
follow from a seed. Keeps no state. See thinwire.compressors.centred for the best p_ij and mu_i.

    y_ij = x_ij / p_ij - ((1 - p_ij) / p_ij) mu_i with probability p_ij, else mu_i;    mean = (1/n) sum_i y_i
    E|mean - (1/n) sum_i x_i|^2 = (1/n^2) sum_ij (1/p_ij - 1) (x_ij - mu_i)^2

Reference: Konecny, Richtarik, "Randomized distributed mean estimation: accuracy vs. communication", Frontiers in
Applied Mathematics and Statistics 4, 2018, arXiv 1611.07555.

Departs from the paper: see thinwire.compressors.centred. There is no server: every rank makes the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from thinwire.compressors.centred import Centred, CentredK
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.config import check_choice
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather

CHANCES: dict[str, Callable[[float], Compressor]] = {"optimal": Centred, "uniform": CentredK}


@method("rdme")
def rdme(ratio: float = 0.05, p: Literal["optimal", "uniform"] = "optimal") -> Method:
    """The share `ratio` of the elements, and their centre.

        ratio   share of the elements that are sent: on average for "optimal", exactly for "uniform"
        p       "optimal": elements far from the centre are sent more often; "uniform": all alike

    >>> rdme(ratio=0.1).id
    'rdme:ratio=0.1'
    """
    check_choice("rdme", "p", p, tuple(CHANCES))
    return Method(AllGather(Channel(CHANCES[p](ratio))))
