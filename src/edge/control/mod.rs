//! The control socket: how commands reach the supervisor and answers come back (`model::wire`).

pub mod client;
pub mod replies;
pub mod server;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// What came of reading a line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// A line without its end.
    Whole(Vec<u8>),
    /// The peer closed before the line's end.
    Unfinished,
    /// It is longer than allowed.
    TooLong,
}

/// Reads one line of at most `limit_bytes`, its end included; never holds more.
async fn read_line<R: AsyncBufRead + Unpin>(reader: &mut R, limit_bytes: usize) -> std::io::Result<Line> {
    let mut line = Vec::new();
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    reader.take(limit).read_until(b'\n', &mut line).await?;
    Ok(if line.pop_if(|last| *last == b'\n').is_some() {
        Line::Whole(line)
    } else if line.len() < limit_bytes {
        Line::Unfinished
    } else {
        Line::TooLong
    })
}
