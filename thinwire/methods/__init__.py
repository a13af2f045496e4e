"""Papers as compositions, one file each."""

from thinwire.methods.ecq_sgd import ecq_sgd
from thinwire.methods.qsgd import qsgd
from thinwire.methods.sgd import sgd

__all__ = ["ecq_sgd", "qsgd", "sgd"]
