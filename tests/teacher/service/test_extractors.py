"""Which extractors a service takes: each network that a run may send, and what students become."""

import pytest

from labelwall.teacher.service.config import ServiceConfig
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import DECIDED, RELEASED, ExtractorSpec
from labelwall.wall.networks import NETWORKS, build

CLASS = DECIDED["class"]


def test_a_service_takes_every_network_by_itself_released_or_as_decisions():
    taken = set(ServiceConfig().backbones)
    assert taken == {"hog", "raw", "box", *NETWORKS}
    for prefix in ("", *DECIDED.values(), RELEASED, CLASS + RELEASED):
        assert ExtractorSpec(f"{prefix}linear", (4,), 3).network in taken
    for name in ("timm/resnet18", f"{RELEASED}{CLASS}linear", f"{CLASS}{CLASS}linear"):
        assert ExtractorSpec(name, (4,), 3).network not in taken


@pytest.mark.parametrize(
    "name", [2 * CLASS, 2 * RELEASED, RELEASED + CLASS, DECIDED["value"] + CLASS]
)
def test_names_are_not_nested(name):
    with pytest.raises(InvalidInput, match="backbone"):
        build(f"{name}linear", input_shape=(4,), num_classes=3)
