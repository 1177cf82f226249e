//! Clients that never let up while a test does something to the servers.
//!
//! Short requests run on as many clients as asked, each asking again as soon as it was answered. Uploads, streamed answers
//! and long requests run beside them on clients of their own, so that they do not thin out the short ones.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use super::verdict::{Kind, Logs, Report, Sample, judge};
use super::{Ground, Nginx};

/// 20 MB, as the promise says: far more than fits into any buffer on the way.
const UPLOAD_BYTES: usize = 20_000_000;

/// 30 chunks, 100 ms apart: an answer of three seconds.
const STREAM: (u32, u32) = (30, 100);

/// 120 s: well over the longest request (45 s); a request that takes so long is lost.
const LOST_AFTER: Duration = Duration::from_secs(120);

static RUNS: AtomicU32 = AtomicU32::new(0);

/// The body of every upload and its digest: made once, as making it takes longer than sending it.
static UPLOAD: OnceLock<(Bytes, String)> = OnceLock::new();

/// Who asks the short requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients {
    /// How many at once.
    pub(crate) count: u32,
    /// Whether each keeps its connection to NGINX.
    pub(crate) connections: Connections,
    /// How long each rests after an answer.
    pub(crate) pause: Duration,
}

/// What a client does with its connection to NGINX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connections {
    Kept,
    OneEach,
}

impl Clients {
    /// So many, each with a kept connection to NGINX and no rest.
    pub(crate) fn keeping(count: u32) -> Self {
        Self { count, connections: Connections::Kept, pause: Duration::ZERO }
    }

    /// So many, each request on a connection of its own: for tests that reload NGINX (P22).
    pub(crate) fn one_each(count: u32) -> Self {
        Self { count, connections: Connections::OneEach, pause: Duration::ZERO }
    }

    /// Lets each rest after an answer, so that connections lie idle.
    pub(crate) fn resting(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }
}

/// What runs beside the short requests, one after the other on a client of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extra {
    /// POSTs of 20 MB.
    Uploads,
    /// Streamed answers of three seconds.
    Streams,
    /// POSTs that take so long.
    Long(Duration),
}

/// A load under way.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Vec<Sample>, u32)>>,
    logs: Logs,
    started: Instant,
}

impl Load {
    /// Starts to ask for scripts under `/route/`.
    pub(crate) fn start(ground: &Ground, nginx: &Nginx, route: &str, clients: Clients, extras: &[Extra]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let run = format!("{route}-{}", RUNS.fetch_add(1, Ordering::Relaxed));
        let logs = Logs::here(ground, route, &run);
        UPLOAD.get_or_init(upload);
        let mut lanes: Vec<Lane> = Vec::new();
        let jobs = (0..clients.count).map(|_| Job::Short(clients)).chain(extras.iter().map(|extra| Job::Extra(*extra)));
        for (number, job) in jobs.enumerate() {
            let client = Client { port: nginx.port(), sender: None, dropped: 0 };
            lanes.push(Lane { name: format!("{run}-{number}"), route: route.to_owned(), job, client, stop: Arc::clone(&stop) });
        }
        let started = Instant::now();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime for the load");
            runtime.block_on(all(lanes, started))
        });
        Self { stop, thread: Some(thread), logs, started }
    }

    /// Lets the load run on for a while.
    pub(crate) fn run_for(&self, span: Duration) {
        super::within(span, || None::<()>);
    }

    /// Gives how far into the load it is now, for [`Report::quantile_within`].
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Lets every request under way end, and judges.
    #[track_caller]
    pub(crate) fn finish(mut self, ground: &Ground) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("a load ends once");
        let (samples, dropped) = thread.join().expect("the load's thread");
        judge(ground, &self.logs, samples, dropped, self.started.elapsed())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn all(lanes: Vec<Lane>, start: Instant) -> (Vec<Sample>, u32) {
    let tasks: Vec<_> = lanes.into_iter().map(|lane| tokio::spawn(lane.work(start))).collect();
    let (mut samples, mut dropped) = (Vec::new(), 0);
    for task in tasks {
        let (of_lane, dropped_in_lane) = task.await.expect("a client of the load");
        samples.extend(of_lane);
        dropped += dropped_in_lane;
    }
    (samples, dropped)
}

enum Job {
    Short(Clients),
    Extra(Extra),
}

struct Lane {
    name: String,
    route: String,
    job: Job,
    client: Client,
    stop: Arc<AtomicBool>,
}

