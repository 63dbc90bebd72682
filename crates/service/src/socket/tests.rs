//! Tests of the control socket: answers, garbage, slow and idle clients.

use std::os::unix::fs::symlink;
use std::sync::mpsc;
use std::thread;

use tempfile::TempDir;

use super::*;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("run/control.sock")
}

/// Answers until a client is done.
fn serve<T: Send>(
    control: &mut Control,
    take: &mut dyn FnMut(ServiceRequest, ClientId) -> Option<ServiceResponse>,
    client: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let client = scope.spawn(client);
        crate::until::until("the client is done", || {
            control.poll(take);
            client.is_finished()
        });
        client.join().expect("the client")
    })
}

fn refused(_: ServiceRequest, _: ClientId) -> Option<ServiceResponse> {
    Some(Err("no".into()))
}

#[test]
fn what_is_asked_is_answered() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut take = |request: ServiceRequest, _: ClientId| {
        Some(match request {
            ServiceRequest::Dump(Some(pid)) => {
                Err(format!("there is no run of process {pid} \"here\"\n").into())
            }
            other => Ok(format!("{{\"asked\":\"{other}\"}}")),
        })
    };
    let ask = |request| ask(&path, request, Duration::from_secs(20));
    for request in
        [ServiceRequest::Status, ServiceRequest::Dump(None), ServiceRequest::Reload, ServiceRequest::Stop]
    {
        let answer = serve(&mut control, &mut take, || ask(request)).expect("an answer");
        assert_eq!(answer["asked"], request.to_string());
    }
    let error = serve(&mut control, &mut take, || ask(ServiceRequest::Dump(Some(42)))).expect_err("refused");
    assert_eq!(error.to_string(), "there is no run of process 42 \"here\"\n");
    assert!(control.clients.is_empty());
}

#[test]
fn an_answer_may_come_later_and_be_long() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let long = format!("\"{}\"", "x".repeat(3 << 20));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let client = scope.spawn(|| ask(&path, ServiceRequest::Dump(Some(7)), Duration::from_secs(20)));
        let mut left = 3;
        crate::until::until("the client is done", || {
            control.poll(&mut |request, token| {
                assert_eq!(request, ServiceRequest::Dump(Some(7)));
                tell.send(token).expect("we listen");
                None
            });
            if let Ok(token) = told.try_recv() {
                assert!(!control.answer(ClientId(token.0 + 1), &Ok(long.clone())), "nobody else asked");
                // Other clients are served meanwhile.
                left -= 1;
                assert!(control.answer(token, &Ok(long.clone())));
                assert!(!control.answer(token, &Ok(long.clone())), "it has been answered");
            }
            client.is_finished()
        });
        let answer = client.join().expect("the client").expect("an answer");
        assert_eq!((answer.as_str().map(str::len), left), (Some(3 << 20), 2));
    });
}

#[test]
fn who_sends_nothing_more_still_gets_an_answer() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let ask = |line: &[u8]| {
        let mut stream = connect(&path);
        stream.write_all(line).expect("it is taken");
        stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        stream
    };
    let (waits, watches, gone) = (ask(b"dump\n"), ask(b"watch\n"), ask(b"dump\n"));
    let mut asked = Vec::new();
    let mut turn = |control: &mut Control| {
        control.poll(&mut |request, token| {
            asked.push((request, token));
            None
        });
        asked.clone()
    };
    let asked = (0..3).map(|_| turn(&mut control)).last().expect("three turns");
    assert_eq!(asked.len(), 3);
    assert!(control.watch(asked[1].1, "{}"));
    control.show("{\"event\":\"x\"}");
    // Nothing is to be read of them any longer, which must not end a wait.
    let mut waited = Vec::new();
    control.fds(&mut |_, events| waited.push(events));
    assert_eq!(waited[1..], [PollFlags::empty(); 3]);
    drop(gone);
    turn(&mut control);
    assert_eq!(control.clients.len(), 2);
    assert!(control.answer(asked[0].1, &Ok("7".into())) && !control.answer(asked[2].1, &Ok("7".into())));
    turn(&mut control);
    assert_eq!(said(&waits), "{\"ok\":true,\"answer\":7}\n");
    let mut lines = [0; 16];
    (&watches).read_exact(&mut lines).expect("both events");
    assert_eq!(&lines, b"{}\n{\"event\":\"x\"}".as_slice());
    drop(watches);
    turn(&mut control);
    assert!(control.clients.is_empty());
}

