//! FastCGI records: encoding requests, decoding answers.
//!
//! One request a connection, request id 1, role responder. The decoder trusts nothing of its peer: version, request id
//! and lengths are checked, the answer is bounded, and an answer that stops before END_REQUEST is an error and never a
//! short success. PHP always reports application status 0, even for `exit(7)`; what counts is the CGI `Status:` header.
//! Source: FastCGI Specification 1.0, sections 3 to 5; checked with php-fpm 8.2.36.

/// The only protocol version there is.
const VERSION: u8 = 1;
/// The request id used in every request: one request a connection needs no other.
const REQUEST_ID: u16 = 1;
const HEADER_BYTES: usize = 8;
/// A record's content can be 65,535 bytes; the next lower multiple of eight needs no padding.
const CHUNK_BYTES: usize = 65_528;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// The parameters of a request, in the order they are sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Params(Vec<(Vec<u8>, Vec<u8>)>);

impl Params {
    /// Gives an empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.0 {
            push_length(&mut bytes, name.len());
            push_length(&mut bytes, value.len());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value);
        }
        bytes
    }
}

/// Lengths below 128 take one byte, others four with the top bit set.
fn push_length(bytes: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).unwrap_or(i32::MAX as u32).min(i32::MAX as u32);
    match u8::try_from(length) {
        Ok(short) if short < 128 => bytes.push(short),
        _ => bytes.extend_from_slice(&(length | 0x8000_0000).to_be_bytes()),
    }
}

fn push_record(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&[VERSION, kind]);
    bytes.extend_from_slice(&REQUEST_ID.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(content);
}

fn push_stream(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    for chunk in content.chunks(CHUNK_BYTES) {
        push_record(bytes, kind, chunk);
    }
    push_record(bytes, kind, &[]);
}

/// Gives a whole request, ready for one write: many small writes cost 40 ms each over TCP.
pub fn encode_request(params: &Params, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 1024);
    // Role 1 is the responder; flags 0: the peer may close after its answer.
    push_record(&mut bytes, BEGIN_REQUEST, &[0, 1, 0, 0, 0, 0, 0, 0]);
    push_stream(&mut bytes, PARAMS, &params.encode());
    push_stream(&mut bytes, STDIN, body);
    bytes
}

/// What a peer did wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not FastCGI, or another version of it.
    #[error("record has version {0}, expected 1")]
    Version(u8),
    /// A record of another request.
    #[error("record belongs to request {0}, expected 1")]
    RequestId(u16),
    /// A kind of record that a responder does not send.
    #[error("record kind {0} is not one of an answer")]
    Kind(u8),
    /// An END_REQUEST that is not eight bytes long.
    #[error("end record has {0} bytes, expected 8")]
    EndLength(u16),
    /// The peer refused: protocol status 1 to 3.
    #[error("request refused: {}", refusal(*.0))]
    Refused(u8),
    /// The answer is longer than allowed.
    #[error("answer is longer than {limit_bytes} bytes")]
    TooLong {
        /// What was allowed.
        limit_bytes: usize,
    },
    /// The peer closed before END_REQUEST.
    #[error("connection closed after {received_bytes} bytes of an unfinished answer")]
    Truncated {
        /// What had come until then.
        received_bytes: usize,
    },
    /// The answer has no CGI header.
    #[error("answer has no header")]
    NoHeader,
    /// The CGI `Status:` header names no status.
    #[error("answer has status '{0}'")]
    Status(String),
}

fn refusal(status: u8) -> &'static str {
    match status {
        1 => "cannot multiplex",
        2 => "overloaded",
        3 => "unknown role",
        _ => "unknown protocol status",
    }
}

/// Both streams of a finished answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The CGI response.
    pub stdout: Vec<u8>,
    /// What PHP wrote to its log stream.
    pub stderr: Vec<u8>,
}

/// Puts an answer together from bytes as they come. Holds at most the limit, one record and what one call feeds it.
#[derive(Debug)]
pub struct Decoder {
    pending: Vec<u8>,
    answer: Answer,
    received_bytes: usize,
    /// What of it was in whole records.
    taken_bytes: usize,
    limit_bytes: usize,
}

struct Record<'a> {
    kind: u8,
    content: &'a [u8],
    whole_bytes: usize,
}

impl Decoder {
    /// Starts an answer of at most `limit_bytes`, both streams, their records' headers and padding together.
    pub const fn new(limit_bytes: usize) -> Self {
        Self {
            pending: Vec::new(),
            answer: Answer { stdout: Vec::new(), stderr: Vec::new() },
            received_bytes: 0,
            taken_bytes: 0,
            limit_bytes,
        }
    }

