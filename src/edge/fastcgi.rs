//! FastCGI client: status, ping, warm-up, over the private status socket.
//!
//! That socket runs any script it is asked for, as the pool's user, in the master's own opcache (P28), so verification and
//! warm-up need no public path. One request a connection; the client closes at END_REQUEST, because the worker stays with
//! the connection until then (P34). Every request ends within its time-out with bounded memory, whatever the peer does.
//! Paths asked for here also answer on the public socket (S13), so generated ones are not guessable.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::model::endpoint::Endpoint;
use crate::model::settings::Warmup;
use crate::text::fastcgi::{Answer, DecodeError, Decoder, Params, Response, encode_request, excerpt};
use crate::text::status::{PoolStatus, StatusError, read_status_page};

/// 64 KiB: a ping is a few bytes, a status page without workers less than one.
const SMALL_ANSWER_BYTES: usize = 64 * 1024;
/// 8 MiB: a full status page has about 300 bytes a worker and URIs of some kilobytes.
const FULL_STATUS_BYTES: usize = 8 * 1024 * 1024;
/// 32 MiB: a page asked for warm-up is not kept, only bounded.
const WARMUP_ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Characters of a body or log text that a message shows.
const EXCERPT_CHARACTERS: usize = 500;

/// What one request may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// From before the connection is made to END_REQUEST.
    pub total: Duration,
    /// Both streams of the answer with their framing.
    pub response_bytes: usize,
}

/// Why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum FastCgiError {
    /// No connection. A full queue of a unix socket is one reason (EAGAIN).
    #[error("connect to {target}")]
    Connect {
        /// The socket.
        target: Endpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The connection broke before the answer was whole; a killed worker shows as a reset.
    #[error("read the answer from {target}")]
    Receive {
        /// The socket.
        target: Endpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The peer does not speak FastCGI as it should.
    #[error("understand the answer from {target}")]
    Malformed {
        /// The socket.
        target: Endpoint,
        /// What is wrong.
        source: DecodeError,
    },
    /// No whole answer in time.
    #[error("no whole answer from {target} within {} ms", after.as_millis())]
    Timeout {
        /// The socket.
        target: Endpoint,
        /// How long it had.
        after: Duration,
    },
    /// An answer, but another one than was asked for.
    #[error("{target} answered status {status} with '{body}'")]
    Unexpected {
        /// The socket.
        target: Endpoint,
        /// The HTTP status.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// The status page cannot be read.
    #[error("read the status page of {target}")]
    StatusPage {
        /// The socket.
        target: Endpoint,
        /// What is wrong with it.
        source: StatusError,
    },
}

/// Why a warm-up request failed.
#[derive(Debug, thiserror::Error)]
pub enum WarmupError {
    /// There was no answer.
    #[error("warm up pool {pool} with {uri}")]
    Request {
        /// The pool.
        pool: String,
        /// What was asked.
        uri: String,
        /// Why.
        source: FastCgiError,
    },
    /// The answer has another status than expected.
    #[error("warm-up of pool {pool} with {uri} answered {status} instead of {expected}: '{body}'{}", log_part(.stderr))]
    Status {
        /// The pool.
        pool: String,
        /// What was asked.
        uri: String,
        /// The HTTP status of the answer.
        status: u16,
        /// The one the settings name.
        expected: u16,
        /// The beginning of the body.
        body: String,
        /// The beginning of what PHP logged.
        stderr: String,
    },
}

fn log_part(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(", php logged '{stderr}'") }
}

/// How much of a pool's status is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusDetail {
    /// The counters.
    Brief,
    /// The counters and each worker. 8.2.24 could crash on it (P31), so ask only where the counters leave a doubt.
    Full,
}

/// Sends one request and gives its answer.
///
/// # Errors
/// When there is no whole, well-formed answer within the limits. An answer with a bad HTTP status is no error here.
///
/// # Cancel safety
/// Dropping the future closes the connection; PHP may go on with the request.
pub async fn request(target: &Endpoint, params: &Params, body: &[u8], limits: RequestLimits) -> Result<Response, FastCgiError> {
    let bytes = encode_request(params, body);
    let exchange = async {
        let connect = |source| FastCgiError::Connect { target: target.clone(), source };
        match target {
            Endpoint::Unix(path) => {
                exchange(UnixStream::connect(path).await.map_err(connect)?, &bytes, limits.response_bytes).await.map_err(|e| e.of(target))
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(connect)?;
                stream.set_nodelay(true).map_err(connect)?;
                exchange(stream, &bytes, limits.response_bytes).await.map_err(|e| e.of(target))
            }
        }
    };
    let answer = tokio::time::timeout(limits.total, exchange)
        .await
        .map_err(|_| FastCgiError::Timeout { target: target.clone(), after: limits.total })??;
    Response::read(answer).map_err(|source| FastCgiError::Malformed { target: target.clone(), source })
}

enum ExchangeError {
    Receive(std::io::Error),
    Malformed(DecodeError),
}

impl ExchangeError {
    fn of(self, target: &Endpoint) -> FastCgiError {
        let target = target.clone();
        match self {
            Self::Receive(source) => FastCgiError::Receive { target, source },
            Self::Malformed(source) => FastCgiError::Malformed { target, source },
        }
    }
}

/// Sends and receives at the same time: a peer may answer before it has read a long body, and both would wait otherwise.
/// Dropping the stream at the end closes it (P34).
async fn exchange<S: AsyncRead + AsyncWrite>(stream: S, bytes: &[u8], limit_bytes: usize) -> Result<Answer, ExchangeError> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut receiving = std::pin::pin!(receive(reader, limit_bytes));
    tokio::select! {
        biased;
        answer = &mut receiving => return answer,
        // A peer that stops reading may still have answered; what it sent decides.
        _ = writer.write_all(bytes) => {}
    }
    receiving.await
}

