"""Hosts for benchmarks: network namespaces on one bridge, each of whose ways out tc limits to a rate. Needs
root and iproute2."""
import contextlib
import os
import subprocess


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def address(host):
    return f"10.78.0.{host + 1}"


@contextlib.contextmanager
def network(hosts, rate):
    """Namespaces whose eth0 has address(host) and this rate ("none": no limit); yields their names. They are
    gone afterwards, whatever happens."""
    switch = f"tutti{os.getpid()}"
    names = [f"{switch}-{h}" for h in range(hosts)]
    try:
        for name in [switch, *names]:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "name", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for h, name in enumerate(names):
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{h}",
               "netns", switch)
            ip("-n", switch, "link", "set", f"port{h}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(h)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            if rate != "none":
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf",
                                "rate", rate, "burst", "256k", "latency", "50ms"], check=True)
        yield names
    finally:
        for name in [switch, *names]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
