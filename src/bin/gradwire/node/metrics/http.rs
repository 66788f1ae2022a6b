//! The least of HTTP/1.1 that a scraper needs (RFC 9112), for whoever can reach it.
//!
//! The exporter's own listener keeps idle connections for ever, and when they have taken all file descriptors its accept
//! loop spins. Here one connection is served at a time, and none for long: the others wait in the system's queue, and
//! cost this process nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// For a whole request, and for each part of the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(1);

/// After an error of the system, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest request head that is read.
const LONGEST: usize = 8 << 10;

/// Answers at `listener` with what `render` gives, on a thread that ends with the process.
pub(super) fn serve(
    listener: TcpListener,
    render: impl Fn() -> String + Send + 'static,
) -> std::io::Result<()> {
    let answer_all = move || {
        loop {
            match listener.accept() {
                // An error is a client that is gone, or too slow.
                Ok((stream, _)) => drop(answer(stream, &render)),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    };
    thread::Builder::new().name("gradwire-metrics".into()).spawn(answer_all).map(drop)
}

fn answer(mut stream: TcpStream, render: impl Fn() -> String) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/" | b"/metrics") => ("200 OK", render()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Allow: GET, HEAD\r\nConnection: close\r\n\r\n"
    )?;
    if method != b"HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// Everything up to the empty line.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (began, mut head, mut part) = (Instant::now(), Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        let count = stream.read(&mut part)?;
        if count == 0 || head.len() + count > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..count]);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::net::SocketAddr;

    use super::*;

    fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, || "gradwire_step 7\n".to_owned()).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        // A refused request may be cut off by a reset.
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn numbers_are_at_their_path_and_nothing_is_elsewhere() {
        let address = start();
        let found = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n"), "{found}");
        assert!(
            found.contains("Content-Length: 16\r\n") && found.ends_with("\r\n\r\ngradwire_step 7\n"),
            "{found}"
        );
        let head = ask(address, "HEAD /metrics?x=1 HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(address, "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "), "another path");
        assert!(
            ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "),
            "another method"
        );
    }

    #[test]
    fn who_sends_nothing_or_too_much_does_not_keep_others_out() {
        let address = start();
        let _idle: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(ask(address, &"x".repeat(3 * LONGEST)), "", "an endless request");
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").ends_with("gradwire_step 7\n"), "after all those");
    }
}
