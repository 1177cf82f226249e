//! The only printer of errors and problems.
