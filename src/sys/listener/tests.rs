use super::*;
use crate::model::listen::{Access, PathState};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, thread};

const NOBODY: u32 = 65_534;

fn sandbox() -> tempfile::TempDir {
    let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    sandbox
}

fn access(mode: u32) -> Access {
    Access { mode, ..Access::default() }
}

fn bind(public: &Path, suffix: &str) -> Listener {
    bind_unix(public, suffix, &access(0o660), 511).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn accept(listener: &Listener) -> OwnedFd {
    rustix::net::accept_with(&*listener.fd, rustix::net::SocketFlags::CLOEXEC).unwrap()
}

/// Tells whether connecting to `path` reaches `listener`.
fn reaches(path: &Path, listener: &Listener) -> bool {
    let Ok(mut client) = UnixStream::connect(path) else { return false };
    client.write_all(b"x").unwrap();
    let mut ready = [rustix::event::PollFd::new(&*listener.fd, rustix::event::PollFlags::IN)];
    if rustix::event::poll(&mut ready, Some(&rustix::event::Timespec::default())).unwrap() == 0 {
        return false;
    }
    accept(listener);
    true
}

/// Waits until nobody holds the socket: a child that another test is just starting has it until exec.
fn wait_until_stale(path: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while examine(path).unwrap() != PathState::Stale {
        assert!(std::time::Instant::now() < deadline, "{} is still held", path.display());
        thread::yield_now();
    }
}

#[test]
fn a_bound_socket_is_beside_its_path_with_its_access_and_blocking() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let wanted = Access { uid: Some(33), gid: Some(NOBODY), mode: 0o620, ..Access::default() };
    let listener = bind_unix(&public, ".g7", &wanted, 511).unwrap();
    let temporary = sandbox.path().join("www.sock.g7");
    let file = fs::symlink_metadata(&temporary).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!((file.uid(), file.gid(), mode(&temporary)), (33, NOBODY, 0o620));
    assert_eq!(listener.bound, temporary.to_str().unwrap());
    assert_eq!(listener.file_id(), Some(FileId { device: file.dev(), inode: file.ino() }));
    assert!(!rustix::fs::fcntl_getfl(&*listener.fd).unwrap().contains(OFlags::NONBLOCK), "P6");
    assert!(rustix::io::fcntl_getfd(&*listener.fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(examine(&public).unwrap(), PathState::Absent);
    assert!(reaches(&temporary, &listener));
    let waiting = [rustix::event::PollFd::new(&*listener.fd, rustix::event::PollFlags::IN)];
    assert_eq!(
        rustix::event::poll(&mut waiting.clone(), Some(&rustix::event::Timespec::default())).unwrap(),
        0,
        "the probe was left in the queue"
    );
}

#[test]
fn the_mode_is_exact_whatever_it_is() {
    let sandbox = sandbox();
    for wanted in [0o600, 0o660, 0o666, 0o777, 0o000] {
        let listener = bind_unix(&sandbox.path().join(format!("{wanted:o}.sock")), ".g1", &access(wanted), 5).unwrap();
        assert_eq!(mode(&sandbox.path().join(format!("{wanted:o}.sock.g1"))), wanted);
        listener.discard().unwrap();
    }
}

#[tokio::test]
async fn an_access_list_lets_its_users_in_and_leaves_the_owner() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let wanted = Access { uid: Some(33), gid: Some(33), mode: 0o600, acl_uids: vec![NOBODY], acl_gids: vec![100] };
    let _listener = bind_unix(&public, ".g1", &wanted, 5).unwrap();
    let text = crate::sys::acl::tests::getfacl(&sandbox.path().join("www.sock.g1")).await;
    assert_eq!(text, "user::rw-\nuser:65534:rw-\ngroup::---\ngroup:100:rw-\nmask::rw-\nother::---");
    assert_eq!(fs::metadata(sandbox.path().join("www.sock.g1")).unwrap().uid(), 0, "php-fpm ignores owner with a list");
}

#[test]
fn a_published_socket_is_reached_and_the_next_one_takes_over() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let first = bind(&public, ".g1");
    publish(&first, &public, Expected::Free).unwrap();
    assert!(reaches(&public, &first));
    assert_eq!(examine(&sandbox.path().join("www.sock.g1")).unwrap(), PathState::Absent);
    publish(&first, &public, Expected::Free).unwrap();

    let second = bind(&public, ".g2");
    let refused = publish(&second, &public, Expected::Free).unwrap_err();
    let PublishError::Live { holder: Some(holder), .. } = &refused else { panic!("{refused}") };
    assert_eq!(holder.pid, i32::try_from(std::process::id()).unwrap());
    accept(&first);
    assert!(reaches(&public, &first) && reaches(&sandbox.path().join("www.sock.g2"), &second), "a refusal changes nothing");

    publish(&second, &public, Expected::Ours(first.file_id().unwrap())).unwrap();
    assert!(reaches(&public, &second));
    assert!(still_ours(&public, second.file_id().unwrap()) && !still_ours(&public, first.file_id().unwrap()));
    assert!(!unpublish(&public, first.file_id().unwrap()).unwrap());
    assert!(unpublish(&public, second.file_id().unwrap()).unwrap());
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 0);
}

