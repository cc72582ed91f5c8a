"""Records that a custodian sends to a service."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...wall.errors import InvalidInput, shape_text
from .persons import codes_in, row_ids
from .sources import Records


def received(arrays: Mapping[str, np.ndarray]) -> Records:
    """Records of arrays that a custodian sent: inputs, labels, ids, and persons if there are any.

    Raises InvalidInput for persons, or ids beside them, that are not whole numbers, one a row.
    """
    inputs, labels, ids, named = (arrays.get(n) for n in ("inputs", "labels", "ids", "persons"))
    assert inputs is not None
    assert labels is not None
    assert ids is not None
    if named is None:
        return Records(inputs, labels, ids)
    if ids.dtype != np.int64 or ids.shape != inputs.shape[:1]:
        raise InvalidInput("records.ids", "int64, one for each row", shape_text(ids))
    persons = codes_in("records.persons", named, len(inputs))
    return Records(inputs, labels, row_ids(persons, ids), persons)
