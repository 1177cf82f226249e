//! Programs that steer TCP connections among the sockets of a reuseport group.
