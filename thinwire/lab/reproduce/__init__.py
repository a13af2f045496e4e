"""Published comparisons, run again: `get("deepsqueeze")` is one, and `thinwire reproduce` runs it."""

from thinwire.core.registry import suggest
from thinwire.lab.reproduce.atomo import Atomo
from thinwire.lab.reproduce.base import Reproduction, Settings, Trend
from thinwire.lab.reproduce.deepsqueeze import DeepSqueeze
from thinwire.lab.reproduce.deepsqueeze_network import DeepSqueezeNetwork
from thinwire.lab.reproduce.diana import Diana
from thinwire.lab.reproduce.ecq_fig2 import EcqFig2
from thinwire.lab.reproduce.ecq_fig3 import EcqFig3
from thinwire.lab.reproduce.ecq_fig6 import EcqFig6
from thinwire.lab.reproduce.ecq_traffic import EcqTraffic
from thinwire.lab.reproduce.laq import Laq
from thinwire.lab.reproduce.natural import NaturalPaper
from thinwire.lab.reproduce.one_bit import OneBitSgd
from thinwire.lab.reproduce.qsgd import QsgdPaper
from thinwire.lab.reproduce.qsgd_scaling import QsgdScaling
from thinwire.lab.reproduce.scaling import Scaling
from thinwire.lab.reproduce.signsgd import SignSgd
from thinwire.lab.reproduce.terngrad import Ternary

__all__ = [
    "REPRODUCTIONS",
    "DeepSqueeze",
    "Reproduction",
    "Settings",
    "SignSgd",
    "Trend",
    "get",
]

REPRODUCTIONS: dict[str, Reproduction] = {
    made.name: made
    for made in (
        Atomo(),
        DeepSqueeze(),
        DeepSqueezeNetwork(),
        Diana(),
        EcqFig2(),
        EcqFig3(),
        EcqFig6(),
        EcqTraffic(),
        Laq(),
        NaturalPaper(),
        OneBitSgd(),
        QsgdPaper(),
        QsgdScaling(),
        Scaling(),
        SignSgd(),
        Ternary(),
    )
}
"""Every reproduction by its name."""


def get(name: str) -> Reproduction:
    """The reproduction of that name."""
    if name not in REPRODUCTIONS:
        raise ValueError(f"unknown reproduction '{name}'{suggest(name, REPRODUCTIONS)}")
    return REPRODUCTIONS[name]
