//! Tests of pushing, with a receiver that answers as it is told.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::super::endpoint::Endpoint;
use super::*;

/// Answers the connections one after the other; returns the bodies.
fn receiver(answers: Vec<String>) -> (OtlpSettings, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("bound").port();
    let settings = OtlpSettings {
        endpoint: Endpoint::parse(&format!("http://127.0.0.1:{port}")).expect("an endpoint"),
        headers: vec![("X-Key".into(), "secret".into())],
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(20),
        attributes: Vec::new(),
    };
    let thread = std::thread::spawn(move || {
        answers
            .into_iter()
            .map(|answer| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let (mut all, mut bytes) = (String::new(), [0; 1024]);
                loop {
                    let n = stream.read(&mut bytes).expect("a request");
                    all.push_str(std::str::from_utf8(&bytes[..n]).expect("text"));
                    let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
                    if body.len() == length.and_then(|n| n.parse().ok()).unwrap_or(0) {
                        break;
                    }
                }
                assert!(all.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{all}");
                assert!(all.contains("\r\nX-Key: secret\r\n") && all.contains("application/json"), "{all}");
                stream.write_all(answer.as_bytes()).expect("answered");
                all.split_once("\r\n\r\n").expect("a body").1.to_owned()
            })
            .collect()
    });
    (settings, thread)
}

fn answer(status: u16, more: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn wait_for(pusher: &Pusher, done: &dyn Fn(ExportCounts) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    crate::until::until("counts come", || {
        let (counts, news) = pusher.report();
        lines.extend(news);
        done(counts)
    });
    lines
}

#[test]
fn what_fails_for_a_while_is_sent_again_and_what_is_refused_is_not() {
    let partial = r#"{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}"#;
    let (settings, received) = receiver(vec![
        answer(503, "Retry-After: 0\r\n", "busy"),
        answer(429, "Retry-After: Thu, 01 Jan 1970 00:00:01 GMT\r\n", ""),
        answer(200, "", "{}"),
        answer(400, "", r#"{"message": "bad \u001b data"}"#),
        answer(200, "", partial),
        answer(200, "", partial),
    ]);
    let pusher = Pusher::start(settings).expect("a thread");
    ["a", "b", "c", "d"].iter().for_each(|body| pusher.push(body.as_bytes().to_vec()));
    let lines = wait_for(&pusher, &|counts| counts.accepted == 3);
    assert_eq!(received.join().expect("received"), ["a", "a", "a", "b", "c", "d"]);
    let counts = ExportCounts { accepted: 3, failed: 1, dropped: 0, rejected: 6 };
    assert_eq!(pusher.report().0, counts);
    let has = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(
        [has("status 503: busy; trying again"), has("status 429; trying again")],
        [1, 1],
        "{lines:#?}"
    );
    assert_eq!([has("takes metrics again"), has("bad \\u001b data; not tried again")], [1, 1], "{lines:#?}");
    assert_eq!(has("has rejected 3 values: too old"), 1, "{lines:#?}");
    pusher.finish(Duration::from_secs(60));
    assert!(pusher.state().done);
}

#[test]
fn the_queue_is_bounded_and_its_newest_is_sent_at_the_end() {
    // Nothing listens there yet.
    let (mut settings, received) = receiver(vec![answer(200, "", "")]);
    let reached = settings.endpoint.port;
    settings.endpoint.port =
        TcpListener::bind("127.0.0.1:0").expect("one").local_addr().expect("bound").port();
    let lost = Pusher::start(settings.clone()).expect("a thread");
    (0..2 * WAITING).for_each(|n| lost.push(n.to_string().into_bytes()));
    let lines = wait_for(&lost, &|counts| counts.dropped >= WAITING as u64 - 1);
    assert!(lines.iter().all(|line| line.contains("cannot push metrics")), "{lines:?}");
    lost.finish(Duration::from_secs(60));
    assert_eq!(lost.report().0, ExportCounts { dropped: 2 * WAITING as u64, ..ExportCounts::default() });
    settings.endpoint.port = reached;
    let pusher = Pusher::default();
    ["old", "newest"].iter().for_each(|body| pusher.push(body.as_bytes().to_vec()));
    let its = pusher.clone();
    pusher.state().closed = true;
    std::thread::spawn(move || its.work(&settings));
    pusher.finish(Duration::from_secs(60));
    assert_eq!(received.join().expect("received"), ["newest"]);
    assert_eq!(pusher.report().0, ExportCounts { accepted: 1, dropped: 1, ..ExportCounts::default() });
}

#[test]
fn answers_are_judged_as_the_protocol_says() {
    let of = |status, retry_after: Option<&str>, body: &str| {
        judge(&Response { status, retry_after: retry_after.map(str::to_owned), body: body.into() })
    };
    let accepted = |rejected, message: &str| Sent::Accepted { rejected, message: message.into() };
    assert_eq!(of(200, None, ""), accepted(0, ""));
    assert_eq!(of(202, None, "not JSON"), accepted(0, ""));
    assert_eq!(of(200, None, r#"{"partialSuccess":{"rejectedDataPoints":7}}"#), accepted(7, ""));
    assert_eq!(of(200, None, r#"{"partialSuccess":{"errorMessage":"x"}}"#), accepted(0, "x"));
    assert_eq!(of(200, None, "{\"partialSuccess\" : {\n\"rejectedDataPoints\" : \"5\"\n}}"), accepted(5, ""));
    assert_eq!(of(200, None, r#"{"errorMessage":"a \"b\", c"}"#), accepted(0, r#"a \"b\", c"#));
    assert_eq!(of(200, None, r#"{"errorMessage":"a"#), accepted(0, ""));
    for status in [429, 502, 503, 504] {
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(of(status, Some("7"), ""), Sent::Later(format!("status {status}"), seconds(7)));
        assert_eq!(of(status, Some("x"), ""), Sent::Later(format!("status {status}"), None));
        assert_eq!(of(status, Some("999999"), ""), Sent::Later(format!("status {status}"), seconds(3600)));
    }
    for status in [301, 400, 401, 404, 408, 413, 500, 501, 505] {
        assert_eq!(of(status, Some("7"), ""), Sent::Refused(format!("status {status}")));
    }
}

#[test]
fn waits_grow_and_differ() {
    for attempt in 0..100 {
        let most = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
        let pause = pause(attempt);
        assert!(pause >= most / 2 && pause <= most, "{attempt}: {pause:?}");
    }
    let some: std::collections::BTreeSet<Duration> = (0..50).map(|_| pause(5)).collect();
    assert!(some.len() > 10);
    assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
    assert_eq!(date("Tue, 29 Feb 2028 00:00:00 GMT"), Some(1_835_395_200));
    for wrong in [
        "",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "a b c d e f g GMT",
        "Sun, 06 Nov 0 0:0:0 GMT",
    ] {
        assert_eq!(date(wrong), None, "{wrong}");
    }
}
