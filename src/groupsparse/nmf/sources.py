"""From the X that was given to its samples: what kind it is, where it starts, what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidInput, UnsupportedType
from .arrays import Vector, as_vector, is_tensor, like
from .constraints import Target
from .initialisation import INITS, check_custom, nndsvd, random_codes, random_components
from .samples import LocalSamples, Samples, blocks_of, check_block, check_range, scores
from .sweeps import sweep
from .updates import Update

# The codes of new samples: swept until they move by less than this (squared, relative); float32
# never comes to such a rest, and is left where only rounding moves it.
ENCODE_SWEEPS, ENCODE_DELTA, ENCODE_DELTA_SINGLE = 1000, 1e-26, 1e-13


class Source:
    """An array or sparse matrix in memory, already validated."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.shape = (int(x.shape[0]), int(x.shape[1]))
        self.dtype: Any = x.dtype

    def check(self) -> None:
        """Refuse data that cannot be factorised."""
        if 0 in self.shape:
            raise InvalidInput(
                f"X has shape {self.shape}; expected a sample and a feature at least"
            )
        check_range(max(self._peaks()), self.shape, self.dtype)

    def _peaks(self) -> Any:
        """The largest entry of each block; none may hold an entry that is bad."""
        return (check_block(block) for block in self._blocks())

    def _blocks(self) -> Any:
        return [self.x]

    def samples(self, update_w: Update) -> Samples:
        return LocalSamples(self.x, update_w, self.dtype)

    def start(
        self, init: str | None, r: int, w: Any, h: Any, seed: int, constrained: bool
    ) -> tuple[Any, Any]:
        """The factors to start from: W as r × n, H as r × m."""
        if init not in INITS:
            raise InvalidInput(f"init is {init!r}; expected one of {INITS}")
        if init == "custom":
            return self._custom(r, w, h)
        if w is not None or h is not None:
            raise InvalidInput("W and H are given, but init is not 'custom'")
        if init is None:
            init = "random" if constrained or r > min(self.shape) else self._default_init()
        if init == "random":
            return self._random(r, seed)
        if r > min(self.shape):
            raise InvalidInput(
                f"init={init!r} needs n_components <= min(n_samples, n_features) = "
                f"{min(self.shape)}, got {r}"
            )
        w, h = self._from_svd(init, r, seed)
        return self.own(w.T), self.own(h)

    def _default_init(self) -> str:
        return "nndsvda"

    def _from_svd(self, init: str, r: int, seed: int) -> tuple[Any, Any]:
        return nndsvd(self.x, r, init, seed)

    def _custom(self, r: int, w: Any, h: Any) -> tuple[Any, Any]:
        w = check_custom(w, (self.shape[0], r), "W")
        h = check_custom(h, (r, self.shape[1]), "H")
        return self.own(w.T), self.own(h)

    def _random(self, r: int, seed: int) -> tuple[Any, Any]:
        scale = float(np.sqrt(self._mean() / r))
        w = random_codes(seed, r, 0, self.shape[0])
        return self.own(scale * w), self.own(scale * random_components(seed, r, self.shape[1]))

    def _mean(self) -> float:
        return float(self.x.mean())

    def own(self, factor: Any) -> Any:
        """A factor as this source computes with it: contiguous, in its dtype."""
        factor = factor.detach().cpu() if is_tensor(factor) else factor
        return np.ascontiguousarray(factor, dtype=self.dtype)

    def codes(self, w: Any, r: int) -> Any:
        """W as the user gets it, n × r."""
        return np.ascontiguousarray(w.T)

    def encode(self, h: Any) -> Any:
        """The best codes for each sample, r × n."""
        h = self.own(h)
        gram = h @ h.T
        return np.concatenate([encode_block(block, h, gram) for block in self._blocks()], axis=1)

    def measure(self, rows: Any, target: Target | None) -> float:
        """The Hoyer measure that was reached."""
        if rows.shape[1] < 2:
            return float("nan")
        return (target or Target(0.0)).measure(rows)

    def measure_codes(self, w: Any, target: Target | None) -> float:
        return self.measure(w, target)

    def divide(self, w: Any, scale: Vector) -> Any:
        """W with the codes of each component divided by a number."""
        return w / like(scale, w)[:, None]


