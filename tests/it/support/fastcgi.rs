//! A small FastCGI client of the tests' own: the contract tests must not rest on the code they support.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where php-fpm listens.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    parameters: Vec<(String, String)>,
    body: Vec<u8>,
    keep: bool,
    timeout: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A whole answer: the status, and the body as text.
    Whole(u16, String),
    /// The connection ended before the answer did.
    Cut,
    /// No connection: the kernel's reason.
    Refused(ErrorKind),
    /// Nothing within the time-out.
    Late,
}

/// An open connection with a request on it.
pub(crate) struct Call {
    stream: Box<dyn Stream>,
    answer: Vec<u8>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Request {
    /// Asks for a script with a query (`/x.php?a=b`), as NGINX would.
    pub(crate) fn get(root: &Path, uri: &str) -> Self {
        let (script, query) = uri.split_once('?').unwrap_or((uri, ""));
        let file = root.join("www").join(script.trim_start_matches('/'));
        let file = file.display().to_string();
        Self::bare(script).with("SCRIPT_FILENAME", &file).with("QUERY_STRING", query).with("REQUEST_URI", uri)
    }

    /// Asks for a path that php-fpm answers itself: a ping or status path.
    pub(crate) fn bare(script: &str) -> Self {
        let plain = Self { parameters: Vec::new(), body: Vec::new(), keep: false, timeout: Duration::from_secs(10) };
        plain.with("SCRIPT_NAME", script).with("SCRIPT_FILENAME", script).with("REQUEST_METHOD", "GET").with("SERVER_PROTOCOL", "HTTP/1.1")
    }

    /// Sets a parameter, in place of the one before.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.parameters.retain(|(known, _)| known != name);
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes it a POST.
    pub(crate) fn post(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        let length = body.len().to_string();
        self.with("REQUEST_METHOD", "POST").with("CONTENT_LENGTH", &length).with("CONTENT_TYPE", "application/octet-stream")
    }

    /// Asks php-fpm to keep the connection.
    pub(crate) fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Sets how long any one wait may last.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends it and waits for the answer.
    pub(crate) fn to(&self, peer: &Peer) -> Answer {
        match self.open(peer) {
            Ok(call) => call.answer(),
            Err(e) => Answer::Refused(e),
        }
    }

    /// Connects and sends it; the answer can be waited for later.
    pub(crate) fn open(&self, peer: &Peer) -> Result<Call, ErrorKind> {
        let stream = connect(peer, self.timeout).map_err(|e| e.kind())?;
        let mut call = Call { stream, answer: Vec::new() };
        call.send(self).map_err(|e| e.kind())?;
        Ok(call)
    }

    fn records(&self) -> Vec<u8> {
        let mut parameters = Vec::new();
        for (name, value) in &self.parameters {
            length(&mut parameters, name.len());
            length(&mut parameters, value.len());
            parameters.extend_from_slice(name.as_bytes());
            parameters.extend_from_slice(value.as_bytes());
        }
        let mut out = Vec::new();
        record(&mut out, 1, &[0, 1, u8::from(self.keep), 0, 0, 0, 0, 0]);
        stream_records(&mut out, 4, &parameters);
        stream_records(&mut out, 5, &self.body);
        out
    }
}

impl Call {
    /// Sends a further request on the same connection.
    pub(crate) fn send(&mut self, request: &Request) -> std::io::Result<()> {
        self.stream.write_all(&request.records())
    }

    /// Waits for the answer and closes.
    pub(crate) fn answer(mut self) -> Answer {
        self.next()
    }

    /// Waits for the answer beside the test and closes at once: a worker stays with an answered connection as long as it is open (P34).
    pub(crate) fn beside(self) -> std::thread::JoinHandle<Answer> {
        std::thread::spawn(move || self.answer())
    }

    /// Waits for the answer; the connection stays.
    pub(crate) fn next(&mut self) -> Answer {
        self.answer.clear();
        loop {
            match self.record() {
                Ok((3, _)) => return whole(&self.answer),
                Ok((6, content)) => self.answer.extend_from_slice(&content),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Answer::Late,
                Err(_) => return Answer::Cut,
            }
        }
    }

    /// Tells whether php-fpm has closed the connection; waits at most the request's time-out.
    pub(crate) fn closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0)) || self.stream.read(&mut byte).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    }

    fn record(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let mut content = vec![0; usize::from(u16::from_be_bytes([head[4], head[5]])) + usize::from(head[6])];
        self.stream.read_exact(&mut content)?;
        content.truncate(content.len() - usize::from(head[6]));
        Ok((head[1], content))
    }
}

fn connect(peer: &Peer, timeout: Duration) -> std::io::Result<Box<dyn Stream>> {
    match peer {
        Peer::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        }
        Peer::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        }
    }
}

fn whole(answer: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.lines().find_map(|line| line.strip_prefix("Status: "));
    let code = status.and_then(|status| status.split(' ').next()?.parse().ok()).unwrap_or(200);
    Answer::Whole(code, body.to_owned())
}

fn record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [high, low] = u16::try_from(content.len()).expect("a record's content").to_be_bytes();
    out.extend_from_slice(&[1, kind, 0, 1, high, low, 0, 0]);
    out.extend_from_slice(content);
}

fn stream_records(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    for part in content.chunks(32_768) {
        record(out, kind, part);
    }
    record(out, kind, &[]);
}

fn length(out: &mut Vec<u8>, length: usize) {
    match u8::try_from(length) {
        Ok(short) if short < 128 => out.push(short),
        _ => out.extend_from_slice(&(u32::try_from(length).expect("a parameter's length") | 0x8000_0000).to_be_bytes()),
    }
}

impl Answer {
    /// Gives the body of a 200.
    #[track_caller]
    pub(crate) fn body(&self) -> &str {
        match self {
            Self::Whole(200, body) => body,
            Self::Whole(..) | Self::Cut | Self::Refused(_) | Self::Late => panic!("no answer with status 200: {self:?}"),
        }
    }

    /// Tells whether it is a whole 200.
    pub(crate) fn is_ok(&self) -> bool {
        matches!(self, Self::Whole(200, _))
    }

    /// Reads a number out of a JSON body.
    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> i32 {
        let value: serde_json::Value = serde_json::from_str(self.body()).expect("a JSON body");
        value
            .get(key)
            .and_then(serde_json::Value::as_i64)
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or_else(|| panic!("no {key} in {value}"))
    }
}
