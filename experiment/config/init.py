"""`init`: a configuration for the user's own data, or a copy of a packaged one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from labelwall.experiment.config.own import OwnData, own_config
from labelwall.wall.errors import InvalidInput

CONFIGS = "labelwall.configs"
YAML = ".yaml"
COMPARISON = "compare_"  # how names of comparisons begin


def init(
    out: Path,
    packaged: str | None,
    own: OwnData,
    epsilon: float = 1.0,
    delta: float | None = None,
    expected_records: int | None = None,
) -> str:
    """Write a packaged configuration, or one for one's own data; returns the command to run next.

    Raises InvalidInput unless exactly one of both is named, and as ``copy_config`` and
    ``own_config`` do.
    """
    if packaged is not None and own.given:
        raise InvalidInput("from", "left out with one's own data", packaged)
    if packaged is not None:
        copy_config(packaged, out)
        if packaged.startswith(COMPARISON):
            return f"labelwall compare --config {out} --out DIR"
        return f"labelwall plan --config {out}"
    _require_new(out)
    _write(out, own_config(own, epsilon, delta, expected_records).encode())
    return f"labelwall plan --config {out}"


def packaged_configs() -> list[str]:
    """Names of the configurations that are installed with the package, sorted."""
    files = (file.name for file in resources.files(CONFIGS).iterdir())
    return sorted(name.removesuffix(YAML) for name in files if name.endswith(YAML))


def copy_config(name: str, out: Path) -> None:
    """Write the packaged configuration ``name`` to ``out``, byte for byte.

    Raises InvalidInput for an unknown name, or where ``out`` exists.
    """
    if name not in (names := packaged_configs()):
        raise InvalidInput("from", f"one of {', '.join(names)}", name)
    _require_new(out)
    _write(out, (resources.files(CONFIGS) / f"{name}{YAML}").read_bytes())


def _require_new(out: Path) -> None:
    if out.exists():
        raise InvalidInput("out", "a file that does not exist yet", str(out))


def _write(out: Path, content: bytes) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as error:
        raise InvalidInput("out", "a file that can be written", str(out)) from error
