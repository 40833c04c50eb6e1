"""The projection of CUDA tensors where they lie, by Triton kernels.

The parts of the work, one file each: `tables` (what the kernel must know about the shapes),
`weighting` (where weights lie), `settings` (what it must know of a call), `plan` (a reusable plan
with its memory), `guess` (where a search begins), `certificate` (what the device
leaves behind, read when looked at), `memory` (how tensors lie), and `verbs` (the public functions
on such tensors).
"""

from __future__ import annotations

from .plan import Projector
from .verbs import project_each_, solve, usable

__all__ = ["Projector", "project_each_", "solve", "usable"]
