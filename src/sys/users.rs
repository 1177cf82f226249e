//! Users and groups by name or number.
