//! Against a real php-fpm, and against peers that break every rule.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::text::heartbeat::{Notice, read_notice};

const SECOND: Duration = Duration::from_secs(1);
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// A php-fpm of its own, gone with the value.
struct Fpm {
    directory: tempfile::TempDir,
    notices: UnixDatagram,
    master: Child,
}

impl Fpm {
    fn start(pool_lines: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let config = format!(
            "[global]\nerror_log={}\ndaemonize=no\nsystemd_interval=1\n[www]\nuser=root\ngroup=root\nlisten={}\npm=static\npm.max_children=2\n\
             pm.status_path=/polyfpm-status\nping.path=/polyfpm-ping\npm.status_listen={}\n{pool_lines}\n",
            at("error.log"),
            at("public.sock"),
            at("status.sock"),
        );
        std::fs::write(at("fpm.conf"), config).unwrap();
        let notices = UnixDatagram::bind(at("notify")).unwrap();
        notices.set_read_timeout(Some(TEN_SECONDS)).unwrap();
        let program = std::env::var("PHP_FPM").unwrap_or_else(|_| "/usr/sbin/php-fpm8.2".to_owned());
        let master = Command::new(program)
            .args(["-F", "-R", "-y", &at("fpm.conf")])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("NOTIFY_SOCKET", at("notify"))
            .stdin(Stdio::null())
            .stderr(Stdio::from(OwnedFd::from(std::fs::File::create(at("stderr")).unwrap())))
            .spawn()
            .unwrap();
        let fpm = Self { directory, notices, master };
        assert!(fpm.notice().ready, "{}", std::fs::read_to_string(fpm.path("stderr")).unwrap());
        fpm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self, name: &str) -> Endpoint {
        Endpoint::Unix(self.path(name))
    }

    fn notice(&self) -> Notice {
        let mut buffer = [0; 4096];
        let count = self.notices.recv(&mut buffer).unwrap();
        read_notice(&buffer[..count])
    }

    fn script(&self, name: &str, code: &str) -> PathBuf {
        std::fs::write(self.path(name), code).unwrap();
        self.path(name)
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        kill(Pid::from_raw(self.master.id().cast_signed()), Signal::SIGTERM).ok();
        nix::sys::wait::waitpid(Pid::from_raw(self.master.id().cast_signed()), None).ok();
    }
}

fn warmup(script: &Path, uri: &str) -> Warmup {
    Warmup { pool: "www".to_owned(), script: script.to_owned(), uri: uri.to_owned(), expect: 200, timeout: TEN_SECONDS }
}

#[tokio::test]
async fn ping_and_status_answer_on_the_private_socket() {
    let fpm = Fpm::start("");
    let target = fpm.socket("status.sock");
    ping(&target, "/polyfpm-ping", "pong", TEN_SECONDS).await.unwrap();
    let wrong = ping(&target, "/polyfpm-ping", "other", TEN_SECONDS).await.unwrap_err();
    assert!(matches!(&wrong, FastCgiError::Unexpected { status: 200, body, .. } if body == "pong"), "{wrong}");
    let status = pool_status(&target, "/polyfpm-status", StatusDetail::Brief, TEN_SECONDS).await.unwrap();
    assert_eq!((status.pool.as_str(), status.active, status.accepted), ("www", Some(0), Some(0)));
    assert!(status.idle.is_some_and(|idle| idle <= 2), "{status:?}: the other may not have reported yet");
    let absent = pool_status(&target, "/absent", StatusDetail::Brief, TEN_SECONDS).await.unwrap_err();
    assert!(matches!(absent, FastCgiError::Unexpected { status: 404, .. }), "{absent}");
}

#[tokio::test]
async fn probes_are_seen_in_the_heartbeat_and_not_in_the_pools_own_counter() {
    let fpm = Fpm::start("");
    for _ in 0..3 {
        ping(&fpm.socket("status.sock"), "/polyfpm-ping", "pong", TEN_SECONDS).await.unwrap();
    }
    // The worker counts a request when it is done with it, which can be after the answer is here.
    let counted = (0..10).find_map(|_| fpm.notice().heartbeat.filter(|beat| beat.requests == 3));
    let beat = counted.expect("a heartbeat that counts three requests");
    // Two workers, and one or two of the small pool behind the status socket.
    assert!(beat.active == 0 && (3..=4).contains(&beat.idle), "{beat:?}");
    let status = pool_status(&fpm.socket("status.sock"), "/polyfpm-status", StatusDetail::Brief, TEN_SECONDS).await.unwrap();
    assert_eq!(status.accepted, Some(0));
}

