"""Names of the published benchmarks' classes and attributes, in the order of their codes."""

from __future__ import annotations

DIGITS = tuple("0123456789")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# The classes that have each attribute.
CLOTHES_ATTRIBUTES = {
    "upper body": ("T-shirt/top", "Pullover", "Dress", "Coat", "Shirt"),
    "lower body": ("Trouser", "Dress"),
    "worn on feet": ("Sandal", "Sneaker", "Ankle boot"),
    "has sleeves": ("T-shirt/top", "Pullover", "Coat", "Shirt"),
    "long sleeves": ("Pullover", "Coat"),
    "opens in front": ("Coat", "Shirt"),
    "for winter": ("Pullover", "Coat", "Ankle boot"),
    "for summer": ("T-shirt/top", "Dress", "Sandal"),
    "closed shoe": ("Sneaker", "Ankle boot"),
    "carried": ("Bag",),
}
# In the order of list_attr_celeba.txt.
_FACES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose "
    "Black_Hair Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses "
    "Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male Mouth_Slightly_Open Mustache "
    "Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick "
    "Wearing_Necklace Wearing_Necktie Young"
)
FACES_ATTRIBUTES = tuple(_FACES.split())
