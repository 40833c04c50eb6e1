"""The file that ``groupsparse nmf`` writes and goes on from; arrays and JSON, no pickle."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..storage.atomic import replacing

# Losses under different targets or of different algorithms are no longer of the same problem.
SAME_PROBLEM = ("hoyer_w", "hoyer_h", "per_vector", "solver")


# What reading a file raises that is something else.
NOT_OURS = (KeyError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Parts:
    """A factorisation X ≈ W H and how it came about."""

    w: NDArray[Any]
    h: NDArray[Any]
    losses: NDArray[np.float64]
    seconds: NDArray[np.float64]
    settings: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write all of it, or nothing."""
        with replacing(path) as file:
            np.savez(
                file,
                W=self.w,
                H=self.h,
                loss_curve=self.losses,
                time_curve=self.seconds,
                settings=np.array(json.dumps(self.settings)),
            )

    @classmethod
    def read(cls, path: Path) -> Parts:
        """What an earlier run has written."""
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}")
        try:
            with np.load(path, allow_pickle=False) as file:
                settings = {"key": None, "columns": False, **json.loads(str(file["settings"]))}
                if missing := [name for name in SAME_PROBLEM if name not in settings]:
                    raise KeyError(missing[0])
                return cls(file["W"], file["H"], file["loss_curve"], file["time_curve"], settings)
        except NOT_OURS as error:
            raise InvalidInput(f"{path} was not written by groupsparse nmf: {error}") from error

    def check(self, path: Path | None, shape: tuple[int, int], rank: int) -> None:
        """Refuse to go on with data of another shape, or with another rank."""
        own = (len(self.w), self.h.shape[1]), len(self.h)
        if own != (tuple(shape), rank):
            raise InvalidInput(
                f"{path} has {own[1]} parts of data of shape {own[0]}; now there are {rank} parts "
                f"and the data have shape {tuple(shape)}"
            )

    def after(self, earlier: Parts) -> Parts:
        """This run as the continuation of an earlier one; the better factors of the two are kept.

        A run starts a little beside the factors that it is given, so a short one may end worse.
        """
        before = earlier.seconds[-1] if len(earlier.seconds) else 0.0
        losses = np.concatenate([earlier.losses, self.losses])
        same = all(earlier.settings.get(k) == self.settings[k] for k in SAME_PROBLEM)
        w, h = self.w, self.h
        if same:
            if len(earlier.losses) and earlier.losses[-1] < self.losses[-1]:
                w, h = earlier.w, earlier.h
            losses = np.minimum.accumulate(losses)
        seconds = np.concatenate([earlier.seconds, before + self.seconds])
        return Parts(w, h, losses, seconds, self.settings)