#[tokio::test]
async fn status_answers_while_every_worker_is_busy() {
    let fpm = Fpm::start("");
    let gate = fpm.path("gate");
    let wait = fpm.script(
        "wait.php",
        &format!("<?php while (!file_exists('{}')) {{ usleep(10000); clearstatcache(); }} echo 'done';", gate.display()),
    );
    let public = fpm.socket("public.sock");
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let (public, wait) = (public.clone(), wait.clone());
            tokio::spawn(async move { warm_up(&public, &warmup(&wait, "/wait.php?n=1")).await })
        })
        .collect();
    let deadline = tokio::time::Instant::now() + TEN_SECONDS;
    loop {
        let status = pool_status(&fpm.socket("status.sock"), "/polyfpm-status", StatusDetail::Full, SECOND).await.unwrap();
        let workers = status.workers.as_deref().unwrap_or_default();
        let waits = |worker: &&crate::text::status::WorkerStatus| {
            worker.state == "Running" && worker.uri == "/wait.php?n=1" && worker.script == wait.display().to_string()
        };
        if status.in_requests() == Some(2) && workers.iter().filter(waits).count() == 2 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{status:?}");
    }
    std::fs::write(&gate, "").unwrap();
    for request in slow {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_warm_up_runs_the_script_as_a_web_server_would() {
    let fpm = Fpm::start("");
    let target = fpm.socket("status.sock");
    let script = fpm.script(
        "index.php",
        "<?php $ok = $_SERVER['REQUEST_URI'] === '/health?warm=1' && $_GET['warm'] === '1' && $_SERVER['SCRIPT_NAME'] === '/index.php'
        && $_SERVER['DOCUMENT_ROOT'] === __DIR__ && $_SERVER['SCRIPT_FILENAME'] === __FILE__ && $_SERVER['REMOTE_ADDR'] === '127.0.0.1'
        && str_starts_with($_SERVER['SERVER_SOFTWARE'], 'polyfpm/') && $_SERVER['PHP_SELF'] === '/index.php';
        if (!$ok) { http_response_code(500); var_dump($_SERVER); }",
    );
    warm_up(&target, &warmup(&script, "/health?warm=1")).await.unwrap();
}

#[tokio::test]
async fn a_failed_warm_up_says_what_php_said() {
    let fpm = Fpm::start("php_admin_flag[log_errors]=on\nphp_admin_value[error_log]=\nphp_admin_flag[display_errors]=off");
    let target = fpm.socket("status.sock");
    let script = fpm.script("broken.php", "<?php echo \"half\\n\"; error_log('the cache is cold'); http_response_code(503);");
    let error = warm_up(&target, &warmup(&script, "/")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("answered 503 instead of 200: 'half'") && text.contains("the cache is cold"), "{text}");
    let absent = warm_up(&target, &warmup(&fpm.path("absent.php"), "/")).await.unwrap_err();
    assert!(matches!(&absent, WarmupError::Status { status: 404, body, .. } if body == "File not found."), "{absent}");
    let mut endless = warmup(&fpm.script("endless.php", "<?php while (true) { usleep(1000); }"), "/");
    endless.timeout = Duration::from_millis(300);
    let error = warm_up(&target, &endless).await.unwrap_err();
    assert!(matches!(error, WarmupError::Request { source: FastCgiError::Timeout { .. }, .. }), "{error}");
}

#[tokio::test]
async fn big_requests_and_answers_arrive_whole() {
    let fpm = Fpm::start("");
    let script = fpm.script("echo.php", "<?php echo strrev(file_get_contents('php://input'));");
    let body: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(1_000_003).collect();
    let params = Params::new()
        .with("REQUEST_METHOD", "POST")
        .with("SCRIPT_FILENAME", script.display().to_string())
        .with("SCRIPT_NAME", "/echo.php")
        .with("CONTENT_TYPE", "application/octet-stream")
        .with("CONTENT_LENGTH", body.len().to_string());
    let limits = RequestLimits { total: TEN_SECONDS, response_bytes: 2_000_000 };
    let response = request(&fpm.socket("public.sock"), &params, &body, limits).await.unwrap();
    assert!(response.body.iter().rev().eq(body.iter()), "{} bytes", response.body.len());
    let small = RequestLimits { total: TEN_SECONDS, response_bytes: 100_000 };
    let error = request(&fpm.socket("public.sock"), &params, &body, small).await.unwrap_err();
    assert!(matches!(error, FastCgiError::Malformed { source: DecodeError::TooLong { limit_bytes: 100_000 }, .. }), "{error}");
}

/// What a bad peer does once a connection is there.
#[derive(Debug, Clone)]
enum Peer {
    /// Sends these bytes and closes.
    Says(Vec<u8>),
    /// Sends these bytes and keeps the connection open.
    Holds(Vec<u8>),
    /// Sends these bytes again and again.
    Repeats(Vec<u8>),
    /// Sends these bytes one by one, for ever.
    Drips,
}

async fn misbehave<S: AsyncRead + AsyncWrite + Unpin>(peer: Peer, mut stream: S) {
    match peer {
        Peer::Says(bytes) => {
            // Reads first: closing with unread bytes would turn what was sent into a reset.
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0);
            stream.write_all(&bytes).await.ok();
        }
        Peer::Holds(bytes) => {
            stream.write_all(&bytes).await.ok();
            std::future::pending::<()>().await;
        }
        Peer::Repeats(bytes) => while stream.write_all(&bytes).await.is_ok() {},
        Peer::Drips => {
            while stream.write_all(&[1, 6, 0, 1, 0, 0, 0, 0]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

fn stdout(content: &[u8]) -> Vec<u8> {
    [&[1, 6, 0, 1, 0, u8::try_from(content.len()).unwrap(), 0, 0], content].concat()
}

const END: [u8; 16] = [1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[tokio::test]
async fn every_broken_peer_ends_in_its_own_error() {
    let mut overloaded = END;
    overloaded[12] = 2;
    let whole = [stdout(b"A: b\r\n\r\nbody"), END.to_vec()].concat();
    let cases: Vec<(Peer, &str)> = vec![
        (Peer::Says(Vec::new()), "connection closed after 0 bytes"),
        (Peer::Says(whole[..12].to_vec()), "connection closed after 12 bytes"),
        (Peer::Says(stdout(b"A: b\r\n\r\nbody")), "connection closed after 20 bytes"),
        (Peer::Says(vec![1, 3, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0]), "end record has 4 bytes"),
        (Peer::Says(overloaded.to_vec()), "overloaded"),
        (Peer::Says(vec![9, 6, 0, 1, 0, 0, 0, 0]), "version 9"),
        (Peer::Says(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), "version 72"),
        (Peer::Says(vec![1, 6, 0, 7, 0, 0, 0, 0]), "request 7"),
        (Peer::Says(END.to_vec()), "no header"),
        (Peer::Holds(Vec::new()), "within 300 ms"),
        (Peer::Holds(stdout(b"A: b\r\n\r\nbody")), "within 300 ms"),
        (Peer::Repeats(stdout(&[b'x'; 200])), "longer than 100000 bytes"),
        (Peer::Drips, "within 300 ms"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let limits = RequestLimits { total: Duration::from_millis(300), response_bytes: 100_000 };
    for (number, (peer, expected)) in cases.into_iter().enumerate() {
        let path = directory.path().join(number.to_string());
        let unix = UnixListener::bind(&path).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let targets = [Endpoint::Unix(path), Endpoint::Tcp(tcp.local_addr().unwrap())];
        let (first, second) = (peer.clone(), peer.clone());
        let servers = [
            tokio::spawn(async move { misbehave(first, unix.accept().await.unwrap().0).await }),
            tokio::spawn(async move { misbehave(second, tcp.accept().await.unwrap().0).await }),
        ];
        for target in targets {
            let error = request(&target, &Params::new(), &[], limits).await.unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(format!("{error}: {source}").contains(expected), "{peer:?} over {target}: {error}: {source}");
            assert!(!error.to_string().contains(&source) || source.is_empty(), "the cause is told by source() alone: {error}");
        }
        servers.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test]
async fn an_answer_before_the_body_is_read_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let whole = [stdout(b"Status: 413 Too Long\r\n\r\n"), END.to_vec()].concat();
    let server = tokio::spawn(async move { misbehave(Peer::Holds(whole), listener.accept().await.unwrap().0).await });
    let limits = RequestLimits { total: TEN_SECONDS, response_bytes: 100_000 };
    let response = request(&Endpoint::Unix(path), &Params::new(), &vec![0; 8 << 20], limits).await.unwrap();
    assert_eq!(response.status, 413);
    server.abort();
}

#[tokio::test]
async fn nobody_there_and_a_full_queue_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let absent = Endpoint::Unix(directory.path().join("absent"));
    let error = ping(&absent, "/p", "pong", TEN_SECONDS).await.unwrap_err();
    assert!(matches!(&error, FastCgiError::Connect { source, .. } if source.kind() == std::io::ErrorKind::NotFound), "{error}");
    assert!(error.to_string().starts_with("connect to /"), "{error}");
}
