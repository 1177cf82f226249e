//! What /proc says of processes.
