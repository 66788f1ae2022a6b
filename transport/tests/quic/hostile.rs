//! Members that break the rules once they are in: each is named, and bounded in what it can cost.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::frame::{HEADER_BYTES, MAX_PAYLOAD};
use gradwire_transport::quic::{Config, QuicMesh, Rendezvous, Tuning};
use gradwire_transport::{
    Communicator, Event, ExchangeError, Frame, FrameError, Header, Limits, Loss, Mesh, Rank, WIRE_VERSION,
    World,
};

use crate::grid;
use crate::raw::{Member, Raw, Run, hello};
use crate::support::{LOCALHOST, event, frame};

/// Rank 0 of a world of two, whose rank 1 is raw.
fn with_raw_peer(silence: Duration, tuning: Tuning) -> (QuicMesh, Raw, Member) {
    let run = Run::new(2);
    let world = World::new(0, 2, 0).unwrap();
    let rendezvous = Rendezvous::Address("unused:1".into());
    let join = Duration::from_secs(20);
    let config = Config {
        bind: Some(LOCALHOST),
        silence,
        join,
        tuning,
        ..Config::new(run.identity(0), world, rendezvous)
    };
    let pending = QuicMesh::bind(config).unwrap();
    let address = pending.local_addr();
    let joining = thread::spawn(move || pending.join());
    let raw = Raw::member(&run, 1);
    let member = raw.join(address, 0, &hello(WIRE_VERSION, 2, 0, 1, &[]));
    while !joining.is_finished() {
        raw.idle(Duration::from_millis(1));
    }
    (joining.join().unwrap().unwrap(), raw, member)
}

fn encode(frame: &Frame) -> Vec<u8> {
    [&frame.header.encode(&frame.payload)[..], &frame.payload].concat()
}

/// What rank 0 says of a peer that sends these bytes as a frame.
fn loss_after(bytes: &[u8]) -> Loss {
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(5), Tuning::default());
    raw.run(async {
        let mut stream = member.connection.open_uni().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.finish().unwrap();
        let _ = member.connection.closed().await;
    });
    let Event::Lost(Rank(1), loss) = event(&mut mesh) else { panic!("a bad frame was passed on") };
    let Some(quinn::ConnectionError::ApplicationClosed(close)) = member.connection.close_reason() else {
        panic!("the peer was not told")
    };
    // Code 1 is an abort: the epoch, the culprit plus one, then the reason.
    let (culprit, reason) = close.reason.split_at(8);
    let due = &[0, 0, 0, 0, 2, 0, 0, 0][..];
    assert_eq!((close.error_code, culprit), (1u32.into(), due), "an abort that names rank 1");
    assert_eq!(std::str::from_utf8(reason).unwrap(), loss.to_string(), "the reason as rank 0 sees it");
    loss
}

