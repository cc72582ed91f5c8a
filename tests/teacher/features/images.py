"""Images that several tests of features share."""

import numpy as np

from labelwall.wall.messages import ExtractorSpec

HOG = ExtractorSpec("hog", (28, 28, 1), 10)


def bars(n: int, shape: tuple[int, int, int] = (28, 28, 1), seed: int = 0) -> np.ndarray:
    """uint8 [n, *shape]: noise with a bright bar, so that neighbours differ in more than noise."""
    images = np.random.default_rng(seed).integers(0, 60, (n, *shape)).astype(np.uint8)
    for i, image in enumerate(images):
        image[(3 * i) % (shape[0] - 4) :][:4] += 120
    return images
