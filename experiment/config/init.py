"""`init`: a configuration for the user's own data, or a copy of a packaged one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from ...wall.errors import InvalidInput
from .own import as_yaml
from .own_options import Given
from .settings import config_parser, parse_settings

CONFIGS = "labelwall.configs"
YAML = ".yaml"
COMPARISON = "compare_"  # how names of comparisons begin


def init(
    out: Path,
    packaged: str | None,
    given: Given,
    options: Sequence[str] = (),
) -> str:
    """Write a packaged configuration, or one for one's own data; returns the command to run next.

    ``options``: dotted ones for settings, as `run` takes them.

    Raises InvalidInput unless exactly one of both is named, and as ``copy_config``,
    ``Given.settings`` and ``with_options`` do.
    """
    if packaged is not None and (given.own.given or options):
        rule = "left out with one's own data and settings"
        raise InvalidInput("from", rule, packaged)
    if packaged is not None:
        copy_config(packaged, out)
        if packaged.startswith(COMPARISON):
            return f"labelwall compare --config {out} --out DIR"
        return f"labelwall plan --config {out}"
    _require_new(out)
    if given.files:
        raise InvalidInput("config", "left out with init, which writes a file", given.files[-1])
    if not given.own.given:
        given.own.settings()  # raises: neither a name nor rows
    settings = given.settings()
    if given.kind is not None and given.kind != settings["mechanism"]["kind"]:
        settings["mechanism"] = {"kind": given.kind}
    _write(out, as_yaml(with_options(settings, options)).encode())
    return f"labelwall plan --config {out}"


def with_options(settings: dict[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """``settings`` with what dotted ``options`` change, of which a parser makes values.

    Raises BadSetting, InvalidInput for an option that is no setting, or with a bad value.
    """
    values = asdict(parse_settings(config_parser("init", ""), settings, options)[0])
    merged = {name: dict(v) if isinstance(v, dict) else v for name, v in settings.items()}
    for option in options:
        group, _, field = option.partition("=")[0].removeprefix("--").partition(".")
        if not option.startswith("--"):
            continue
        if field:
            merged.setdefault(group, {})[field] = values[group][field]
        else:
            merged[group] = values[group]
    return merged


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