#[test]
fn only_what_is_free_is_taken() {
    let sandbox = sandbox();
    let make = |name: &str| sandbox.path().join(name);
    drop(UnixListener::bind(make("stale")).unwrap());
    wait_until_stale(&make("stale"));
    let _live = UnixListener::bind(make("live")).unwrap();
    fs::write(make("regular"), "keep").unwrap();
    fs::create_dir(make("directory")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, make("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    let other = |what| PathState::Other { what };
    for (name, state) in [
        ("absent", PathState::Absent),
        ("stale", PathState::Stale),
        ("live", PathState::Live),
        ("regular", other("regular file")),
        ("directory", other("directory")),
        ("fifo", other("FIFO")),
        ("missing/absent", PathState::Absent),
    ] {
        assert_eq!(examine(&make(name)).unwrap(), state, "{name}");
    }
    for name in ["absent", "stale"] {
        let listener = bind(&make(name), ".g1");
        publish(&listener, &make(name), Expected::Free).unwrap();
        assert!(reaches(&make(name), &listener), "{name}");
    }
    for name in ["live", "regular", "directory", "fifo"] {
        let before = fs::symlink_metadata(make(name)).unwrap().ino();
        let listener = bind(&make(name), ".g1");
        let file = file_id(&make(name)).unwrap().unwrap();
        let error = publish(&listener, &make(name), Expected::Free).unwrap_err();
        assert!(matches!((name, &error), ("live", PublishError::Live { .. }) | (_, PublishError::NotSocket { .. })), "{name}: {error}");
        if name != "live" {
            assert!(publish(&listener, &make(name), Expected::Ours(file)).is_err(), "{name}: never ours");
        }
        assert_eq!(fs::symlink_metadata(make(name)).unwrap().ino(), before, "{name}");
        listener.discard().unwrap();
        assert_eq!(examine(&make(&format!("{name}.g1"))).unwrap(), PathState::Absent);
    }
    assert_eq!(fs::read_to_string(make("regular")).unwrap(), "keep");
}

#[test]
fn a_path_that_is_a_link_of_root_is_published_where_it_leads() {
    let sandbox = sandbox();
    fs::create_dir(sandbox.path().join("real")).unwrap();
    let link = sandbox.path().join("www.sock");
    symlink("real/www-8.2.sock", &link).unwrap();
    let listener = bind(&link, ".g1");
    publish(&listener, &link, Expected::Free).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
    assert!(reaches(&link, &listener) && reaches(&sandbox.path().join("real/www-8.2.sock"), &listener));
}

#[test]
fn the_owner_of_a_directory_leads_nobody_astray() {
    let sandbox = sandbox();
    let home = sandbox.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let precious = sandbox.path().join("precious");
    fs::write(&precious, "keep").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();

    // The public path, the temporary name and a directory as links of the user's.
    for name in ["www.sock", "www2.sock.g1"] {
        symlink(&precious, home.join(name)).unwrap();
        std::os::unix::fs::lchown(home.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    symlink(sandbox.path(), home.join("run")).unwrap();
    std::os::unix::fs::lchown(home.join("run"), Some(NOBODY), Some(NOBODY)).unwrap();
    let failed = |path: &Path| bind_unix(path, ".g1", &access(0o666), 5).unwrap_err();
    assert!(matches!(
        failed(&home.join("www.sock")),
        BindError::Directory { source: crate::sys::directory::DirectoryError::Link { .. }, .. }
    ));
    assert!(matches!(failed(&home.join("www2.sock")), BindError::NotSocket { what: "symbolic link", .. }));
    assert!(matches!(failed(&home.join("run/www.sock")), BindError::Directory { .. }));

    // The link appears after the bind.
    let listener = bind(&home.join("www3.sock"), ".g1");
    symlink(&precious, home.join("www3.sock")).unwrap();
    std::os::unix::fs::lchown(home.join("www3.sock"), Some(NOBODY), Some(NOBODY)).unwrap();
    assert!(matches!(publish(&listener, &home.join("www3.sock"), Expected::Free), Err(PublishError::Directory { .. })));
    assert_eq!((fs::read_to_string(&precious).unwrap().as_str(), mode(&precious)), ("keep", 0o600));
    assert_eq!(fs::metadata(&precious).unwrap().uid(), 0);
}

#[test]
fn a_socket_that_was_swapped_is_not_published() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let listener = bind(&public, ".g1");
    fs::remove_file(sandbox.path().join("www.sock.g1")).unwrap();
    let _other = UnixListener::bind(sandbox.path().join("www.sock.g1")).unwrap();
    assert!(matches!(publish(&listener, &public, Expected::Free), Err(PublishError::Vanished { .. })));
    assert_eq!(examine(&public).unwrap(), PathState::Absent);
    listener.discard().unwrap();
    assert_eq!(examine(&sandbox.path().join("www.sock.g1")).unwrap(), PathState::Live, "somebody else's file stays");
}

#[test]
fn leftovers_of_an_earlier_run_are_removed_if_stale() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    drop(bind(&public, ".g1"));
    wait_until_stale(&sandbox.path().join("www.sock.g1"));
    let again = bind(&public, ".g1");
    let error = bind_unix(&public, ".g1", &access(0o660), 5).unwrap_err();
    assert!(matches!(error, BindError::Live { holder: Some(_), .. }), "{error}");
    accept(&again);
    assert!(reaches(&sandbox.path().join("www.sock.g1"), &again));
    fs::write(sandbox.path().join("www.sock.g2"), "").unwrap();
    assert!(matches!(bind_unix(&public, ".g2", &access(0o660), 5), Err(BindError::NotSocket { what: "regular file", .. })));
}

#[test]
fn stale_leftovers_are_swept_and_nothing_else() {
    let sandbox = sandbox();
    for name in ["www.sock.g3", ".polyfpm-1f", "theirs.sock"] {
        drop(UnixListener::bind(sandbox.path().join(name)).unwrap());
        wait_until_stale(&sandbox.path().join(name));
    }
    let _live = UnixListener::bind(sandbox.path().join("www.sock.g4")).unwrap();
    fs::write(sandbox.path().join("www.sock.g5"), "").unwrap();
    assert_eq!(sweep(sandbox.path(), |name| name.starts_with("www.sock.g")).unwrap(), 2);
    let mut left: Vec<_> = fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["theirs.sock", "www.sock.g4", "www.sock.g5"]);
}

#[test]
fn a_path_may_have_107_bytes_and_not_108() {
    let sandbox = sandbox();
    let fill = |length: usize| {
        let room = length - sandbox.path().as_os_str().len() - 1;
        sandbox.path().join("x".repeat(room))
    };
    let public = fill(107);
    let listener = bind(&public, ".g12345");
    assert!(listener.bound.starts_with("/proc/self/fd/"), "{}", listener.bound);
    publish(&listener, &public, Expected::Free).unwrap();
    assert!(reaches(&public, &listener));
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 1);
    let error = bind_unix(&fill(108), ".g1", &access(0o660), 5).unwrap_err();
    assert!(matches!(error, BindError::TooLong { length: 108, .. }), "{error}");
}

