"""The projection of sharded tensors (DTensor), each process working on the part that it holds.

``fully_shard`` and tensor parallelism leave every process with a part of each parameter, whole
vectors or pieces of vectors. The entries stay where they are: per Newton step the processes add up
the three sums of those vectors that are split, one collective per mesh dimension that splits them,
and then two numbers per group, for all tensors at once.

The parts of the work, one file each: `pieces` (what lies here), `network` (what crosses the
network), `part` (sums per vector), `solve` (the multipliers), `corners`, `answer` and `jumps` (what
is written), and `call` (this package's way in).
"""

from __future__ import annotations

from .call import Member, project, project_each_, project_groups_

__all__ = ["Member", "project", "project_each_", "project_groups_"]
