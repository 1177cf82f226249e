//! Directories in which others may write: opening them without following their links.
