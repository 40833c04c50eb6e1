"""Pruning PyTorch networks with the grouped sparse projection.

Plain parameters stay plain: nothing is added to the model, its state dict keeps its keys.
"""

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    from ..errors import missing_extra

    if error.name not in ("torch", "safetensors"):
        raise
    raise missing_extra(error.name, "torch") from None

from . import baselines
from .checkpoints import load, save, to_dense
from .cutting import LayerCollapse, cut
from .induce import Inducer
from .masks import Masks
from .plan import Plan
from .projecting import project_
from .report import Report, report
from .schedules import constant, cubic, linear
from .sparse import dense_linear, sparse_linear
from .targets import select
from .torch_prune import import_from_torch_prune

__all__ = [
    "Inducer",
    "LayerCollapse",
    "Masks",
    "Plan",
    "Report",
    "baselines",
    "constant",
    "cubic",
    "cut",
    "dense_linear",
    "import_from_torch_prune",
    "linear",
    "load",
    "project_",
    "report",
    "save",
    "select",
    "sparse_linear",
    "to_dense",
]
