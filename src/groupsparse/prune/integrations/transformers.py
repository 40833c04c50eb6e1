"""A callback for the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from ...errors import missing_extra

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise missing_extra("transformers", "transformers") from error

from . import Attach, Attachment


class PruningCallback(TrainerCallback):
    """Attach pruning when the Trainer starts, take it back when it ends.

    Its state is plain numbers in ``trainer_state.json``, so that ``resume_from_checkpoint`` goes on
    where it was.

    Parameters
    ----------
    attach : callable
        Takes the model and a list with the optimizer and returns what it attached.
    name : str
        Tells several of these callbacks apart in a checkpoint.

    Examples
    --------
    >>> from groupsparse import prune
    >>> from groupsparse.prune.integrations.transformers import PruningCallback
    >>> plan = prune.Plan(hoyer=0.8, ignore=("re:.*lm_head",))
    >>> callback = PruningCallback(
    ...     lambda model, optimizers: prune.Inducer(model, plan, optimizers, every=150)
    ... )  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, attach: Attach, name: str = "pruning") -> None:
        self._attachment = Attachment(attach)
        self._key = f"groupsparse.{name}"

    @property
    def attached(self) -> Any:
        """What was attached: the inducer, the pruner, or the frozen masks."""
        return self._attachment.attached

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        states: Any = state.stateful_callbacks
        # A state that another run left in memory is not this one's: only a resumed run has steps.
        if state.global_step > 0:
            self._attachment.load_state_dict(states.get(self._key, {}))
        self._attachment.begin(kwargs["model"], [kwargs["optimizer"]])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The Trainer writes this dictionary with every checkpoint.
        states: Any = state.stateful_callbacks
        states[self._key] = self._attachment.state_dict()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._attachment.end()
