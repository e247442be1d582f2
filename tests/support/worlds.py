"""Processes that share a torch.distributed group."""

import json
import os
import socket
import time
from pathlib import Path

from tests.support.warm import Process

SECONDS = 240
BEFORE = """
import json, os, sys, time
import torch.distributed as dist
import mmapds
from mmapds import *
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def begin():
    dist.init_process_group("gloo", os.environ["MEET"])

def say(what):
    print("SAID " + json.dumps(what), flush=True)

def tried(function):
    try:
        return function()
    except mmapds.Error as error:
        return str(error)
"""


def world(code, tmp_path, size=2, tcp=False, **environment):
    """Run a script in some processes, each of which may `begin()` a group, and `say()` things; return what each said.

    Every process must succeed.
    """
    if tcp:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meet = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    else:
        meet = f"file://{tmp_path}/meet-{time.monotonic_ns()}"
    processes, outputs = [], []
    for rank in range(size):
        own = {"RANK": str(rank), "WORLD_SIZE": str(size), "MEET": f"{meet}?rank={rank}&world_size={size}"}
        outputs.append(f"{tmp_path}/rank-{rank}-{time.monotonic_ns()}.txt")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **own, **environment}
        processes.append(Process(BEFORE + code, environ, outputs[rank]))
    deadline = time.monotonic() + SECONDS
    said = []
    try:
        for process, output in zip(processes, outputs, strict=True):
            status = process.wait(max(deadline - time.monotonic(), 1))
            text = Path(output).read_text()
            assert status == 0, f"rank {len(said)}: {text[-3000:]}"
            said.append([json.loads(line[5:]) for line in text.splitlines() if line.startswith("SAID ")])
    finally:
        for process in processes:
            process.kill()
    return said