async fn receive<R: AsyncRead + Unpin>(mut reader: R, limit_bytes: usize) -> Result<Answer, ExchangeError> {
    let mut decoder = Decoder::new(limit_bytes);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = reader.read(&mut buffer).await.map_err(ExchangeError::Receive)?;
        if count == 0 {
            return Err(ExchangeError::Malformed(decoder.closed()));
        }
        let bytes = buffer.get(..count).unwrap_or_default();
        if let Some(answer) = decoder.feed(bytes).map_err(ExchangeError::Malformed)? {
            return Ok(answer);
        }
    }
}

/// What every request carries; php-fpm finds its own pages by `SCRIPT_NAME`.
fn page_params(path: &str, query: &str) -> Params {
    let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    Params::new()
        .with("GATEWAY_INTERFACE", "CGI/1.1")
        .with("SERVER_SOFTWARE", concat!("polyfpm/", env!("CARGO_PKG_VERSION")))
        .with("SERVER_PROTOCOL", "HTTP/1.1")
        .with("SERVER_NAME", "localhost")
        .with("SERVER_ADDR", "127.0.0.1")
        .with("SERVER_PORT", "80")
        .with("REMOTE_ADDR", "127.0.0.1")
        .with("REMOTE_PORT", "0")
        .with("REQUEST_METHOD", "GET")
        .with("REQUEST_SCHEME", "http")
        .with("REQUEST_URI", uri)
        .with("DOCUMENT_URI", path)
        .with("QUERY_STRING", query)
        .with("CONTENT_TYPE", "")
        .with("CONTENT_LENGTH", "")
        .with("HTTP_HOST", "localhost")
        .with("HTTP_USER_AGENT", concat!("polyfpm/", env!("CARGO_PKG_VERSION")))
}

/// Asks a pool's ping page and compares its answer.
///
/// # Errors
/// When there is no answer within `timeout`, or another one than `expected`.
///
/// # Cancel safety
/// As [`request`].
pub async fn ping(target: &Endpoint, path: &str, expected: &str, timeout: Duration) -> Result<(), FastCgiError> {
    let params = page_params(path, "").with("SCRIPT_NAME", path).with("SCRIPT_FILENAME", path);
    let response = request(target, &params, &[], RequestLimits { total: timeout, response_bytes: SMALL_ANSWER_BYTES }).await?;
    if response.status == 200 && response.body == expected.as_bytes() { Ok(()) } else { Err(unexpected(target, &response)) }
}

fn unexpected(target: &Endpoint, response: &Response) -> FastCgiError {
    FastCgiError::Unexpected { target: target.clone(), status: response.status, body: excerpt(&response.body, EXCERPT_CHARACTERS) }
}

/// Asks a pool's status page.
///
/// # Errors
/// When there is no answer within `timeout`, or one that is no status page.
///
/// # Cancel safety
/// As [`request`].
pub async fn pool_status(target: &Endpoint, path: &str, detail: StatusDetail, timeout: Duration) -> Result<PoolStatus, FastCgiError> {
    let (query, response_bytes) = match detail {
        StatusDetail::Brief => ("json", SMALL_ANSWER_BYTES),
        StatusDetail::Full => ("json&full", FULL_STATUS_BYTES),
    };
    let params = page_params(path, query).with("SCRIPT_NAME", path).with("SCRIPT_FILENAME", path);
    let response = request(target, &params, &[], RequestLimits { total: timeout, response_bytes }).await?;
    if response.status != 200 {
        return Err(unexpected(target, &response));
    }
    read_status_page(&response.body).map_err(|source| FastCgiError::StatusPage { target: target.clone(), source })
}

/// Asks a new master for a page before it takes traffic. `target` is its private status socket for the pool.
///
/// # Errors
/// When there is no answer within the warm-up's time-out, or one with another status than expected.
///
/// # Cancel safety
/// As [`request`].
pub async fn warm_up(target: &Endpoint, warmup: &Warmup) -> Result<(), WarmupError> {
    let (pool, uri) = (warmup.pool.clone(), warmup.uri.clone());
    let params = warmup_params(warmup);
    let limits = RequestLimits { total: warmup.timeout, response_bytes: WARMUP_ANSWER_BYTES };
    let response = match request(target, &params, &[], limits).await {
        Ok(response) => response,
        Err(source) => return Err(WarmupError::Request { pool, uri, source }),
    };
    if response.status == warmup.expect {
        return Ok(());
    }
    let body = excerpt(&response.body, EXCERPT_CHARACTERS);
    let stderr = excerpt(&response.stderr, EXCERPT_CHARACTERS);
    Err(WarmupError::Status { pool, uri, status: response.status, expected: warmup.expect, body, stderr })
}

fn warmup_params(warmup: &Warmup) -> Params {
    use std::os::unix::ffi::OsStrExt;

    let (path, query) = warmup.uri.split_once('?').unwrap_or((&warmup.uri, ""));
    let script = warmup.script.as_os_str().as_bytes();
    let root = warmup.script.parent().map(|parent| parent.as_os_str().as_bytes()).unwrap_or_default();
    // As NGINX has it for a front controller: the script's own name in the document root, whatever the URI says.
    let name = warmup.script.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let script_name: Vec<u8> = [b"/", name].concat();
    page_params(path, query)
        .with("SCRIPT_FILENAME", script)
        .with("SCRIPT_NAME", script_name)
        .with("DOCUMENT_ROOT", root)
        .with("REDIRECT_STATUS", "200")
}

#[cfg(test)]
mod tests;
