//! The least FastCGI a supervisor and NGINX can be answered with.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;

/// Answers on every inherited socket and on the private ones the configuration names.
pub(crate) fn serve(config: &str) {
    let keys = inherited();
    for (_, fd) in &keys {
        let Some(socket) = open(*fd) else { continue };
        let tcp = TcpListener::from(socket.try_clone().expect("a second handle"));
        if tcp.local_addr().is_ok() {
            std::thread::spawn(move || tcp.incoming().flatten().for_each(answer));
        } else {
            listen(UnixListener::from(socket));
        }
    }
    for line in config.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let path = value.trim().trim_matches('"');
        if key.trim() == "pm.status_listen" && path.starts_with('/') && !keys.iter().any(|(known, _)| known == path) {
            let Ok(listener) = UnixListener::bind(Path::new(path)) else { continue };
            listen(listener);
        }
    }
}

/// Tells the service manager something, where there is one.
pub(crate) fn tell(message: &str) {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address));
    if let Err(error) = sent {
        eprintln!("fake-fpm: tell {name}: {error}");
    }
}

fn inherited() -> Vec<(String, i32)> {
    let variables = std::env::vars().filter(|(name, _)| name == "FPM_SOCKETS" || name.starts_with("FPM_SOCKETS_"));
    let entries = variables.flat_map(|(_, value)| value.split(',').map(str::to_owned).collect::<Vec<_>>());
    entries.filter_map(|entry| entry.rsplit_once('=').and_then(|(key, fd)| Some((key.to_owned(), fd.parse().ok()?)))).collect()
}

/// Gives an inherited descriptor as one of our own. Opening it through `/proc` is not possible for sockets, so it is fetched from ourselves.
fn open(fd: i32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let own = Pid::from_raw(std::process::id().cast_signed())?;
    let process = pidfd_open(own, PidfdFlags::empty()).ok()?;
    let fetched = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty());
    if let Err(error) = &fetched {
        eprintln!("fake-fpm: inherited descriptor {fd}: {error}");
    }
    fetched.inspect(|fetched| debug_assert!(fetched.as_raw_fd() != fd)).ok()
}

fn listen(listener: UnixListener) {
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
}

fn answer(mut stream: impl Read + Write) {
    let mut parameters = Vec::new();
    loop {
        let mut head = [0; 8];
        if stream.read_exact(&mut head).is_err() {
            return;
        }
        let [_, kind, _, _, high, low, padding, _] = head;
        let mut content = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        let mut rest = vec![0; usize::from(padding)];
        if stream.read_exact(&mut content).is_err() || stream.read_exact(&mut rest).is_err() {
            return;
        }
        match kind {
            4 => parameters.extend_from_slice(&content),
            5 if content.is_empty() => break,
            _ => {}
        }
    }
    let asked = String::from_utf8_lossy(&parameters).into_owned();
    let body = if asked.contains("ping") {
        "pong".to_owned()
    } else if asked.contains("status") {
        STATUS.to_owned()
    } else {
        format!("fake {}\n", std::process::id())
    };
    let text = format!("Content-Type: text/plain\r\n\r\n{body}");
    let mut out = Vec::new();
    record(&mut out, 6, text.as_bytes());
    record(&mut out, 6, &[]);
    record(&mut out, 3, &[0; 8]);
    if stream.write_all(&out).is_err() {
        eprintln!("fake-fpm: the client has gone");
    }
}

/// What the status page says of a pool with one idle worker.
const STATUS: &str = r#"{"pool":"fake","process manager":"static","start time":1,"start since":1,"accepted conn":1,"listen queue":0,"max listen queue":0,"listen queue len":0,"idle processes":1,"active processes":0,"total processes":1,"max active processes":1,"max children reached":0,"slow requests":0}"#;

fn record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [high, low] = u16::try_from(content.len()).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&[1, kind, 0, 1, high, low, 0, 0]);
    out.extend_from_slice(content);
}
