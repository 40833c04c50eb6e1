"""From ``torch.nn.utils.prune`` to plain parameters and a mask."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from ..errors import InvalidInput
from .masks import Masks
from .packing import PackedMask
from .targets import bare, clean_name


@torch.no_grad()
def import_from_torch_prune(model: nn.Module) -> Masks:
    """Turn every ``name_orig`` and ``name_mask`` of a model back into ``name``, and keep the masks.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place: what ``torch.nn.utils.prune`` added is gone, other hooks stay. Parameters
        keep their identity, so that optimizers still hold them.

    Returns
    -------
    Masks
        Where torch's masks had zeros; ``masks.frozen(model, optimizer)`` holds them.

    Examples
    --------
    >>> import torch
    >>> from torch.nn.utils import prune as torch_prune
    >>> from groupsparse import prune
    >>> layer = torch_prune.l1_unstructured(torch.nn.Linear(8, 4), "weight", amount=0.75)
    >>> masks = prune.import_from_torch_prune(layer)
    >>> sorted(layer.state_dict()), masks.zeros
    (['bias', 'weight'], 24)
    """
    packed: dict[str, PackedMask] = {}
    for path, module in bare(model).named_modules():
        hooks = list(module._forward_pre_hooks.values())
        names = [h._tensor_name for h in hooks if isinstance(h, torch_prune.BasePruningMethod)]
        for name in names:
            kept = getattr(module, f"{name}_mask") != 0
            torch_prune.remove(module, name)  # type: ignore[no-untyped-call]
            # torch multiplies by the mask, which leaves −0.0 where a negative entry was.
            getattr(module, name).masked_fill_(~kept, 0)
            packed[clean_name(f"{path}.{name}")] = PackedMask.pack(kept)
    if not packed:
        raise InvalidInput("no module of this model was pruned by torch.nn.utils.prune")
    return Masks(packed)
