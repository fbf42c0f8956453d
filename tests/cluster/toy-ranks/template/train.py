"""Ranks meet at MASTER_ADDR:MASTER_PORT; rank 0 prints who came; all wait for the warning and end with 0."""

import json
import os
import signal
import socket
import time

warned = []
signal.signal(signal.SIGUSR2, lambda *_: warned.append(1))
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "TUNEPLANE_POOL")
me = {k: os.environ[k] for k in names} | {"host": os.uname().nodename}
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if me["RANK"] == "0":
    server = socket.create_server(place)
    peers = [server.accept()[0] for _ in range(int(me["WORLD_SIZE"]) - 1)]
    came = [me] + [json.loads(p.makefile().readline()) for p in peers]
    print("met " + json.dumps(sorted(came, key=lambda m: int(m["RANK"]))), flush=True)
else:
    for _ in range(600):
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(json.dumps(me).encode() + b"\n")
print("ready", flush=True)
while not warned:
    time.sleep(0.1)
print("warned", flush=True)