/// Connects without asking.
fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    stream
}

fn said(mut stream: &UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a text");
    text
}

#[test]
fn garbage_and_long_lines_get_an_error() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let long = [b'x'; 4096];
    let says: [(&[u8], &str); 6] = [
        (b"\xff\xfe\x1b[31m\"\n", ": give status, dump [PID], watch, reload or stop"),
        (b"\n", "unknown request ''"),
        (b"dump -1\n", "'-1' is not a process ID"),
        (b"dump 1 2\n", "unknown request"),
        (b"status now\n", "unknown request"),
        (&long, "a line may have at most 128 bytes"),
    ];
    for (line, says) in says {
        let answer = serve(&mut control, &mut |_, _| panic!("nothing was asked"), || {
            let mut stream = connect(&path);
            // A line that is too long may be refused while it is sent.
            let _ = stream.write_all(line);
            let mut answer = [0; 512];
            let n = stream.read(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer[..n]).into_owned()
        });
        let json: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(json["error"].as_str().is_some_and(|e| e.contains(says)), "{answer}");
        assert_eq!(json["ok"], false);
    }
    // A line in pieces, and with the line ending of other systems.
    let answer = serve(&mut control, &mut refused, || {
        let mut stream = connect(&path);
        for byte in b"dump 12\r\n" {
            stream.write_all(&[*byte]).expect("it is taken");
        }
        said(&stream)
    });
    assert_eq!(answer, "{\"ok\":false,\"error\":\"no\"}\n");
}

#[test]
fn who_is_slow_or_gone_is_let_go_and_others_get_their_turn() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let idle: Vec<UnixStream> = (0..CLIENTS + 1).map(|_| connect(&path)).collect();
    control.poll(&mut refused);
    assert_eq!(control.clients.len(), CLIENTS);
    let mut listened = 0;
    control.fds(&mut |_, events| listened += usize::from(events == PollFlags::IN));
    assert_eq!(listened, CLIENTS, "nobody else is listened to");
    // When one closes its connection, the last gets in.
    let mut idle = idle.into_iter();
    drop(idle.next());
    control.poll(&mut refused);
    control.poll(&mut refused);
    assert_eq!(
        (control.clients.len(), control.clients.last().map(|c| c.token)),
        (CLIENTS, Some(CLIENTS as u64))
    );
    // All of them have used up their time.
    for client in &mut control.clients {
        client.until = Instant::now() - Duration::from_millis(1);
    }
    control.poll(&mut refused);
    assert!(control.clients.is_empty());
    assert!(idle.all(|stream| said(&stream).is_empty()));
    // One does not take its answer, another waits for one that does not come.
    let (mut slow, mut waits, mut gone) = (connect(&path), connect(&path), connect(&path));
    slow.write_all(b"status\n").expect("it is taken");
    waits.write_all(b"dump\n").expect("it is taken");
    gone.write_all(b"dump\n").expect("it is taken");
    let mut take = |request: ServiceRequest, _: ClientId| {
        (request == ServiceRequest::Status).then(|| Ok(format!("\"{}\"", "x".repeat(8 << 20))))
    };
    control.poll(&mut take);
    assert_eq!(control.clients.len(), 3);
    drop(gone);
    control.poll(&mut take);
    assert_eq!(control.clients.len(), 2);
    for client in &mut control.clients {
        client.until = Instant::now() - Duration::from_millis(1);
    }
    control.poll(&mut take);
    assert!(control.clients.is_empty());
    assert!(said(&waits).contains("no answer in time"));
}

