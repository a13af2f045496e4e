"""Papers as compositions, one file each."""

from thinwire.methods.cast import bf16, fp16
from thinwire.methods.diana import diana
from thinwire.methods.ecq_sgd import ecq_sgd
from thinwire.methods.ef21 import ef21
from thinwire.methods.ef_signsgd import ef_signsgd
from thinwire.methods.int_block import int4, int8
from thinwire.methods.majority_vote import majority_vote
from thinwire.methods.natural import natural
from thinwire.methods.one_bit_sgd import one_bit_sgd
from thinwire.methods.onebit_adam import onebit_adam
from thinwire.methods.qsgd import qsgd
from thinwire.methods.sgd import sgd
from thinwire.methods.signsgd import signsgd
from thinwire.methods.signum import signum
from thinwire.methods.terngrad import terngrad

__all__ = [
    "bf16",
    "diana",
    "ecq_sgd",
    "ef21",
    "ef_signsgd",
    "fp16",
    "int4",
    "int8",
    "majority_vote",
    "natural",
    "one_bit_sgd",
    "onebit_adam",
    "qsgd",
    "sgd",
    "signsgd",
    "signum",
    "terngrad",
]
