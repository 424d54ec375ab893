"""Which angle a position makes: frequencies, and the axis that drives each pair."""
