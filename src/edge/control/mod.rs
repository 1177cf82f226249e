//! The control socket: server and client.
