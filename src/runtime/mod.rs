//! Floor 3: one loop in which decisions meet effects.
