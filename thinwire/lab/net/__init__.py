"""The network lab: hosts on one machine, as network namespaces on a bridge, with shaped uplinks.

    with Network(4, "1gbit") as network:
        results = launch(program, 4, hosts=network)  # rank r runs on host r

It needs Linux, root and Debian's iproute2. Addresses are private and exist inside the namespaces alone. When the
`with` block ends, everything is removed; if the process is killed, a guardian removes it; anything that is still
there is removed at the next start.
"""

from thinwire.lab.net.network import Network

__all__ = ["Network"]
