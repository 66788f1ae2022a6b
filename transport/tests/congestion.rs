//! Congestion control on a virtual clock: goodput, loss and fairness by the emulator's own time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/path.rs"]
mod path;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use gradwire_transport::quic::congestion::{Link, Paced};
use gradwire_transport::sim::LinkConfig;
use path::{Carried, Path};
use quinn_proto::congestion::{ControllerFactory, CubicConfig};

type Factory = Arc<dyn ControllerFactory + Send + Sync>;

fn declared(bits: u64) -> Factory {
    Arc::new(Paced::new(Link::Declared(NonZeroU64::new(bits).unwrap())))
}

fn estimated() -> Factory {
    Arc::new(Paced::new(Link::Estimated))
}

fn cubic() -> Factory {
    Arc::new(CubicConfig::default())
}

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

/// Both directions between two nodes; the worse of the two.
fn exchange(text: &str, make: impl Fn() -> Factory, bytes: usize) -> (Carried, f64) {
    let link = link(text);
    let mut path = Path::new(link, vec![make(), make()], 1);
    let carried = path.carry(&[(0, 1), (1, 0)], bytes, Duration::from_secs(600));
    let worse = carried.into_iter().min_by(|one, other| one.steady.total_cmp(&other.steady)).unwrap();
    let share = worse.steady / link.rate.unwrap() as f64;
    (worse, share)
}

#[test]
fn survey() {
    for (text, bytes) in [
        ("1Gbit,80ms,0%", 128 << 20),
        ("1Gbit,80ms,0.1%", 64 << 20),
        ("1Gbit,150ms,1%", 128 << 20),
        ("100Mbit,80ms,1%", 32 << 20),
        ("100Mbit,40ms,0%", 16 << 20),
        ("20Mbit,20ms,0.1%", 4 << 20),
        ("1Gbit,2ms,0%", 64 << 20),
        ("1Gbit,80ms,0.1%,jitter=10ms", 64 << 20),
        ("1Gbit,80ms,1%,burst=8", 64 << 20),
        ("1Gbit,80ms,0.1%,reorder=1%", 64 << 20),
    ] {
        let rate = link(text).rate.unwrap();
        let modes: [(&str, &dyn Fn() -> Factory); 3] = [
            ("declared", &|| declared(rate)),
            ("20% over", &|| declared(rate * 12 / 10)),
            ("estimated", &estimated),
        ];
        for (name, make) in modes {
            let bytes = if name == "cubic" && text.contains("1%") { 2 << 20 } else { bytes };
            let began = std::time::Instant::now();
            let (carried, share) = exchange(text, make, bytes);
            println!(
                "{text:32} {name:10} steady {:5.1}% lost {:5.2}% {:.3} s (ideal {:.3} s) [{:.1?}]",
                100.0 * share,
                100.0 * carried.lost,
                carried.seconds,
                8.0 * bytes as f64 / rate as f64,
                began.elapsed()
            );
        }
    }
}

#[test]
#[ignore = "trace"]
fn trace() {
    for (text, bytes, make) in [
        ("1Gbit,150ms,1%", 512usize << 20, &(|| declared(1_000_000_000)) as &dyn Fn() -> Factory),
        ("100Mbit,80ms,1%", 64 << 20, &estimated),
        ("1Gbit,80ms,0.1%,jitter=10ms", 256 << 20, &estimated),
    ] {
        let mut path = Path::new(link(text), vec![make(), make()], 1);
        path.start(&[(0, 1), (1, 0)], bytes);
        let mut before = 0;
        for _ in 0..40 {
            path.pass(Duration::from_millis(150));
            let got = path.received(0, 1);
            println!("{text} {:6.1} Mbit/s {}", 8.0 * (got - before) as f64 / 0.15 / 1e6, path.state(0, 1));
            before = got;
            if got >= bytes { break }
        }
    }
}
