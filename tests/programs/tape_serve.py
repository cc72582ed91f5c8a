"""`labelwall serve` on the unsafe tape: python tape_serve.py CONFIG PORT [dotted overrides]"""

import sys

import torch

from labelwall.experiment.config.options import parse
from labelwall.teacher.custody.serving import serve
from labelwall.teacher.service.service_config import ServiceConfig
from tests.seeded_noise import SeededNoise


def main(config: str, port: int, overrides: list[str]) -> None:
    torch.set_num_threads(1)
    args = ["--config", config, *overrides]
    serve(parse(args, "serve")[0].private_side(), ServiceConfig(port=port), entropy=SeededNoise(1))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
