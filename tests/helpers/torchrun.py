"""The environment that torchrun gives to each of its processes."""

import os
import sys
from contextlib import contextmanager

from torch.distributed import TCPStore


@contextmanager
def ranks(world):
    """Yield the environment of each of `world` processes.

    As under torchrun, the parent keeps the store where they meet, so its port is never free for
    others to take.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":  # else gloo asks for this machine's name, which may not resolve
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    own = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(world)]
    yield [os.environ | {name: str(value) for name, value in each.items()} for each in own]
    del store  # it closes the port