#[test]
fn a_frame_that_ends_early_goes_on_too_long_or_is_none_at_all_loses_its_peer() {
    let good = encode(&frame(1, 1, 1000));
    let need = good.len() as u64;
    let malformed = |bytes: &[u8]| match loss_after(bytes) {
        Loss::Malformed(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(malformed(&[]), FrameError::Truncated { have: 0, need: 56 });
    assert_eq!(malformed(&good[..55]), FrameError::Truncated { have: 55, need: 56 });
    assert_eq!(malformed(&good[..900]), FrameError::Truncated { have: 900, need });
    let long = [&good[..], b"x"].concat();
    assert_eq!(malformed(&long), FrameError::Oversized { length: need + 1, limit: need });
    let mut flipped = good.clone();
    flipped[700] ^= 1;
    assert!(matches!(malformed(&flipped), FrameError::Checksum { .. }));
    assert!(matches!(malformed(&[b'x'; 100]), FrameError::Magic { .. }));
    let mut version = good.clone();
    version[4] = 99;
    assert_eq!(malformed(&version), FrameError::Version { theirs: 99, ours: WIRE_VERSION });
}

#[test]
fn a_huge_length_is_refused_before_anything_is_stored_for_it() {
    let header = Header { length: u32::MAX, total: u64::MAX, ..frame(1, 1, 0).header };
    let loss = loss_after(&header.encode(&[]));
    let limit = MAX_PAYLOAD as u64;
    assert_eq!(loss, Loss::Malformed(FrameError::Oversized { length: u64::from(u32::MAX), limit }));
}

#[test]
fn a_stream_that_is_broken_off_loses_its_peer() {
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(5), Tuning::default());
    raw.run(async {
        let mut stream = member.connection.open_uni().await.unwrap();
        stream.write_all(&encode(&frame(1, 1, 1000))[..500]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.reset(7u32.into()).unwrap();
        let _ = member.connection.closed().await;
    });
    let Event::Lost(Rank(1), Loss::Protocol { reason }) = event(&mut mesh) else { panic!("not a breach") };
    assert!(reason.contains("broke off a frame"), "{reason}");
}

#[test]
fn a_frame_of_another_epoch_or_in_another_name_fails_the_collective_by_name() {
    for (change, due) in [
        (
            (|header: &mut Header| header.epoch = 3) as fn(&mut Header),
            FrameError::Epoch { theirs: 3, ours: 0 },
        ),
        (
            |header: &mut Header| header.from = Rank(0),
            FrameError::Sender { claimed: Rank(0), actual: Rank(1) },
        ),
    ] {
        let (mesh, raw, member) = with_raw_peer(Duration::from_secs(5), Tuning::default());
        let mut bad = frame(1, 1, 40);
        change(&mut bad.header);
        raw.run(async {
            let mut stream = member.connection.open_uni().await.unwrap();
            stream.write_all(&encode(&bad)).await.unwrap();
            stream.finish().unwrap();
            stream.stopped().await.unwrap();
        });
        let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
        let own = Bytes::from_static(&[7; 40]);
        let error = communicator.all_gather(grid::operation(1, 1), own, &[40, 40]).unwrap_err();
        assert_eq!(error, ExchangeError::Frame { rank: Rank(1), step: 1, source: due });
    }
}

#[test]
fn streams_that_never_end_are_few_and_stop_no_one_else() {
    let tuning = Tuning { streams: 8, ..Tuning::default() };
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(2), tuning);
    let whole = encode(&frame(1, 1, MAX_PAYLOAD));
    let (head, rest) = whole.split_at(HEADER_BYTES + 1);
    raw.run(async {
        let mut streams = Vec::new();
        for _ in 0..8 {
            let mut stream = member.connection.open_uni().await.unwrap();
            stream.write_all(head).await.unwrap();
            streams.push(stream);
        }
        let more = tokio::time::timeout(Duration::from_millis(300), member.connection.open_uni()).await;
        assert!(more.is_err(), "a ninth stream was allowed");
        // Both ways are independent: rank 0 can still send.
        mesh.send(Rank(1), frame(0, 1, 100));
        let mut stream = member.connection.accept_uni().await.unwrap();
        assert_eq!(stream.read_to_end(1000).await.unwrap(), encode(&frame(0, 1, 100)));
        // And what ends, ends well.
        streams[3].write_all(rest).await.unwrap();
        streams[3].finish().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
    let got = event(&mut mesh);
    assert!(got == Event::Frame(Rank(1), frame(1, 1, MAX_PAYLOAD)), "not the frame that was sent");
    let until = Instant::now() + Duration::from_millis(10);
    assert_eq!(mesh.receive(until), Event::Timeout);
}

#[test]
fn a_flood_is_held_back_until_it_is_taken_and_nothing_of_it_is_lost() {
    const FRAMES: usize = 200;
    let tuning = Tuning { streams: 4, unconsumed: 2 << 20, ..Tuning::default() };
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(20), tuning);
    let length = MAX_PAYLOAD / 8;
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = sent.clone();
    let taker = thread::spawn(move || {
        // Until no more is let in.
        let mut held = 0;
        loop {
            thread::sleep(Duration::from_millis(700));
            match counter.load(std::sync::atomic::Ordering::Relaxed) {
                now if now == held && now > 0 => break,
                now => held = now,
            }
        }
        for _ in 0..FRAMES {
            let Event::Frame(Rank(1), _) = event(&mut mesh) else { panic!("lost") };
        }
        (held, mesh)
    });
    raw.run(async {
        for step in 0..FRAMES {
            let mut stream = member.connection.open_uni().await.unwrap();
            stream.write_all(&encode(&frame(1, step as u64, length))).await.unwrap();
            stream.finish().unwrap();
            sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        while !taker.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let (held, _mesh) = taker.join().unwrap();
    // 2 MiB unconsumed, and one frame on each of 4 streams.
    let most = (2 << 20) / (length + HEADER_BYTES) + 4;
    assert!(held <= most, "{held} frames of {length} bytes were taken in, at most {most} should");
}

#[test]
fn a_peer_that_is_stopped_is_silent_and_one_that_is_killed_too() {
    for killed in [false, true] {
        let silence = Duration::from_secs(1);
        let (mut mesh, raw, member) = with_raw_peer(silence, Tuning::default());
        raw.idle(Duration::from_millis(300));
        let raw = if killed {
            // Its runtime and socket go without a word.
            drop(raw);
            None
        } else {
            Some(raw)
        };
        let began = Instant::now();
        // This side keeps sending, which must not keep the peer alive.
        let loss = loop {
            mesh.send(Rank(1), frame(0, 1, 10));
            match mesh.receive(Instant::now() + Duration::from_millis(20)) {
                Event::Lost(Rank(1), loss) => break loss,
                Event::Timeout if began.elapsed() < Duration::from_secs(20) => {}
                other => panic!("{other:?}"),
            }
        };
        println!("killed {killed}: {loss}, noticed after {:?}", began.elapsed());
        let Loss::Silent { silent, deadline } = loss else { panic!("{loss:?}") };
        assert_eq!(deadline, silence);
        assert!(silent >= silence && silent <= silence * 6 / 5, "silent for {silent:?}");
        drop((raw, member));
    }
}

#[test]
fn a_rank_that_falls_silent_in_an_exchange_is_named_by_everyone() {
    let run = Run::new(3);
    let config = |rank, rendezvous: &str| Config {
        bind: Some(LOCALHOST),
        silence: Duration::from_secs(1),
        join: Duration::from_secs(20),
        ..Config::new(
            run.identity(rank),
            World::new(rank, 3, 0).unwrap(),
            Rendezvous::Address(rendezvous.into()),
        )
    };
    let first = QuicMesh::bind(config(0, "unused:1")).unwrap();
    let address = first.local_addr();
    let second = QuicMesh::bind(config(1, &address.to_string())).unwrap();
    let ranks: Vec<_> = [first, second]
        .map(|pending| {
            thread::spawn(move || {
                let mut communicator =
                    Communicator::new(Box::new(pending.join().unwrap()), Limits::default());
                let blocks = vec![Bytes::from_static(&[7; 40]); 3];
                communicator.all_to_all(grid::operation(6, 1), blocks, &[40; 3]).unwrap_err()
            })
        })
        .into();
    let raw = Raw::member(&run, 2);
    let hello = hello(WIRE_VERSION, 3, 0, 2, &[]);
    let mut member = raw.join(address, 0, &hello);
    let second = raw.run(member.table())[1];
    let _other = raw.join(second, 1, &hello);
    // Long enough that both are up, short of the deadline; then it stops.
    raw.idle(Duration::from_millis(500));
    for error in ranks.into_iter().map(|rank| rank.join().unwrap()) {
        println!("{error}");
        assert_eq!(error.culprit(), Some(Rank(2)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("rank 2 ") && text.contains("silent") && text.contains("step 6"), "{text}");
    }
}

#[test]
fn a_reason_with_control_characters_arrives_without_them() {
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(5), Tuning::default());
    raw.run(async {
        let reason = b"\0\0\0\0\x63\0\0\0\x1b]0;owned\x07\xff\nno";
        member.connection.close(1u32.into(), reason);
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    let Event::Lost(Rank(1), Loss::Aborted(abort)) = event(&mut mesh) else { panic!("not an abort") };
    assert_eq!(abort.culprit, None, "rank 98 of 2 does not exist");
    assert_eq!(abort.reason, "\u{fffd}]0;owned\u{fffd}\u{fffd}\u{fffd}no");
}

#[test]
fn an_unknown_close_code_is_a_breach() {
    let (mut mesh, raw, member) = with_raw_peer(Duration::from_secs(5), Tuning::default());
    raw.run(async {
        member.connection.close(77u32.into(), b"?");
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    let due = Loss::Protocol { reason: "closed with code 77: ?".into() };
    assert_eq!(event(&mut mesh), Event::Lost(Rank(1), due));
}