#[test]
fn below_a_directory_that_others_own_sockets_are_bound_through_a_handle() {
    let sandbox = sandbox();
    let home = sandbox.path().join("home");
    fs::create_dir_all(home.join("run")).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let public = home.join("run/www.sock");
    let listeners: Vec<Listener> = (0..3).map(|n| bind(&public, &format!(".g{n}"))).collect();
    assert!(listeners.iter().all(|listener| listener.bound.starts_with("/proc/self/fd/")));
    assert!(
        listeners.iter().all(|one| listeners.iter().filter(|other| other.bound == one.bound).count() == 1),
        "names tell generations apart (P26)"
    );
    publish(&listeners[2], &public, Expected::Free).unwrap();
    assert!(reaches(&public, &listeners[2]));
}

#[test]
fn a_dead_shards_path_is_lent_to_a_sibling_and_taken_back() {
    let sandbox = sandbox();
    let (one, two) = (sandbox.path().join("www.sock"), sandbox.path().join("shards/www.2.sock"));
    fs::create_dir(sandbox.path().join("shards")).unwrap();
    let (first, second) = (bind(&one, ".g1"), bind(&two, ".g1"));
    let (first_file, second_file) = (first.file_id().unwrap(), second.file_id().unwrap());
    publish(&first, &one, Expected::Free).unwrap();
    publish(&second, &two, Expected::Free).unwrap();

    assert!(matches!(lend(&one, second_file, &two, Expected::Ours(second_file)), Err(PublishError::Vanished { .. })));
    assert!(matches!(lend(&one, first_file, &two, Expected::Free), Err(PublishError::Live { .. })));
    accept(&second);
    assert!(reaches(&two, &second));

    lend(&one, first_file, &two, Expected::Ours(second_file)).unwrap();
    assert!(reaches(&two, &first) && reaches(&one, &first));
    lend(&one, first_file, &two, Expected::Free).unwrap();
    assert_eq!(fs::read_dir(sandbox.path().join("shards")).unwrap().count(), 1, "nothing is left beside the path");

    let next = bind(&two, ".g2");
    publish(&next, &two, Expected::Ours(first_file)).unwrap();
    assert!(reaches(&two, &next) && reaches(&one, &first));
    assert_eq!(fs::symlink_metadata(&one).unwrap().nlink(), 1);
}

