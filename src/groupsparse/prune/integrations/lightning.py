"""A callback for Lightning."""

from __future__ import annotations

from typing import Any

from ...errors import missing_extra

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing_extra("lightning", "lightning") from error

from . import Attach, Attachment


class PruningCallback(Callback):
    """Attach pruning when Lightning's training starts, take it back when it ends.

    Its state goes into Lightning's checkpoints, and a run that is resumed from one goes on bit for
    bit.

    Parameters
    ----------
    attach : callable
        Takes the LightningModule and the list of its optimizers and returns what it attached.
    name : str
        Tells several of these callbacks apart in a checkpoint.

    Examples
    --------
    >>> from groupsparse import prune
    >>> from groupsparse.prune.integrations.lightning import PruningCallback
    >>> plan = prune.Plan(hoyer=0.8)
    >>> callback = PruningCallback(
    ...     lambda model, optimizers: prune.Inducer(model, plan, optimizers, every=150)
    ... )  # Trainer(callbacks=[callback])
    """

    def __init__(self, attach: Attach, name: str = "pruning") -> None:
        self._attachment = Attachment(attach)
        self._name = name

    @property
    def state_key(self) -> str:
        return f"groupsparse.{self._name}"

    @property
    def attached(self) -> Any:
        """What was attached: the inducer, the pruner, or the frozen masks."""
        return self._attachment.attached

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._attachment.begin(pl_module, list(trainer.optimizers))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._attachment.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._attachment.end()

    def state_dict(self) -> dict[str, Any]:
        return self._attachment.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._attachment.load_state_dict(state_dict)
