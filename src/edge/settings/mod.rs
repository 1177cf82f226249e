//! The settings file: as written, checked, resolved.
