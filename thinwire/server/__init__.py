"""Rules of a parameter server: when a gradient is used, and when its sender goes on."""

from thinwire.server.admm import ConsensusAdmm
from thinwire.server.asgd import Asgd, Softsync
from thinwire.server.asylpg import AsyLpg
from thinwire.server.backup import Backup
from thinwire.server.book import Book
from thinwire.server.dbpg import Dbpg
from thinwire.server.dc_asgd import DcAsgd
from thinwire.server.easgd import Easgd
from thinwire.server.figures import total
from thinwire.server.r2sp import R2sp
from thinwire.server.rule import Push, Rule
from thinwire.server.spy import Spy
from thinwire.server.ssp import Ssp
from thinwire.server.worker import Work, WorkerHalf

__all__ = [
    "Asgd",
    "AsyLpg",
    "Backup",
    "Book",
    "ConsensusAdmm",
    "Dbpg",
    "DcAsgd",
    "Easgd",
    "Push",
    "R2sp",
    "Rule",
    "Softsync",
    "Spy",
    "Ssp",
    "Work",
    "WorkerHalf",
    "total",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
