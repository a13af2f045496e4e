"""The network lab: hosts that talk at the rate, bytes that are counted, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import thinwire
from thinwire.core.rates import bits_per_second, seconds
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network, network, reaper
from thinwire.lab.net.inside import enter
from thinwire.lab.net.shaping import DEFAULT, shape, transmitted
from thinwire.lab.net.tools import call, check

OWNER = """
import signal, subprocess, sys, time, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
package = sys.modules["thinwire"] = types.ModuleType("thinwire")  # its own __init__ imports torch, for two seconds
package.__path__ = [sys.argv[1]]
from thinwire.lab.net import Network
with Network(2, "1gbit") as network:
    inside = subprocess.Popen(["ip", "netns", "exec", network.namespace(1), "sleep", "600"])
    print(network.lab, network._guardian.pid, inside.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def pair(root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # restored afterwards: threads of this process enter hosts
    with Network(2, "200mbit") as two:
        yield two


def left(lab: str) -> list[str]:
    return [path.name for path in reaper.NAMESPACES.glob(f"{lab}*")]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def send(hosts: Network, size: int) -> float:
    """Seconds from the first byte to the last of one stream from host 0 to host 1."""
    listening, times = threading.Event(), []

    def receive() -> None:
        enter(hosts.namespace(1))
        with socket.create_server((hosts.address(1), 7000)) as server:
            listening.set()
            connection, _ = server.accept()
            with connection:
                room, start = bytearray(1 << 20), 0.0
                while connection.recv_into(room):
                    start = start or time.perf_counter()
                times.append(time.perf_counter() - start)

    def transmit() -> None:
        enter(hosts.namespace(0))
        listening.wait(20)
        with socket.create_connection((hosts.address(1), 7000)) as connection:
            connection.sendall(bytes(size))

    threads = [threading.Thread(target=receive), threading.Thread(target=transmit)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return times[0]


def test_a_stream_runs_at_the_rate_and_its_bytes_are_counted(pair: Network) -> None:
    for rate, size in (("200mbit", 10 << 20), ("50mbit", 4 << 20)):
        pair.set_rate(rate)
        rates = []
        for _ in range(3):  # the machine may be busy with something else
            before = pair.tx_bytes(0)
            spent = send(pair, size)
            sent = pair.tx_bytes(0) - before
            assert 1.03 * size < sent < 1.08 * size  # 66 bytes of headers per packet of 1514
            rates.append(8 * sent / spent / bits_per_second(rate))
        assert 0.87 < max(rates) < 1.06  # the bucket is full at the start, and holds up to 2% of the stream


def test_a_host_receives_no_faster_than_it_may_send(root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    size = 3 << 20
    with Network(2, "100mbit", down=True) as two:
        shape("10gbit", two.namespace(0))  # its own uplink no longer holds it up
        rates = [8 * 1.05 * size / send(two, size) / 100e6 for _ in range(2)]
    assert 0.85 < max(rates) < 1.1
    with pytest.raises(ValueError, match="leave down=True or latency out"):
        Network(2, "1gbit", "1ms", down=True)


def interfaces(say: Say) -> tuple[list[str], int, list[float]]:
    before = transmitted()
    x = torch.full((100_000,), float(dist.get_rank()))
    dist.all_reduce(x)
    dist.barrier()
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return sorted(line.split(":")[0].strip() for line in lines), transmitted() - before, x.unique().tolist()


def test_ranks_run_on_hosts(pair: Network) -> None:
    before = pair.tx_bytes(1)
    for names, sent, sums in launch(interfaces, 2, hosts=pair, timeout=100):
        assert [name for name in names if name in ("lo", "eth0", "bridge")] == ["eth0", "lo"]
        assert sums == [1.0]
        assert 400_000 < sent < 450_000  # two ranks: each sends one half twice
    assert pair.tx_bytes(1) - before >= 400_000


def test_what_controls_congestion_is_the_labs_own_setting(root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    with Network(2, "200mbit", congestion="reno") as two:  # every kernel has it
        assert two.controlled == "reno"
        assert 8 * 1.03 * (1 << 20) / send(two, 1 << 20) < 1.3 * 200e6  # the route still leads through the uplink
    with Network(2, "200mbit", congestion="no-such-thing") as two:
        assert two.controlled == DEFAULT.read_text().strip()


def test_more_ranks_than_hosts() -> None:
    with pytest.raises(ValueError, match=r"3 ranks on 2 hosts.*write Network\(3, '1gbit'\)"):
        launch(interfaces, 3, hosts=Network(2, "1gbit"))


def test_an_exception_leaves_nothing(root: None) -> None:
    def fails() -> None:
        with Network(2, "1gbit") as two:
            labs.append(two.lab)
            assert len(left(two.lab)) == 3
            raise KeyError("x")

    labs: list[str] = []
    with pytest.raises(KeyError):
        fails()
    assert left(labs[0]) == []


def test_a_build_that_fails_leaves_nothing(root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "shape", lambda *words: call("tc", "no-such-thing"))
    two = Network(2, "1gbit")
    with pytest.raises(OSError, match="tc no-such-thing"):
        two.__enter__()
    assert left(two.lab) == []


def delays() -> bool:
    """Whether the kernel has netem."""
    name = f"thinwire-probe-{os.getpid()}"
    call("ip", "netns", "add", name)
    try:
        call("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except OSError:
        return False
    finally:
        call("ip", "netns", "del", name)
    return True


def test_latency_or_a_clear_word(root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    two = Network(2, "1gbit", latency="50ms")
    if delays():
        with two:
            start = time.perf_counter()
            send(two, 1)
            assert time.perf_counter() - start > 0.1  # there and back, to connect
    else:
        with pytest.raises(ValueError, match=r"no netem queue.*leave --latency out"):
            two.__enter__()
    assert left(two.lab) == []


@pytest.fixture
def owner(root: None) -> Iterator[tuple[subprocess.Popen[str], str, int, int]]:
    """A process with a lab, a guardian and a process on host 1."""
    command = [sys.executable, "-c", OWNER, str(Path(thinwire.__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lab, guardian, inside = process.stdout.readline().split()
            assert len(left(lab)) == 3
            yield process, lab, int(guardian), int(inside)
        finally:
            process.kill()
            time.sleep(0.2)
            reaper.remove(lab)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_owner_dies(owner: tuple[subprocess.Popen[str], str, int, int], how: signal.Signals) -> None:
    process, lab, guardian, inside = owner
    process.send_signal(how)
    process.wait(60)
    until = time.monotonic() + 60
    while time.monotonic() < until and (left(lab) or alive(guardian)):
        time.sleep(0.05)
    assert left(lab) == []
    assert lab not in call("ip", "netns", "list")
    assert not alive(guardian)
    assert not alive(inside)


def test_even_the_guardian_dies_and_the_next_start_sweeps(
    owner: tuple[subprocess.Popen[str], str, int, int],
) -> None:
    process, lab, guardian, inside = owner
    with Network(2, "1gbit"):
        assert len(left(lab)) == 3  # its owner is alive, so it must not be touched
    os.kill(guardian, signal.SIGKILL)
    process.kill()
    process.wait(60)
    time.sleep(0.5)
    assert len(left(lab)) == 3
    with Network(2, "1gbit"):
        assert left(lab) == []
    assert not alive(inside)


def test_a_number_used_again_is_another_process(root: None) -> None:
    born = reaper.started(os.getpid())
    assert born > 0
    assert reaper.started(2**30) == 0
    mine, stale = f"thinwire-{os.getpid()}-{born}-aa", f"thinwire-{os.getpid()}-{born - 1}-aa"
    for lab in (mine, stale):
        call("ip", "netns", "add", f"{lab}-0")
    try:
        assert reaper.sweep() == [stale]
        assert (left(mine), left(stale)) == ([f"{mine}-0"], [])
    finally:
        reaper.remove(mine)


def test_refused_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError, match="needs root; write sudo thinwire bench step --hosts 4"):
        Network(2, "1gbit").__enter__()


@pytest.mark.parametrize(("there", "missing"), [("ip", "tc"), ("tc", "ip"), ("", "ip and tc")])
def test_refused_without_iproute2(monkeypatch: pytest.MonkeyPatch, there: str, missing: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == there else None)
    with pytest.raises(FileNotFoundError, match=f"needs the command {missing}; write apt-get install iproute2"):
        Network(2, "1gbit").__enter__()


def test_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="this is darwin; write thinwire bench step --local"):
        Network(2, "1gbit").__enter__()


def test_rates_and_delays() -> None:
    assert [bits_per_second(rate) for rate in ("1gbit", "100mbit", "2.5gbit", "100kbit")] == [
        10**9,
        10**8,
        2_500_000_000,
        10**5,
    ]
    assert [seconds(delay) for delay in ("2ms", "50us", "0.5s")] == pytest.approx([2e-3, 5e-5, 0.5])


@pytest.mark.parametrize(
    ("hosts", "rate", "latency", "message"),
    [
        (1, "1gbit", None, "write --hosts 4"),
        (251, "1gbit", None, "2 to 250 hosts"),
        (2, "1gb", None, "write a number and kbit, mbit or gbit"),
        (2, "1Gbps", None, "--rate 1gbit"),
        (2, "0gbit", None, "--rate 1gbit"),
        (2, "-1gbit", None, "--rate 1gbit"),
        (2, "1gbit", "fast", "--latency 2ms"),
    ],
)
def test_bad_input(hosts: int, rate: str, latency: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(hosts, rate, latency)


def test_commands_from_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ip", "tc"):
        (tmp_path / name).write_text("#!/bin/sh\necho it is me\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(FileNotFoundError, match="THINWIRE_IPROUTE2="):
        check()
    monkeypatch.setenv("THINWIRE_IPROUTE2", str(tmp_path))
    monkeypatch.setenv("PATH", f"/nowhere{os.pathsep}/bin{os.pathsep}/usr/bin")
    check()
    assert call("tc", "qdisc") == "it is me\n"
