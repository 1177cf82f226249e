use std::fs::DirBuilder;
use std::ops::ControlFlow::{Break, Continue};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use tokio::io::{AsyncBufReadExt, AsyncReadExt};

use super::*;
use crate::edge::control::client::{ClientError, call};
use crate::model::ids::{InstanceName, PoolName};
use crate::model::pool::Quarantined;
use crate::model::problem::Problem;
use crate::model::snapshot::{JobView, NginxView};
use crate::model::wire::{Progress, Selection};

fn snapshot(uptime_seconds: u64) -> Arc<Snapshot> {
    Arc::new(Snapshot {
        v: Snapshot::VERSION,
        instance: InstanceName::new("test"),
        version: "0.1.0".to_owned(),
        pid: 1,
        uptime_seconds,
        healthy: true,
        shards: Vec::new(),
        pools: Arc::default(),
        quarantined: Vec::new(),
        nginx: NginxView { state: "off".to_owned(), detail: None, reloads: 0 },
        cgroups: None,
        job: None,
    })
}

/// A snapshot of about 2 MB: more than a socket's buffer.
fn big_snapshot() -> Arc<Snapshot> {
    let mut big = Snapshot::clone(&snapshot(1));
    big.quarantined =
        (0..1000).map(|n| Quarantined { pool: PoolName::new(format!("p{n}")), problem: Problem::error("x".repeat(2000)) }).collect();
    Arc::new(big)
}

struct Desk {
    directory: tempfile::TempDir,
    snapshot: watch::Sender<Arc<Snapshot>>,
    calls: mpsc::Receiver<Call>,
    serving: tokio::task::JoinHandle<()>,
}

impl Desk {
    fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (snapshot, published) = watch::channel(snapshot(0));
        let server = Server::bind(&settings(&directory), published).unwrap();
        let (requests, calls) = mpsc::channel(4);
        Self { directory, snapshot, calls, serving: tokio::spawn(server.serve(requests)) }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    async fn raw(&self, line: &[u8]) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(self.socket()).await.unwrap();
        stream.write_all(line).await.unwrap();
        BufReader::new(stream)
    }
}

fn settings(directory: &tempfile::TempDir) -> Control {
    Control { socket: directory.path().join("control.sock"), group: None }
}

async fn reply(stream: &mut BufReader<UnixStream>) -> Option<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
}

fn code(reply: &Reply) -> Option<ErrorCode> {
    match reply {
        Reply::Error { code, .. } => Some(*code),
        Reply::Progress(_) | Reply::Status(_) | Reply::Preview(_) | Reply::Done { .. } => None,
    }
}

fn step(step: &str, done: u32) -> Progress {
    let job = JobView { job: 1, verb: "restart".to_owned(), done, total: 2, step: String::new() };
    Progress { job, shard: None, generation: None, step: step.to_owned(), at_ms: 5 }
}

const RESTART: &[u8] = b"{\"v\":1,\"command\":\"restart\"}\n";
const WATCH: &[u8] = b"{\"v\":1,\"command\":\"status\",\"watch\":true}\n";

#[tokio::test]
async fn status_is_answered_while_the_loop_takes_nothing() {
    let desk = Desk::open();
    let mut seen = Vec::new();
    let last = call(&desk.socket(), Command::Status { watch: false }, |reply| {
        seen.push(reply.clone());
        Continue(())
    })
    .await
    .unwrap();
    assert!(matches!(&seen[..], [Reply::Status(told), Reply::Done { .. }] if **told == *snapshot(0)), "{seen:?}");
    assert!(matches!(last, Reply::Done { .. }));
}

#[tokio::test]
async fn a_watcher_sees_each_change_and_the_end() {
    let desk = Desk::open();
    let mut watcher = desk.raw(WATCH).await;
    for uptime in 0..3 {
        if uptime > 0 {
            desk.snapshot.send(snapshot(uptime)).unwrap();
        }
        assert_eq!(reply(&mut watcher).await, Some(Reply::Status(Box::new(Snapshot::clone(&snapshot(uptime))))));
    }
    drop(desk.snapshot);
    assert_eq!(code(&reply(&mut watcher).await.unwrap()), Some(ErrorCode::Stopping));
    assert_eq!(reply(&mut watcher).await, None);
}

#[tokio::test]
async fn a_watch_ends_when_its_reader_breaks_off() {
    let desk = Desk::open();
    let last = call(&desk.socket(), Command::Status { watch: true }, |_| Break(())).await.unwrap();
    assert_eq!(last, Reply::Status(Box::new(Snapshot::clone(&snapshot(0)))));
}

