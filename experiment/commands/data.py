"""`labelwall data`: PRIVATE: the custodian's check of a data set."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.teacher.records.inspect import preview, render

    does = "PRIVATE, for the custodian: counts, classes and bad rows of the private data set."
    parser = config_parser("data", does, args)
    config, _ = parse(parser, args)
    print(render(preview(config.data, *config.mechanism.sample)))
    return 0
