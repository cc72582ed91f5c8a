"""`labelwall data`: PRIVATE: the custodian's check of a data set."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str]) -> int:
    from ..config.settings import config_parser, parse

    does = "PRIVATE, for the custodian: counts, classes and bad rows of the private data set."
    parser = config_parser("data", does)
    config, _ = parse(parser, args)
    from ...teacher.records.inspect import preview

    print(preview(config.data, *config.mechanism.sample, unit=config.privacy.unit))
    return 0