#[tokio::test]
async fn a_snapshot_that_has_no_form_in_json_is_told_as_an_error() {
    let desk = Desk::open();
    let mut odd = Snapshot::clone(&snapshot(0));
    let file = PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/\xff"));
    odd.quarantined = vec![Quarantined { pool: PoolName::new("p"), problem: Problem::error("x").at(file, 1) }];
    desk.snapshot.send(Arc::new(odd)).unwrap();
    let last = call(&desk.socket(), Command::Status { watch: false }, |_| Continue(())).await.unwrap();
    assert_eq!(code(&last), Some(ErrorCode::Failed), "{last:?}");
}

#[tokio::test]
async fn a_job_tells_its_steps_then_its_end() {
    let mut desk = Desk::open();
    let socket = desk.socket();
    let selection = Selection { targets: vec!["store/2".to_owned()], pool: None };
    let command = Command::Restart { selection };
    let asked = command.clone();
    let client = tokio::spawn(async move {
        let mut seen = Vec::new();
        let last = call(&socket, asked, |reply| {
            seen.push(reply.clone());
            Continue(())
        })
        .await
        .unwrap();
        (seen, last)
    });
    let got = desk.calls.recv().await.unwrap();
    assert_eq!(got.command, command);
    assert_eq!((got.peer.uid, got.peer.pid), (nix::unistd::geteuid().as_raw(), Some(std::process::id().cast_signed())));
    got.replies.progress(step("starting", 0));
    got.replies.progress(step("done", 1));
    got.replies.done("1 shard restarted", Vec::new());
    let (seen, last) = client.await.unwrap();
    let done = Reply::Done { message: "1 shard restarted".to_owned(), shards: Vec::new() };
    assert_eq!(seen, [Reply::Progress(step("starting", 0)), Reply::Progress(step("done", 1)), done.clone()]);
    assert_eq!(last, done);
}

#[tokio::test]
async fn a_job_goes_on_when_its_client_is_gone() {
    let mut desk = Desk::open();
    let client = desk.raw(RESTART).await;
    let got = desk.calls.recv().await.unwrap();
    drop(client);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !got.replies.is_gone() {
        assert!(tokio::time::Instant::now() < deadline, "the server never noticed");
        got.replies.progress(step("starting", 0));
        tokio::task::yield_now().await;
    }
    got.replies.done("done all the same", Vec::new());
    assert!(call(&desk.socket(), Command::Status { watch: false }, |_| Continue(())).await.is_ok());
}

