//! Private notify sockets: readiness and heartbeat of one master.
