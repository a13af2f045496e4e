"""Planning: how long a step would take under each method, from what is measured of a model on this machine."""

from thinwire.planning.computing import Computing
from thinwire.planning.link import Link
from thinwire.planning.outlook import Outlook, Row
from thinwire.planning.planner import plan

__all__ = ["Computing", "Link", "Outlook", "Row", "plan"]
