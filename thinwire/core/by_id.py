"""Methods by id: the text that the command line takes, and that benchmark rows and checkpoints hold."""

from __future__ import annotations

from thinwire.core.method import METHODS, Method


def method(text: str | Method) -> Method:
    """The method of an id such as `ecq-sgd:levels=2,exchange=all-gather`, or the method itself.

    An id is the name of a factory in `thinwire.methods`, with "-" for "_", and the arguments that differ from the
    defaults. A value that is an id itself stands in parentheses.

    >>> from thinwire import methods
    >>> method("qsgd:bits=8,code=rans") == methods.qsgd(bits=8, code="rans")
    True
    >>> method("deepsqueeze:compressor=(topk:ratio=0.1),topology=torus").id
    'deepsqueeze:compressor=(topk:ratio=0.1),topology=torus'
    >>> method("qsdg")
    Traceback (most recent call last):
    ValueError: unknown method 'qsdg'; did you mean 'qsgd'...
    """
    if isinstance(text, Method):
        return text
    if not isinstance(text, str):
        raise ValueError(
            f'a method is an id or a Method; got {text!r}; write tw.method("qsgd:bits=4") or tw.methods.qsgd(bits=4)'
        )
    return METHODS.parse(text)