#[tokio::test]
async fn a_request_that_is_given_up_is_told() {
    let mut desk = Desk::open();
    let mut client = desk.raw(RESTART).await;
    drop(desk.calls.recv().await.unwrap());
    assert_eq!(code(&reply(&mut client).await.unwrap()), Some(ErrorCode::Failed));
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason() {
    let desk = Desk::open();
    for (line, part) in [
        (&b"\n"[..], "cannot be read"),
        (b"hello\n", "cannot be read"),
        (b"{\"v\":1}\n", "cannot be read"),
        (b"{\"v\":1,\"command\":\"destroy\"}\n", "unknown variant `destroy`"),
        (b"{\"v\":1,\"command\":\"park\",\"shard\":\"nothing\"}\n", "names no shard"),
        (b"{\"v\":2,\"command\":\"anything\"}\n", "protocol version 2"),
        (b"\xff\xfe\n", "cannot be read"),
        (&[b'['; 70_000], "longer than 65536 bytes"),
    ] {
        let mut stream = BufReader::new(UnixStream::connect(desk.socket()).await.unwrap());
        // The server may close in the middle of a line that is too long.
        stream.write_all(line).await.ok();
        let refusal = reply(&mut stream).await.unwrap();
        assert!(matches!(&refusal, Reply::Error { code: ErrorCode::Usage, message, .. } if message.contains(part)), "{refusal:?}");
    }
    let mut half = desk.raw(b"{\"v\":1,").await;
    half.shutdown().await.unwrap();
    assert_eq!(code(&reply(&mut half).await.unwrap()), Some(ErrorCode::Usage));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_sent_away() {
    let desk = Desk::open();
    let mut silent = desk.raw(b"{").await;
    let refusal = reply(&mut silent).await.unwrap();
    assert!(matches!(&refusal, Reply::Error { message, .. } if message == "no request within 5 s"), "{refusal:?}");
}

#[tokio::test]
async fn the_seventeenth_client_is_turned_away_and_a_freed_place_is_given_again() {
    let desk = Desk::open();
    let mut watchers = Vec::new();
    for _ in 0..CLIENTS_LIMIT {
        let mut watcher = desk.raw(WATCH).await;
        assert!(reply(&mut watcher).await.is_some());
        watchers.push(watcher);
    }
    for _ in 0..4 {
        let refusal = call(&desk.socket(), Command::Reload, |_| Continue(())).await.unwrap();
        assert_eq!(code(&refusal), Some(ErrorCode::Busy), "{refusal:?}");
    }
    watchers.pop();
    // The server notices when it next has something to say.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while code(&call(&desk.socket(), Command::Status { watch: false }, |_| Continue(())).await.unwrap()).is_some() {
        assert!(tokio::time::Instant::now() < deadline);
        desk.snapshot.send(snapshot(7)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_dropped() {
    let desk = Desk::open();
    desk.snapshot.send(big_snapshot()).unwrap();
    let mut stuck = Vec::new();
    for _ in 0..CLIENTS_LIMIT {
        stuck.push(desk.raw(WATCH).await);
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let answer = call(&desk.socket(), Command::Status { watch: false }, |_| Continue(())).await.unwrap();
        if code(&answer).is_none() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "places are never freed");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut rest = Vec::new();
    stuck[0].read_to_end(&mut rest).await.ok();
    assert!(rest.len() < 2_000_000, "the line was cut off: {} bytes", rest.len());
}

#[tokio::test]
async fn more_requests_than_the_loop_takes_are_refused() {
    let mut desk = Desk::open();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(desk.raw(RESTART).await);
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while desk.calls.len() < 4 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let refusal = reply(&mut desk.raw(RESTART).await).await.unwrap();
    assert_eq!(code(&refusal), Some(ErrorCode::Busy), "{refusal:?}");
    for _ in 0..4 {
        desk.calls.recv().await.unwrap().replies.done("done", Vec::new());
    }
    for client in &mut waiting {
        assert!(matches!(reply(client).await, Some(Reply::Done { .. })));
    }
}

#[tokio::test]
async fn the_last_answer_still_arrives_when_the_loop_has_ended() {
    let mut desk = Desk::open();
    let socket = desk.socket();
    let client = tokio::spawn(async move { call(&socket, Command::Stop, |_| Continue(())).await });
    let got = desk.calls.recv().await.unwrap();
    got.replies.done("stopped", Vec::new());
    drop(desk.calls);
    desk.serving.await.unwrap();
    assert!(matches!(client.await.unwrap(), Ok(Reply::Done { .. })));
    assert!(!desk.directory.path().join("control.sock").exists(), "the path is given up");
    let error = call(&desk.directory.path().join("control.sock"), Command::Reload, |_| Continue(())).await.unwrap_err();
    assert!(matches!(error, ClientError::NoSupervisor { .. }), "{error}");
}

#[tokio::test]
async fn a_stale_path_is_replaced_and_a_live_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    drop(std::os::unix::net::UnixListener::bind(&settings.socket).unwrap());
    let (_sender, published) = watch::channel(snapshot(0));
    let first = Server::bind(&settings, published.clone()).unwrap();
    let second = Server::bind(&settings, published.clone()).unwrap_err();
    assert!(matches!(second, ControlError::Publish { source: PublishError::Live { .. }, .. }), "{second:?}");
    assert!(second.hint().is_some());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    drop(first);
    std::fs::write(&settings.socket, "a file").unwrap();
    let third = Server::bind(&settings, published).unwrap_err();
    assert!(matches!(third, ControlError::Publish { .. }), "{third:?}");
    assert_eq!(std::fs::read_to_string(&settings.socket).unwrap(), "a file");
}

#[tokio::test]
async fn the_file_admits_root_and_the_control_group_only() {
    let directory = tempfile::tempdir().unwrap();
    let (_sender, published) = watch::channel(snapshot(0));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let mut settings = Control { socket: directory.path().join("made/here/control.sock"), group: None };
    let alone = Server::bind(&settings, published.clone()).unwrap();
    assert_eq!(mode(&settings.socket), 0o600);
    drop(alone);
    settings.group = Some("daemon".to_owned());
    let grouped = Server::bind(&settings, published.clone()).unwrap();
    assert_eq!((mode(&settings.socket), std::fs::metadata(&settings.socket).unwrap().gid()), (0o660, 1));
    drop(grouped);
    settings.group = Some("no-such-group".to_owned());
    assert!(matches!(Server::bind(&settings, published.clone()).unwrap_err(), ControlError::Group(_)));
    let open = directory.path().join("open");
    DirBuilder::new().mode(0o777).create(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let error = Server::bind(&Control { socket: open.join("control.sock"), group: None }, published).unwrap_err();
    assert!(matches!(error, ControlError::Unsafe { mode: 0o777, .. }), "{error}");
}

#[test]
fn only_root_and_the_supervisors_user_may_change_anything() {
    let read = Command::Status { watch: true };
    for (uid, own, command, allowed) in [
        (0, 0, &Command::Stop, true),
        (0, 1000, &Command::Stop, true),
        (1000, 1000, &Command::Stop, true),
        (1000, 0, &Command::Stop, false),
        (1001, 1000, &Command::Reload, false),
        (1000, 0, &read, true),
        (1001, 1000, &read, true),
    ] {
        assert_eq!(permits(uid, own, command), allowed, "{uid} {own} {command:?}");
    }
}