impl Lane {
    async fn work(mut self, start: Instant) -> (Vec<Sample>, u32) {
        let mut samples = Vec::new();
        for number in 0_u32.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let id = format!("{}-{number}", self.name);
            let ask = self.ask(number, &id);
            let began = Instant::now();
            let outcome = tokio::time::timeout(LOST_AFTER, self.client.send(&ask)).await;
            let fault = match outcome {
                Err(_) => Some(format!("no answer within {LOST_AFTER:?}")),
                Ok(Err(fault)) => Some(fault),
                Ok(Ok((200, body))) => (body != ask.expected && !is_answer_with_pid(&body, &ask.expected)).then(|| wrong(&body)),
                Ok(Ok((status, body))) => Some(format!("status {status}: {}", wrong(&body))),
            };
            if fault.is_some() {
                self.client.sender = None;
            }
            samples.push(Sample { at: began - start, took: began.elapsed(), kind: ask.kind, id, fault });
            if let Job::Short(Clients { pause, .. }) = self.job
                && !pause.is_zero()
            {
                tokio::time::sleep(pause).await;
            }
        }
        (samples, self.client.dropped)
    }

    fn ask(&self, number: u32, id: &str) -> Ask {
        let route = &self.route;
        match self.job {
            Job::Short(clients) if number.is_multiple_of(2) => {
                let uri = format!("/{route}/hello.php?id={id}");
                Ask { kind: Kind::Get, uri, body: Bytes::new(), expected: format!("hello {id}\n"), connections: clients.connections }
            }
            Job::Short(clients) => {
                let body = filled(100 + (usize::try_from(number).unwrap_or(0) * 37) % 3000, id.as_bytes());
                let expected = format!("{id} {}\n", hex(&Sha256::digest(&body)));
                Ask { kind: Kind::Post, uri: format!("/{route}/count.php?id={id}"), body, expected, connections: clients.connections }
            }
            Job::Extra(Extra::Uploads) => {
                let (body, digest) = UPLOAD.get_or_init(upload).clone();
                let expected = format!("{id} {} {digest}\n", body.len());
                let uri = format!("/{route}/upload.php?id={id}");
                Ask { kind: Kind::Upload, uri, body, expected, connections: Connections::OneEach }
            }
            Job::Extra(Extra::Streams) => {
                let mut expected: String = (0..STREAM.0).map(|chunk| format!("chunk {chunk} {id}\n")).collect();
                expected.push_str("end\n");
                let uri = format!("/{route}/stream.php?id={id}&chunks={}&ms={}", STREAM.0, STREAM.1);
                Ask { kind: Kind::Stream, uri, body: Bytes::new(), expected, connections: Connections::OneEach }
            }
            Job::Extra(Extra::Long(time)) => {
                let (ms, uri) = (time.as_millis(), format!("/{route}/slow.php?id={id}&ms={}", time.as_millis()));
                let expected = format!("slept {ms} {id} pid ");
                Ask { kind: Kind::Long, uri, body: Bytes::from_static(b"x"), expected, connections: Connections::OneEach }
            }
        }
    }
}

struct Ask {
    kind: Kind,
    uri: String,
    body: Bytes,
    expected: String,
    connections: Connections,
}

struct Client {
    port: u16,
    sender: Option<SendRequest<Full<Bytes>>>,
    /// Kept connections that ended while nothing was under way on them.
    dropped: u32,
}

impl Client {
    async fn send(&mut self, ask: &Ask) -> Result<(u16, String), String> {
        let mut sender = self.connection().await?;
        let method = if ask.body.is_empty() { "GET" } else { "POST" };
        let mut request = hyper::Request::builder().method(method).uri(&ask.uri).header("host", "test");
        if ask.connections == Connections::OneEach {
            request = request.header("connection", "close");
        }
        let request = request.body(Full::new(ask.body.clone())).map_err(|e| e.to_string())?;
        let answer = sender.send_request(request).await.map_err(|e| chain(&e))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|e| chain(&e))?.to_bytes();
        if ask.connections == Connections::Kept {
            self.sender = Some(sender);
        }
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn connection(&mut self) -> Result<SendRequest<Full<Bytes>>, String> {
        if let Some(mut sender) = self.sender.take() {
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
            self.dropped += 1;
        }
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.map_err(|e| format!("connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| chain(&e))?;
        // Its error is seen by the request that is under way on it.
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn is_answer_with_pid(body: &str, expected: &str) -> bool {
    let pid = expected.ends_with(" pid ").then(|| body.strip_prefix(expected)).flatten();
    pid.is_some_and(|pid| pid.trim_end().parse::<u32>().is_ok())
}

fn wrong(body: &str) -> String {
    let start: String = body.chars().take(120).collect();
    format!("wrong body of {} bytes: {start:?}", body.len())
}

fn upload() -> (Bytes, String) {
    let line: Vec<u8> = (b' '..=b'~').collect();
    let body = Bytes::from(line.repeat(UPLOAD_BYTES / line.len() + 1)).slice(..UPLOAD_BYTES);
    let digest = hex(&Sha256::digest(&body));
    (body, digest)
}

fn filled(length: usize, with: &[u8]) -> Bytes {
    with.iter().copied().cycle().take(length).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