#[test]
fn a_dead_services_socket_is_replaced_and_a_live_ones_is_not() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let second = serve(&mut control, &mut refused, || Control::bind(&path).map(drop));
    let second = second.expect_err("there is one").to_string();
    assert!(
        second.contains("a service already answers at") && second.contains("'profinfer stop'"),
        "{second}"
    );
    // As left by a killed process: nobody listens.
    let dead = dir.path().join("run/dead.sock");
    drop(UnixListener::bind(&dead).expect("a socket"));
    assert!(fs::symlink_metadata(&dead).is_ok());
    assert!(matches!(ask(&dead, ServiceRequest::Status, ALIVE), Err(AskError::Nobody(_))));
    let next = Control::bind(&dead).expect("it is replaced");
    drop(next);
    assert!(fs::symlink_metadata(&dead).is_err(), "and removed in the end");
    assert!(matches!(ask(&dead, ServiceRequest::Status, ALIVE), Err(AskError::Nobody(_))));
    // Its name may be another's by now: that one stays.
    fs::remove_file(&path).expect("it goes");
    let other = UnixListener::bind(&path).expect("another's");
    drop(control);
    assert!(fs::symlink_metadata(&path).is_ok());
    drop(other);
}

#[test]
fn what_is_no_socket_stays() {
    let dir = dir();
    let path = path(&dir);
    fs::create_dir(dir.path().join("run")).expect("a directory");
    fs::write(&path, "data").expect("a file");
    let says = |path: &Path| Control::bind(path).expect_err("it is refused").to_string();
    assert!(says(&path).ends_with("is not a socket: remove it, or give the socket another name"));
    assert_eq!(fs::read_to_string(&path).expect("the file"), "data");
    let link = dir.path().join("run/link");
    symlink(dir.path().join("nowhere"), &link).expect("a link");
    assert!(says(&link).contains("is not a socket"));
    assert!(says(Path::new("/")).contains("cannot be a socket path"));
    assert!(says(&dir.path().join("x".repeat(PATH))).contains("at most 107 bytes"));
    fs::set_permissions(dir.path().join("run"), fs::Permissions::from_mode(0o777)).expect("its mode");
    assert!(says(&dir.path().join("run/new")).contains("others may write"));
}

#[test]
fn the_other_end_is_known() {
    let (a, _b) = UnixStream::pair().expect("a pair");
    assert_eq!(peer(&a).expect("its user"), us());
}

#[test]
fn who_keeps_a_place_for_nothing_gives_way() {
    let dir = dir();
    let path = path(&dir);
    let mut control = Control::bind(&path).expect("a socket");
    let mut waits = connect(&path);
    waits.write_all(b"dump\n").expect("it is taken");
    control.poll(&mut |_, _| None);
    let mut idle: Vec<UnixStream> = (1..CLIENTS).map(|_| connect(&path)).collect();
    idle[0].write_all(b"sta").expect("it is taken");
    control.poll(&mut refused);
    assert_eq!(control.clients.len(), CLIENTS);
    // As if they had been connected for a while. Nobody wants their places, so they keep them.
    for client in &mut control.clients {
        client.since -= GRACE;
    }
    control.poll(&mut refused);
    assert_eq!(control.clients.len(), CLIENTS);
    let mut listened = 0;
    control.fds(&mut |_, events| listened += usize::from(events == PollFlags::IN));
    assert_eq!(listened, CLIENTS + 1);
    let mut asks = connect(&path);
    asks.write_all(b"status\n").expect("it is taken");
    control.poll(&mut refused);
    assert_eq!(said(&asks), "{\"ok\":false,\"error\":\"no\"}\n");
    assert!(said(&idle[0]).is_empty(), "the first has gone");
    assert!(control.clients.iter().any(|c| c.stage == Stage::Waits), "who waits for an answer stays");
}
