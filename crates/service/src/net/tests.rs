//! Tests of the service's end and its process together.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::endpoint::{Endpoint, OtlpSettings};
use super::*;
use crate::until::until;
use machine::capset;

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn metrics_are_scraped_and_pushed_and_the_end_is_seen() {
    let receiver = TcpListener::bind("127.0.0.1:0").expect("a receiver");
    let port = receiver.local_addr().expect("bound").port();
    let mut network = Network::new();
    assert!(network.status().is_none() && network.fd().is_none() && network.pid().is_none());
    let otlp = OtlpSettings {
        endpoint: Endpoint::parse(&format!("http://127.0.0.1:{port}")).expect("an endpoint"),
        headers: Vec::new(),
        interval: Duration::from_millis(1),
        timeout: Duration::from_secs(20),
        attributes: Vec::new(),
    };
    let settings = NetSettings { listen: Some("127.0.0.1:0".parse().expect("one")), otlp: Some(otlp) };
    let said = network.apply(network.prepare(&settings).expect("it can be used"));
    let address = network.status().and_then(|s| s.listen).expect("an address");
    assert!(
        said[0].contains(&format!("http://{address}/metrics")) && said[1].contains("/v1/metrics"),
        "{said:?}"
    );
    // Longer than several messages.
    let text = "a 1\n".repeat(100_000);
    until("the text is there", || {
        network.tick(Instant::now(), &|| text.clone(), &|| "{}".into());
        scrape(&address).ends_with(&text)
    });
    network.tick(Instant::now() + Duration::from_secs(1), &|| text.clone(), &|| "{}".into());
    let (mut stream, _) = receiver.accept().expect("it is pushed");
    let mut request = [0; 4096];
    let n = stream.read(&mut request).expect("a request");
    assert!(request[..n].starts_with(b"POST /v1/metrics "));
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("answered");
    drop(stream);
    until("counts come", || {
        network.hear();
        network.status().is_some_and(|s| s.scrapes.served > 0 && s.exports.accepted > 0)
    });
    let pid = network.pid().expect("a process");
    assert!(network.pids == [pid as i32]);
    // The last one is pushed after the service's end of the channel is closed.
    std::thread::spawn(move || {
        for stream in receiver.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    network.end(&|| "{}".into());
    drop(network);
    // SAFETY: waits for the child that was started above.
    until(
        "it ends",
        || unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) } == pid as i32,
    );
    assert!(TcpStream::connect(&address).is_err(), "nobody listens any longer");
}

#[test]
fn a_process_that_dies_is_replaced_and_counts_go_on() {
    let mut network = Network::new();
    let settings = NetSettings { listen: Some("[::1]:0".parse().expect("one")), otlp: None };
    let Ok(prepared) = network.prepare(&settings) else { return crate::skips::lacking("no IPv6 here") };
    network.apply(prepared);
    let address = network.status().and_then(|s| s.listen).expect("an address");
    let text = || "a 1\n".to_owned();
    until("it answers", || {
        network.tick(Instant::now(), &text, &String::new);
        scrape(&address).contains("200 OK")
    });
    until("counts come", || {
        network.hear();
        network.status().is_some_and(|s| s.scrapes.served == 1)
    });
    let pid = network.pid().expect("a process") as i32;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).expect("a line").trim();
    assert_eq!((line("CapPrm:"), line("NoNewPrivs:")), ("0000000000000000", "1"));
    if rustix::process::geteuid().is_root() && capset::has(capset::BECOME) {
        let is_root = |name| line(name).split_whitespace().any(|id| id == "0");
        assert!(!is_root("Uid:") && !is_root("Gid:") && !is_root("Groups:"), "{status}");
    }
    // SAFETY: a signal to the child that was started above, and the wait for it.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    until("it is missed", || network.hear().iter().any(|line| line.contains("is replaced")));
    network.again = Instant::now();
    // It is the same address, which never went away.
    until("another one answers", || {
        network.tick(Instant::now(), &text, &String::new);
        network.pid().is_some() && scrape(&address).contains("200 OK")
    });
    until("counts go on", || {
        network.hear();
        network.status().is_some_and(|s| s.scrapes.served >= 2)
    });
    // Another configuration with the same address.
    let again = network.prepare(&settings).expect("it is kept");
    let old = network.pid().expect("a process") as i32;
    network.apply(again);
    assert_ne!(network.pid(), Some(old as u32));
    let new = network.pid().expect("a process") as i32;
    drop(network);
    for pid in [old, new] {
        // SAFETY: waits for a child that was started above.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}

#[test]
fn an_address_in_use_is_refused_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = taken.local_addr().expect("bound");
    let settings = NetSettings { listen: Some(address), otlp: None };
    let why = Network::new().prepare(&settings).err().expect("it is taken").to_string();
    assert!(
        why.starts_with(&format!("cannot listen on {address}: ")) && why.contains("another port"),
        "{why}"
    );
    let none = NetError { address, source: io::Error::from_raw_os_error(libc::EAFNOSUPPORT) };
    assert!(none.to_string().contains("docs/METRICS.md"), "{none}");
}