    /// Takes bytes as they came; gives the answer once END_REQUEST is there. What follows it is ignored.
    ///
    /// # Errors
    /// When the peer breaks the protocol, refuses, or sends too much. The connection is then of no further use.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Answer>, DecodeError> {
        self.received_bytes = self.received_bytes.saturating_add(bytes.len());
        self.pending.extend_from_slice(bytes);
        let mut used = 0;
        let mut ended = false;
        while let Some(record) = next_record(self.pending.get(used..).unwrap_or_default())? {
            used += record.whole_bytes;
            // However the bytes are cut, an answer is too long or it is not.
            self.taken_bytes = self.taken_bytes.saturating_add(record.whole_bytes);
            if self.taken_bytes > self.limit_bytes {
                return Err(DecodeError::TooLong { limit_bytes: self.limit_bytes });
            }
            match record.kind {
                STDOUT => self.answer.stdout.extend_from_slice(record.content),
                STDERR => self.answer.stderr.extend_from_slice(record.content),
                _ => {
                    check_end(record.content)?;
                    ended = true;
                    break;
                }
            }
        }
        self.pending.drain(..used);
        if ended {
            return Ok(Some(std::mem::take(&mut self.answer)));
        }
        if self.received_bytes > self.limit_bytes {
            return Err(DecodeError::TooLong { limit_bytes: self.limit_bytes });
        }
        Ok(None)
    }

    /// Gives what it means that the peer closed now.
    pub const fn closed(&self) -> DecodeError {
        DecodeError::Truncated { received_bytes: self.received_bytes }
    }
}

/// Gives the next record if it is whole. The header is checked as soon as it is there: an HTTP answer is recognised without
/// waiting for the 20 KB its letters would mean as a length.
fn next_record(bytes: &[u8]) -> Result<Option<Record<'_>>, DecodeError> {
    if let Some(&version) = bytes.first()
        && version != VERSION
    {
        return Err(DecodeError::Version(version));
    }
    let Some(([_, kind, id_high, id_low, length_high, length_low, padding, _], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let id = u16::from_be_bytes([*id_high, *id_low]);
    let length = u16::from_be_bytes([*length_high, *length_low]);
    if !matches!(*kind, STDOUT | STDERR | END_REQUEST) {
        return Err(DecodeError::Kind(*kind));
    }
    if id != REQUEST_ID {
        return Err(DecodeError::RequestId(id));
    }
    if *kind == END_REQUEST && length != 8 {
        return Err(DecodeError::EndLength(length));
    }
    let whole_bytes = HEADER_BYTES + usize::from(length) + usize::from(*padding);
    if bytes.len() < whole_bytes {
        return Ok(None);
    }
    let content = rest.get(..usize::from(length)).unwrap_or_default();
    Ok(Some(Record { kind: *kind, content, whole_bytes }))
}

fn check_end(content: &[u8]) -> Result<(), DecodeError> {
    match content.get(4) {
        Some(0) => Ok(()),
        Some(&status) => Err(DecodeError::Refused(status)),
        None => Err(DecodeError::EndLength(0)),
    }
}

/// A CGI response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status; 200 where the answer names none.
    pub status: u16,
    /// The other headers, as they came.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// What PHP wrote to its log stream.
    pub stderr: Vec<u8>,
}

impl Response {
    /// Reads a finished answer.
    ///
    /// # Errors
    /// When it has no header or its status is no number from 100 to 999.
    pub fn read(answer: Answer) -> Result<Self, DecodeError> {
        let (head_bytes, body_start) = header_end(&answer.stdout).ok_or(DecodeError::NoHeader)?;
        let head = String::from_utf8_lossy(answer.stdout.get(..head_bytes).unwrap_or_default()).into_owned();
        let mut status = 200;
        let mut headers = Vec::new();
        for line in head.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let (name, value) = (name.trim(), value.trim());
            if name.eq_ignore_ascii_case("status") {
                status = read_status(value).ok_or_else(|| DecodeError::Status(excerpt(value.as_bytes(), 40)))?;
            } else {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
        let mut body = answer.stdout;
        body.drain(..body_start);
        Ok(Self { status, headers, body, stderr: answer.stderr })
    }

    /// Finds a header without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

fn read_status(value: &str) -> Option<u16> {
    let digits = value.split_ascii_whitespace().next()?;
    digits.parse().ok().filter(|status| (100..=999).contains(status))
}

/// Gives the length of the header and where the body starts: after the first empty line.
fn header_end(stdout: &[u8]) -> Option<(usize, usize)> {
    let mut line_start = 0;
    for (at, _) in stdout.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        let line = stdout.get(line_start..at)?;
        if line.is_empty() || line == b"\r" {
            return Some((line_start, at + 1));
        }
        line_start = at + 1;
    }
    None
}

/// Gives the beginning of `bytes` as one line of text for a message: at most `most` characters, control characters replaced.
pub fn excerpt(bytes: &[u8], most: usize) -> String {
    // Four bytes make at most one character, so the rest need not be looked at.
    let beginning = bytes.get(..most.saturating_mul(4)).unwrap_or(bytes);
    let text = String::from_utf8_lossy(beginning);
    let mut shown: String = text.trim().chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.chars().count() < text.trim().chars().count() || beginning.len() < bytes.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
