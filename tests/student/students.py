"""Students with fresh weights, as their files hold them: each kind of label, images or vectors."""

import torch

from labelwall.student import student_model
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels, ValueLabels
from labelwall.wall.labels import LabelSpace
from labelwall.wall.networks import build, to_safetensors

SPACES: dict[str, LabelSpace] = {
    "class": ClassLabels(("cat", "dog, small", "emu")),
    "attributes": AttributeLabels(("red", "round")),
    "value": ValueLabels(-10.0, 30.0),
}
PRIVACY = student_model.Privacy(0.981, 1e-5, "tight", "anyone", "ab" * 32, "a-random-name")
IMAGE, VECTOR = (12, 12, 3), (8,)


def content(
    kind: str = "class", shape: tuple[int, ...] = IMAGE, backbone: str | None = None
) -> bytes:
    name = backbone or ("small_cnn" if len(shape) == 3 else "mlp")
    channels = shape[2] if len(shape) == 3 else 0
    space = SPACES[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = build(name, input_shape=shape, num_classes=space.outputs)
    with torch.no_grad():
        network.head.weight.mul_(20)  # so that answers differ from row to row
    statistics = (0.4,) * channels, (0.3,) * channels
    shares = (1 / space.outputs,) * space.outputs if kind == "class" else None
    info = student_model.StudentInfo(name, shape, *statistics, space, PRIVACY, shares=shares)
    return student_model.pack(info, to_safetensors(network))


def student(
    kind: str = "class", shape: tuple[int, ...] = IMAGE, backbone: str | None = None
) -> student_model.StudentModel:
    file = content(kind, shape, backbone)
    info = student_model.unpack(file)
    assert info is not None
    return student_model.assembled(info, file)
