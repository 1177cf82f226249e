//! Reuseport groups and the program that steers them.
