//! An emulated network for whole programs, each in a network namespace of its own, until standard input ends.
//!
//!     cargo run --release -p gradwire-transport --features emulate --example tunnel -- [LINK] [NODES]
//!
//! Linux, as root or under `unshare -Urn`. Prints how to start a program on each node, and in the end what passed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(target_os = "linux")]
    return run();
    #[cfg(not(target_os = "linux"))]
    Err("network namespaces need Linux".into())
}

#[cfg(target_os = "linux")]
fn run() -> Result<(), Box<dyn std::error::Error>> {
    use gradwire_transport::sim::Tunnel;

    let mut arguments = std::env::args().skip(1);
    let link = arguments.next().unwrap_or_else(|| "100Mbit,40ms,0%".into()).parse()?;
    let nodes = arguments.next().map_or(Ok(2), |count| count.parse())?;
    let tunnel = Tunnel::start(nodes, link, 1)?;
    println!("{nodes} nodes, {link}");
    for node in 0..nodes {
        // `process/task/thread`, seen from /proc.
        let thread = tunnel.within(node, || std::fs::read_link("/proc/thread-self"))??;
        let namespace = std::path::Path::new("/proc").join(thread).join("ns/net");
        println!("{}: nsenter --net={} COMMAND", Tunnel::address(node), namespace.display());
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    println!("{:?}\n{:?}", tunnel.carrier().traffic(), tunnel.carrier().take_measured());
    Ok(())
}
