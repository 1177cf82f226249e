//! FastCGI client: status, ping, warm-up, over the private status socket.
