"""What thinwire raises besides ValueError and TypeError."""


class PayloadError(ValueError):
    """A payload is truncated, damaged, or was made by something else; it is never decoded into a gradient."""


class DeadlockError(RuntimeError):
    """No rank can go on; the message names each waiting rank and what it waits for."""


class PeerError(RuntimeError):
    """Another rank has ended, has failed or hangs; `ranks` are those that did not answer."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks
