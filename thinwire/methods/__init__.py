"""Papers as compositions, one file each."""

from thinwire.methods.ad_admm import ad_admm
from thinwire.methods.ad_psgd import ad_psgd
from thinwire.methods.ada_lupa import ada_lupa
from thinwire.methods.adacomm import adacomm
from thinwire.methods.adaptive import adaptive
from thinwire.methods.asgd import asgd
from thinwire.methods.asylpg import asylpg
from thinwire.methods.async_admm import async_admm
from thinwire.methods.async_diloco import async_diloco
from thinwire.methods.atomo import atomo
from thinwire.methods.backup_workers import backup_workers
from thinwire.methods.bf16 import bf16
from thinwire.methods.bmuf import bmuf
from thinwire.methods.choco_sgd import choco_sgd
from thinwire.methods.cocod_sgd import cocod_sgd
from thinwire.methods.consensus_admm import consensus_admm
from thinwire.methods.cr_psgd import cr_psgd
from thinwire.methods.d_admm import d_admm
from thinwire.methods.d_psgd import d_psgd
from thinwire.methods.dbpg import dbpg
from thinwire.methods.dc_asgd import dc_asgd
from thinwire.methods.dcd_psgd import dcd_psgd
from thinwire.methods.deepsqueeze import deepsqueeze
from thinwire.methods.demo import demo
from thinwire.methods.dgc import dgc
from thinwire.methods.diana import diana
from thinwire.methods.diloco import diloco
from thinwire.methods.double_squeeze import double_squeeze
from thinwire.methods.drive import drive
from thinwire.methods.eamsgd import eamsgd
from thinwire.methods.eamsgd_async import eamsgd_async
from thinwire.methods.easgd import easgd
from thinwire.methods.easgd_async import easgd_async
from thinwire.methods.ecd_psgd import ecd_psgd
from thinwire.methods.ecq_sgd import ecq_sgd
from thinwire.methods.eden import eden
from thinwire.methods.edge_admm import edge_admm
from thinwire.methods.ef21 import ef21
from thinwire.methods.ef_signsgd import ef_signsgd
from thinwire.methods.fp16 import fp16
from thinwire.methods.gtopk import gtopk
from thinwire.methods.int4 import int4
from thinwire.methods.int8 import int8
from thinwire.methods.lag import lag
from thinwire.methods.lags import lags
from thinwire.methods.laq import laq
from thinwire.methods.local_sgd import local_sgd
from thinwire.methods.majority_vote import majority_vote
from thinwire.methods.marina import marina
from thinwire.methods.moniqua import moniqua
from thinwire.methods.muloco import muloco
from thinwire.methods.natural import natural
from thinwire.methods.oktopk import oktopk
from thinwire.methods.one_bit_adam import one_bit_adam
from thinwire.methods.one_bit_sgd import one_bit_sgd
from thinwire.methods.one_shot import one_shot
from thinwire.methods.overlap_local_sgd import overlap_local_sgd
from thinwire.methods.parameter_mixing import parameter_mixing
from thinwire.methods.pipe_sgd import pipe_sgd
from thinwire.methods.post_local_sgd import post_local_sgd
from thinwire.methods.powersgd import powersgd
from thinwire.methods.pqasgd import pqasgd
from thinwire.methods.pr_sgd import pr_sgd
from thinwire.methods.qsgd import qsgd
from thinwire.methods.qsgd_elias import qsgd_elias
from thinwire.methods.qsparse_local_sgd import qsparse_local_sgd
from thinwire.methods.r2sp import r2sp
from thinwire.methods.randomk import randomk
from thinwire.methods.rdme import rdme
from thinwire.methods.refining import refining
from thinwire.methods.sbc import sbc
from thinwire.methods.sgd import sgd
from thinwire.methods.sgp import sgp
from thinwire.methods.signsgd import signsgd
from thinwire.methods.signum import signum
from thinwire.methods.sketched_sgd import sketched_sgd
from thinwire.methods.slaq import slaq
from thinwire.methods.slowmo import slowmo
from thinwire.methods.softsync import softsync
from thinwire.methods.sparse_loco import sparse_loco
from thinwire.methods.sparse_loco_step import sparse_loco_step
from thinwire.methods.spy import spy
from thinwire.methods.srq import srq
from thinwire.methods.ssp import ssp
from thinwire.methods.streaming_diloco import streaming_diloco
from thinwire.methods.strom import strom
from thinwire.methods.suresh_vlc import suresh_vlc
from thinwire.methods.terngrad import terngrad
from thinwire.methods.topk import topk
from thinwire.methods.wangni import wangni

__all__ = [
    "ad_admm",
    "ad_psgd",
    "ada_lupa",
    "adacomm",
    "adaptive",
    "asgd",
    "asylpg",
    "async_admm",
    "async_diloco",
    "atomo",
    "backup_workers",
    "bf16",
    "bmuf",
    "choco_sgd",
    "cocod_sgd",
    "consensus_admm",
    "cr_psgd",
    "d_admm",
    "d_psgd",
    "dbpg",
    "dc_asgd",
    "dcd_psgd",
    "deepsqueeze",
    "demo",
    "dgc",
    "diana",
    "diloco",
    "double_squeeze",
    "drive",
    "eamsgd",
    "eamsgd_async",
    "easgd",
    "easgd_async",
    "ecd_psgd",
    "ecq_sgd",
    "eden",
    "edge_admm",
    "ef21",
    "ef_signsgd",
    "fp16",
    "gtopk",
    "int4",
    "int8",
    "lag",
    "lags",
    "laq",
    "local_sgd",
    "majority_vote",
    "marina",
    "moniqua",
    "muloco",
    "natural",
    "oktopk",
    "one_bit_adam",
    "one_bit_sgd",
    "one_shot",
    "overlap_local_sgd",
    "parameter_mixing",
    "pipe_sgd",
    "post_local_sgd",
    "powersgd",
    "pqasgd",
    "pr_sgd",
    "qsgd",
    "qsgd_elias",
    "qsparse_local_sgd",
    "r2sp",
    "randomk",
    "rdme",
    "refining",
    "sbc",
    "sgd",
    "sgp",
    "signsgd",
    "signum",
    "sketched_sgd",
    "slaq",
    "slowmo",
    "softsync",
    "sparse_loco",
    "sparse_loco_step",
    "spy",
    "srq",
    "ssp",
    "streaming_diloco",
    "strom",
    "suresh_vlc",
    "terngrad",
    "topk",
    "wangni",
]
