"""Real processes that talk to each other (gloo), for the tests of what is spread over several."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def spawn(world: int, scenario: Callable[..., None], *args: Any) -> None:
    """Run a function in that many processes; an error in one is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()  # a port could be taken by another by then
        mp.spawn(_work, args=(world, meeting, scenario, args), nprocs=world)


def _work(
    rank: int, world: int, meeting: str, scenario: Callable[..., None], args: tuple[Any, ...]
) -> None:
    warnings.simplefilter("ignore")  # those of torch.distributed; ours are tested elsewhere
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=meeting)
    try:
        scenario(*args)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    # Gloo's threads may still let go of tensors, and abort a process whose interpreter is going.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
