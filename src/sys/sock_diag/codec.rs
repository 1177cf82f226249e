//! sock_diag messages over netlink: requests and replies, pure.
//!
//! Nothing here trusts a length it reads: a reply that does not add up is an error.
//!
//! Sources: netlink(7); sock_diag(7); Linux `include/uapi/linux/{netlink,sock_diag,unix_diag,inet_diag}.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const HEADER_BYTES: usize = 16;

const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

const UNIX_REPLY_BYTES: usize = 16;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_RQLEN: u16 = 4;
/// The top bits of an attribute's type are flags. Source: netlink.h, `NLA_TYPE_MASK`.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// What of a unix socket is asked for.
pub(super) const SHOW_NAME: u32 = 0x1;
pub(super) const SHOW_VFS: u32 = 0x2;
pub(super) const SHOW_QUEUE: u32 = 0x10;

/// States as bits; the numbers are TCP's, for unix sockets too.
pub(super) const ESTABLISHED: u32 = 1 << 1;
pub(super) const LISTENING: u32 = 1 << 10;
/// Every state in which a connection has been made and a process may still hold it: ESTABLISHED, FIN_WAIT1, FIN_WAIT2,
/// CLOSE_WAIT, LAST_ACK, CLOSING.
pub(super) const CONNECTED: u32 = ESTABLISHED | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// Says that a reply does not follow its own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed sock_diag reply: {0}")]
pub(super) struct Malformed(&'static str);

/// One message of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// A dump is complete.
    Done,
    /// The kernel refused, with this errno; 0 acknowledges.
    Refused(i32),
    /// A socket, to be read by [`unix_socket`] or [`tcp_socket`].
    Socket(&'a [u8]),
    /// Something else, or not an answer to this request.
    Stray,
}

/// A unix socket as told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct UnixSocket<'a> {
    /// The socket's inode; 0 for none.
    pub(super) inode: u32,
    /// The name it was bound under, without the terminating zero.
    pub(super) name: Option<&'a [u8]>,
    /// Inode and device of its file; the device in the kernel's own form.
    pub(super) file: Option<(u32, u32)>,
    /// Connections waiting and their limit.
    pub(super) queue: Option<(u32, u32)>,
}

/// A TCP socket as told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpSocket {
    /// The address on our side.
    pub(super) local: SocketAddr,
    /// The socket's inode; 0 while no process has accepted it.
    pub(super) inode: u32,
}

/// Asks for the one unix socket with this inode.
pub(super) fn unix_one(inode: u32, show: u32, sequence: u32) -> Vec<u8> {
    // Any cookie: all ones. Source: sock_diag(7), `udiag_cookie`.
    request(NLM_F_REQUEST, sequence, &unix_body(u32::MAX, inode, show))
}

/// Asks for all unix sockets in `states`.
pub(super) fn unix_all(states: u32, show: u32, sequence: u32) -> Vec<u8> {
    request(NLM_F_REQUEST | NLM_F_DUMP, sequence, &unix_body(states, 0, show))
}

/// Asks for all TCP sockets of `address`'s family in `states` whose own port is that of `address`.
pub(super) fn tcp_all(address: SocketAddr, states: u32, sequence: u32) -> Vec<u8> {
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut body = vec![family, IPPROTO_TCP, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(address.port().to_be_bytes());
    // Peer port, both addresses, interface: any.
    body.extend([0; 2 + 16 + 16 + 4]);
    body.extend([0xff; 8]);
    request(NLM_F_REQUEST | NLM_F_DUMP, sequence, &body)
}

fn unix_body(states: u32, inode: u32, show: u32) -> Vec<u8> {
    let mut body = vec![AF_UNIX, 0, 0, 0];
    for word in [states, inode, show, u32::MAX, u32::MAX] {
        body.extend(word.to_ne_bytes());
    }
    body
}

fn request(flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// Takes the first message off `buffer`; `None` at its end.
pub(super) fn next_message<'a>(buffer: &mut &'a [u8], sequence: u32) -> Result<Option<Message<'a>>, Malformed> {
    if buffer.is_empty() {
        return Ok(None);
    }
    let length = u32_at(buffer, 0).ok_or(Malformed("short header"))?;
    let length = usize::try_from(length).map_err(|_| Malformed("length"))?;
    let message = buffer.get(..length).ok_or(Malformed("length beyond the end"))?;
    let body = message.get(HEADER_BYTES..).ok_or(Malformed("length below the header"))?;
    *buffer = buffer.get(aligned(length)..).unwrap_or_default();
    if u32_at(message, 8) != Some(sequence) {
        return Ok(Some(Message::Stray));
    }
    Ok(Some(match u16_at(message, 4) {
        Some(NLMSG_DONE) => match i32_at(body, 0) {
            // A dump that failed half-way says so in its last message.
            Some(error) if error < 0 => Message::Refused(error.saturating_neg()),
            _ => Message::Done,
        },
        Some(NLMSG_ERROR) => Message::Refused(i32_at(body, 0).ok_or(Malformed("error without a number"))?.saturating_neg()),
        Some(SOCK_DIAG_BY_FAMILY) => Message::Socket(body),
        _ => Message::Stray,
    }))
}

