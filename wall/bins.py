"""Number of bins that each column of a vector has in the network `bins`, as both sides know it."""

MOST, ALL = 32, 1024  # bins of a column, and of all columns together


def bins_a_column(columns: int) -> int:
    """Bins of each of so many columns; some may be empty."""
    return max(1, min(MOST, ALL // columns))