#[test]
fn lending_across_filesystems_says_so() {
    let (here, there) = (sandbox(), tempfile::Builder::new().prefix("pf").tempdir_in("/dev/shm").unwrap());
    let (one, two) = (here.path().join("a.sock"), there.path().join("b.sock"));
    let listener = bind(&one, ".g1");
    publish(&listener, &one, Expected::Free).unwrap();
    let error = lend(&one, listener.file_id().unwrap(), &two, Expected::Free).unwrap_err();
    assert!(matches!(error, PublishError::OtherFilesystem { .. }), "{error}");
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 0);
}

#[test]
fn clients_see_no_refusal_while_generations_change() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let current = bind(&public, ".g0");
    publish(&current, &public, Expected::Free).unwrap();
    let (over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let serve = |listener: &Listener| {
            let fd = Arc::clone(&listener.fd);
            // An old generation goes on as long as connections come: one that had found the old file before the rename may
            // still be on its way.
            scope.spawn(move || {
                loop {
                    let mut stream = UnixStream::from(rustix::net::accept_with(&*fd, rustix::net::SocketFlags::CLOEXEC).unwrap());
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    if byte == *b"q" {
                        return;
                    }
                    stream.write_all(b"y").unwrap();
                }
            });
        };
        serve(&current);
        let client = || {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut stream = UnixStream::connect(&public).expect("no client is refused");
                    stream.write_all(b"x").unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("every client is served");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients: Vec<_> = (0..4).map(|_| client()).collect();
        let mut current = current;
        for generation in 1..=50 {
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + 20 {
                thread::yield_now();
            }
            let next = bind(&public, &format!(".g{generation}"));
            serve(&next);
            let kept = sandbox.path().join(format!("kept{generation}"));
            fs::hard_link(&public, &kept).unwrap();
            publish(&next, &public, Expected::Ours(current.file_id().unwrap())).unwrap();
            current = next;
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        UnixStream::connect(&public).unwrap().write_all(b"q").unwrap();
        for generation in 1..=50 {
            UnixStream::connect(sandbox.path().join(format!("kept{generation}"))).unwrap().write_all(b"q").unwrap();
        }
    });
    assert!(served.load(Ordering::Relaxed) >= 1000);
}