/// Reads a unix socket; unknown attributes are passed over.
pub(super) fn unix_socket(body: &[u8]) -> Result<UnixSocket<'_>, Malformed> {
    let inode = u32_at(body, 4).ok_or(Malformed("short unix socket"))?;
    let mut socket = UnixSocket { inode, ..UnixSocket::default() };
    let mut rest = body.get(UNIX_REPLY_BYTES..).ok_or(Malformed("short unix socket"))?;
    // Less than an attribute's header can only be padding.
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length).ok_or(Malformed("attribute length"))?;
        let pair = || u32_at(value, 0).zip(u32_at(value, 4)).ok_or(Malformed("short attribute"));
        match kind & ATTRIBUTE_TYPE {
            UNIX_DIAG_NAME => socket.name = Some(without_end(value)),
            UNIX_DIAG_VFS => socket.file = Some(pair()?),
            UNIX_DIAG_RQLEN => socket.queue = Some(pair()?),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(socket)
}

/// A path comes with its terminating zero; an abstract name starts with one, and keeps it.
fn without_end(name: &[u8]) -> &[u8] {
    name.strip_suffix(&[0]).filter(|name| !name.is_empty()).unwrap_or(name)
}

/// Reads a TCP socket.
pub(super) fn tcp_socket(body: &[u8]) -> Result<TcpSocket, Malformed> {
    let short = Malformed("short TCP socket");
    let port = body.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes).ok_or(short)?;
    let octets: [u8; 16] = body.get(8..24).and_then(|bytes| bytes.try_into().ok()).ok_or(short)?;
    let address = match body.first() {
        Some(&AF_INET) => octets.first_chunk::<4>().map(|four| IpAddr::V4(Ipv4Addr::from(*four))).ok_or(short)?,
        Some(&AF_INET6) => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return Err(Malformed("family")),
    };
    let inode = u32_at(body, 68).ok_or(short)?;
    Ok(TcpSocket { local: SocketAddr::new(address, port), inode })
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(u32::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads everything that can be read; ends for any input.
    fn read_all(mut buffer: &[u8], sequence: u32) -> Result<usize, Malformed> {
        let mut count = 0;
        while let Some(message) = next_message(&mut buffer, sequence)? {
            if let Message::Socket(body) = message {
                unix_socket(body).map(drop).or_else(|_| tcp_socket(body).map(drop))?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut message = request(0, sequence, body);
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.resize(aligned(message.len()), 0);
        message
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut attribute = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        attribute.extend(kind.to_ne_bytes());
        attribute.extend(value);
        attribute.resize(aligned(attribute.len()), 0);
        attribute
    }

    fn pair(first: u32, second: u32) -> Vec<u8> {
        [first.to_ne_bytes(), second.to_ne_bytes()].concat()
    }

    #[test]
    fn requests_have_the_sizes_the_kernel_asks_for() {
        assert_eq!(unix_one(7, SHOW_QUEUE, 1).len(), 16 + 24);
        assert_eq!(tcp_all("127.0.0.1:80".parse().unwrap(), LISTENING, 1).len(), 16 + 56);
    }

    #[test]
    fn messages_end_dumps_refuse_and_stray() {
        let buffer =
            [message(20, 5, &[1; 16]), message(20, 4, &[1; 16]), message(2, 5, &(-2i32).to_ne_bytes()), message(3, 5, &[0; 4])].concat();
        let mut rest = buffer.as_slice();
        let mut next = || next_message(&mut rest, 5).unwrap();
        assert_eq!(next(), Some(Message::Socket(&[1; 16])));
        assert_eq!(next(), Some(Message::Stray));
        assert_eq!(next(), Some(Message::Refused(2)));
        assert_eq!(next(), Some(Message::Done));
        assert_eq!(next(), None);
        assert!(read_all(&[1; 3], 5).is_err() && read_all(&[255; 32], 5).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), sequence in 0u32..2) {
            let _either = read_all(&bytes, sequence);
            let _either = unix_socket(&bytes);
            let _either = tcp_socket(&bytes);
        }

        #[test]
        fn damaged_replies_are_read_or_refused(
            sockets in prop::collection::vec((any::<u32>(), "[a-z/.]{1,107}", any::<u32>()), 1..20),
            hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut buffer: Vec<u8> = sockets.iter().flat_map(|(inode, name, depth)| {
                let body = [pair(0, *inode), pair(0, 0), attribute(UNIX_DIAG_NAME, name.as_bytes()), attribute(UNIX_DIAG_RQLEN, &pair(*depth, 9))].concat();
                message(20, 5, &body)
            }).collect();
            prop_assert_eq!(read_all(&buffer, 5), Ok(sockets.len()));
            for (at, byte) in hits {
                let at = at.index(buffer.len());
                buffer[at] = byte;
            }
            buffer.truncate(cut.index(buffer.len()) + 1);
            let _either = read_all(&buffer, 5);
        }

        #[test]
        fn a_unix_socket_is_read_as_written(inode: u32, name in "/[a-z/.]{1,106}", file: (u32, u32), queue: (u32, u32), unknown in 8u16..100) {
            let mut zero = name.clone().into_bytes();
            zero.push(0);
            let body = [
                pair(0, inode), pair(0, 0),
                attribute(unknown, &[1, 2, 3]),
                attribute(UNIX_DIAG_NAME, &zero),
                attribute(UNIX_DIAG_VFS, &pair(file.0, file.1)),
                attribute(UNIX_DIAG_RQLEN, &pair(queue.0, queue.1)),
            ].concat();
            let expected = UnixSocket { inode, name: Some(name.as_bytes()), file: Some(file), queue: Some(queue) };
            prop_assert_eq!(unix_socket(&body), Ok(expected));
        }
    }
}
