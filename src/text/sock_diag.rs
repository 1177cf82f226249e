//! sock_diag messages over netlink: requests and replies.
