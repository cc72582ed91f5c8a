"""Commands in a network that only this process is in, with a name server that knows no name.

    unshare --map-root-user --net --mount python in_a_net_of_its_own.py PYTHON-CODE SECONDS

Prints as JSON which names were asked for, by whatever library, while the code ran and SECONDS after
it, and which addresses outside the machine Python's sockets were told to reach.
"""

import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

asked, reached = list[str](), list[str]()


def listen(event: str, arguments: tuple[object, ...]) -> None:
    place = arguments[1] if event in ("socket.connect", "socket.sendto") else None
    if isinstance(place, tuple) and place[0] not in ("127.0.0.1", "::1"):
        reached.append(str(place[0]))


def answer(server: socket.socket) -> None:
    while True:
        query, sender = server.recvfrom(4096)
        labels, rest = list[str](), query[12:]
        while size := rest[0]:
            labels.append(rest[1 : 1 + size].decode())
            rest = rest[1 + size :]
        asked.append(".".join(labels))
        server.sendto(query[:2] + b"\x81\x83" + query[4:], sender)  # there is no such name


with socket.socket() as any_socket:  # the loopback device goes up
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    command = ["mount", "--bind", f"{folder}/resolv.conf", "/etc/resolv.conf"]
    subprocess.run(command, check=True)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    threading.Thread(target=answer, args=(names,), daemon=True).start()
    sys.addaudithook(listen)
    exec(sys.argv[1])
    time.sleep(float(sys.argv[2]))
print(json.dumps({"asked": sorted(set(asked)), "reached": reached}), flush=True)
