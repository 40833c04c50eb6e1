"""One JSON per run: what ran, from which source, on what machine, and what came out.

Experiments and benchmarks both write their results through `save`, so that every number in a table
can be traced to the commit, the seed and the command that made it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "experiments" / "records"
_LIBRARIES = ("groupsparse", "numpy", "scipy", "numba", "torch", "scikit-learn", "dask")
_SOURCES = ("*.py", "*.toml", "constraints.txt")


def save(
    name: str,
    results: Any,
    *,
    seconds: float,
    seed: int | None = None,
    parameters: dict[str, Any] | None = None,
    folder: Path = RECORDS,
    origin: dict[str, Any] | None = None,
) -> Path:
    """Write ``folder/name.json``: the results and where they come from.

    Parameters
    ----------
    name : str
        Name of the run; a later run with the same name replaces the file.
    results : Any
        Whatever JSON can hold; NumPy scalars and arrays are converted.
    seconds : float
        Wall time of the run.
    seed : int, optional
        The one seed from which every random draw of the run follows.
    parameters : dict, optional
        Settings that are not visible in the command.
    folder : Path
        Where the file goes; the experiments' records unless told otherwise.
    origin : dict, optional
        What `provenance` said where the results were measured, if that was another process.

    Returns
    -------
    Path
        The file that was written.
    """
    record = {
        "name": name,
        **(provenance() if origin is None else origin),
        "seed": seed,
        "seconds": round(seconds, 3),
        "parameters": parameters or {},
        "results": results,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    return path


def load(name: str, *, folder: Path = RECORDS) -> dict[str, Any]:
    """Return the record that `save` wrote under this name."""
    record: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return record


def provenance() -> dict[str, Any]:
    """Return command, time, commit, machine and versions of this process."""
    return {
        "command": _command(),
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        # A machine that has only a copy of the files is told which commit they are from.
        "commit": os.environ.get("GROUPSPARSE_COMMIT") or _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", *_SOURCES)),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, system and, where torch is loaded, the GPU."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def _command() -> str:
    """Return the command line without the folders of the machine it ran on."""
    # sys.orig_argv, unlike sys.argv, keeps `-m module`.
    words = ["python", *sys.orig_argv[1:]]
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)


def _git(*arguments: str) -> str | None:
    """Return what git prints, or None outside a repository and where there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written to a record")
