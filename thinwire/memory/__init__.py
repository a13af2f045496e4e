"""What both ends of a channel remember, one idea a file."""

from thinwire.core.memory import Memory, NoMemory
from thinwire.memory.error_feedback import ErrorFeedback

__all__ = ["ErrorFeedback", "Memory", "NoMemory"]
