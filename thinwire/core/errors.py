"""What thinwire raises beyond ValueError and TypeError."""


class PayloadError(ValueError):
    """A payload is truncated, damaged, or was made by something else; it is never decoded into a gradient."""


class DeadlockError(RuntimeError):
    """No rank can go on; the message names each waiting rank and what it waits for."""
