"""Tuned numbers of settings for one's own data, each with the commit that chose it."""

MIN_ROWS = 100  # labelled rows that a rehearsal needs: fewer do not predict votes (a9067830)
SCORE = 0.05  # share of the budget for a score if no public row tells the accuracy (5aa5bd2d)
# Steps of a linear model for each root of its strength, and their range: CIFAR-10's features, texts
# and HOG of two sets of images, epsilon 0.02 to 2 (ec6ae750).
STEPS_BY_ROOT, MIN_STEPS, MAX_STEPS = 2.0, 20, 60
# Steps of a pretrained student's training; from how many public images on it has twice as many, and
# a second round; and its rate: 1,500 and 5,000 images of CIFAR-10, by the labels of 2,000 others.
FEW_STEPS, MANY_IMAGES, FINE_RATE = 300, 3_000, 5e-4