def common_scale(w_norms: Vector, h_norms: Vector) -> Vector:
    """By what to multiply the rows of H, and divide those of W, to give both the same norms."""
    usable = (w_norms > 0.0) & (h_norms > 0.0)
    scale: Vector = np.sqrt(np.where(usable, w_norms, 1.0) / np.where(usable, h_norms, 1.0))
    return scale


def unit_scale(penalised: Any) -> Vector:
    """By what to multiply rows to give them ‖·‖∞ = 1."""
    peaks = as_vector(penalised.amax(1) if is_tensor(penalised) else penalised.max(axis=1))
    scale: Vector = 1.0 / np.where(peaks > 0.0, peaks, 1.0)
    return scale


class StreamedSource(Source):
    """A memory map, read block by block and never held as a whole."""

    def __init__(self, x: Any) -> None:
        super().__init__(x)
        if x.ndim != 2:
            raise InvalidInput(f"X has {x.ndim} dimensions; expected 2")
        if x.dtype.kind not in "fiu":
            raise UnsupportedType(f"X has dtype {x.dtype}; expected floats or integers")
        self.dtype = x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self._reader = blocks_of(self.shape)

    def _blocks(self) -> Any:
        return (np.asarray(self.x[rows], dtype=self.dtype) for rows in self._reader)

    def samples(self, update_w: Update) -> Samples:
        return LocalSamples(self.x, update_w, self.dtype, streamed=True)

    def _default_init(self) -> str:
        return "random"

    def _from_svd(self, init: str, r: int, seed: int) -> tuple[Any, Any]:
        if self.x.dtype != self.dtype:  # to convert it would take a copy of the whole
            raise InvalidInput(
                f"init={init!r} needs a memory map of floats, and this one has {self.x.dtype}; "
                "use 'random' or 'custom'"
            )
        return super()._from_svd(init, r, seed)

    def _mean(self) -> float:
        return float(sum(float(block.sum()) for block in self._blocks()) / self.x.size)


class TensorSource(Source):
    """A torch tensor, on whatever device it lies."""

    def __init__(self, x: Any) -> None:
        if x.ndim != 2:
            raise InvalidInput(f"X has {x.ndim} dimensions; expected 2")
        if str(x.layout) != "torch.strided":
            raise UnsupportedType("X is a sparse tensor; expected a dense one, or a SciPy matrix")
        x = x.detach()
        if not x.is_floating_point():
            if x.is_complex() or str(x.dtype) == "torch.bool":
                raise UnsupportedType(f"X has dtype {x.dtype}; expected floats or integers")
            x = x.double()
        if x.element_size() < 4:
            x = x.float()
        super().__init__(x)
        self.dtype = np.dtype(np.float64 if x.element_size() == 8 else np.float32)

    def own(self, factor: Any) -> Any:
        if is_tensor(factor):
            return factor.detach().to(self.x).contiguous()
        return self.x.new_tensor(np.asarray(factor))

    def codes(self, w: Any, r: int) -> Any:
        return w.T.contiguous()

    def encode(self, h: Any) -> Any:
        h = self.own(h)
        return encode_block(self.x, h, h @ h.T)


def encode_block(x: Any, h: Any, gram: Any) -> Any:
    """The best non-negative codes of the samples in x, r × n."""
    cross = scores(x, h)
    w = cross * 0.0
    delta = ENCODE_DELTA if w.dtype.itemsize > 4 else ENCODE_DELTA_SINGLE
    sweep(w, cross, gram, sweeps=ENCODE_SWEEPS, delta=delta)
    return w
