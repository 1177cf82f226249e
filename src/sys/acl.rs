//! POSIX access control lists of socket files.