#[test]
fn thousands_of_listeners_are_made_and_published() {
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(10_000), maximum: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum },
    )
    .unwrap();
    let sandbox = sandbox();
    let listeners: Vec<Listener> = (0..4000)
        .map(|n| {
            let public = sandbox.path().join(format!("{n}.sock"));
            let listener = bind(&public, ".g1");
            publish(&listener, &public, Expected::Free).unwrap();
            listener
        })
        .collect();
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 4000);
    assert!(reaches(&sandbox.path().join("3999.sock"), &listeners[3999]));
}

#[test]
fn a_tcp_address_is_ours_alone_until_we_share_it() {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let first = bind_tcp(loopback, 128, Joining::First).unwrap();
    let Place::Tcp { address } = first.place else { panic!("not TCP") };
    assert_eq!(first.bound, address.to_string());
    let error = bind_tcp(address, 128, Joining::First).unwrap_err();
    let BindError::AddressInUse { holder: Some(holder), .. } = &error else { panic!("{error}") };
    assert_eq!(holder.pid, i32::try_from(std::process::id()).unwrap());
    assert!(error.to_string().contains("is in use by "), "{error}");
    let _second = bind_tcp(address, 128, Joining::Further).unwrap();

    let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = foreign.local_addr().unwrap();
    for joining in [Joining::First, Joining::Further] {
        assert!(matches!(bind_tcp(address, 128, joining), Err(BindError::AddressInUse { .. })), "{joining:?}");
    }
}

#[test]
fn the_ipv6_wildcard_takes_ipv4_too() {
    let Ok(listener) = bind_tcp("[::]:0".parse().unwrap(), 128, Joining::First) else {
        assert!(!Path::new("/proc/net/if_inet6").exists(), "IPv6 is there and cannot be used");
        return;
    };
    let Place::Tcp { address } = listener.place else { panic!("not TCP") };
    TcpStream::connect(("127.0.0.1", address.port())).unwrap();
    assert!(listener.bound.starts_with("[::]:"), "{}", listener.bound);
}

#[test]
fn a_socket_of_another_process_is_adopted_and_made_blocking() {
    let sandbox = sandbox();
    let path = sandbox.path().join("www.sock");
    let foreign = UnixListener::bind(&path).unwrap();
    foreign.set_nonblocking(true).unwrap();
    let file = file_id(&path).unwrap().unwrap();
    let adopted = Listener::adopt(OwnedFd::from(foreign.try_clone().unwrap()), Some((&path, file))).unwrap();
    assert_eq!((adopted.bound.as_str(), adopted.file_id()), (path.to_str().unwrap(), Some(file)));
    assert!(!rustix::fs::fcntl_getfl(&foreign).unwrap().contains(OFlags::NONBLOCK), "P6: the flag is shared");
    set_backlog(&adopted, 65_535).unwrap();
    let next = bind(&path, ".g1");
    publish(&next, &path, Expected::Ours(file)).unwrap();
    assert!(reaches(&path, &next));
    let (one, _other) = UnixStream::pair().unwrap();
    assert!(Listener::adopt(OwnedFd::from(one), Some((&path, file))).is_err());
}

#[test]
fn the_system_limit_is_read() {
    let text = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    assert_eq!(somaxconn().to_string(), text.trim());
}
