//! Listening sockets: binding, access, publishing, examining what stands at a path.
