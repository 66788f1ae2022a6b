//! Writes the seeds of every target into `corpus/TARGET/seed-*`: inputs that reach deep code, made from real messages, the
//! golden vectors, and recipes of nothing but zeros and counts. `cargo run --bin seeds`; the same bytes every time.

use std::fs;
use std::path::Path;

const PEERS: &str =
    "\x02[[peer]]\nrank = 1\naddress = \"b.example:7001\"\n[[peer]]\nrank = 0\naddress = \"[::1]:7000\"\n";

const LINKS: [&str; 4] = [
    "1Gbit,80ms,0.1%",
    "2.5Gbit,0.5ms,0%",
    "200Mbit,60ms,0.1%,queue=250kB,jitter=5ms,burst=8,reorder=1%,duplicate=0.01%",
    "1500kbit,100us,100%,queue=1MB",
];

const CODECS: [&str; 6] = [
    "f32",
    "loco:residual_scale_log2=4,decay=205,reset_every=512",
    "topk:k=32,clip=1",
    "loco-block:bits=4,block=64,base_log2=-40,decay=205,reset_every=0",
    "powersgd:low_rank=2,seed=1,min_compression=3",
    "ef21:block=32,base_log2=-40,momentum_log2=3",
];

const LAUNCHES: [&str; 5] = [
    "\x00a3\nb8\nc10.0.0.1\nd29500",
    "\x00e1\nf4\nhgpu[03-07,9]",
    "\x00e1\nf4\nife80::1\nd7",
    "\x00j0\nk2\nchead",
    "\x00l5\nm6\nna:1",
];

const NODES: [&str; 2] = ["\x00rack[1-2]node[0-3],x", "\x00n[007-012]-ib.example.org,m"];

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = root.join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{name}")), bytes)
    };
    let numbered = |target: &str, texts: &[&str]| {
        (0..).zip(texts).try_for_each(|(i, text): (u32, _)| write(target, &i.to_string(), text.as_bytes()))
    };
    write("peers", "0", PEERS.as_bytes())?;
    numbered("link", &LINKS)?;
    numbered("launch", &[&LAUNCHES[..], &NODES].concat())?;
    for (i, text) in CODECS.iter().enumerate() {
        // Before the text: a number of elements.
        write("codec", &i.to_string(), &[&1000_u64.to_le_bytes(), text.as_bytes()].concat())?;
    }
    for (i, vectors) in vectors(root)?.iter().enumerate() {
        write("vectors", &i.to_string(), vectors.as_bytes())?;
    }
    write("identity", "0", &[b"\0", fs::read(root.join("identity.txt"))?.as_slice()].concat())?;
    // Recipes: one of each kind, first unspoiled, then with something in every place.
    for kind in 0..16_u8 {
        for (name, filler) in [("zeros", 0_u8), ("ones", 1)] {
            let recipe = [&[kind][..], &[filler; 40]].concat();
            for target in ["abort", "hello", "identity", "frame"] {
                write(target, &format!("{name}-{kind}"), &recipe)?;
            }
        }
    }
    // Every codec with every optimizer, answered honestly and then with a spoiled message.
    for codec in 0..22_u8 {
        write("packet", &codec.to_string(), &[&[codec, 0, 1, 1, 40, 0, 2], &[3; 60][..]].concat())?;
        for (name, filler) in [("honest", 0_u8), ("spoiled", 1)] {
            let recipe = [&[codec % 5, 1, 0, codec, 0, codec], &[filler; 60][..]].concat();
            write("sync", &format!("{name}-{codec}"), &recipe)?;
            write("checkpoint", &format!("{name}-{codec}"), &recipe)?;
        }
    }
    for (name, filler) in [("honest", 0_u8), ("spoiled", 1)] {
        let recipe = [&[1, 0, 0, 2, 0], &[filler; 60][..]].concat();
        write("sync", &format!("powersgd-{name}"), &recipe)?;
        write("checkpoint", &format!("powersgd-{name}"), &recipe)?;
    }
    Ok(())
}

/// The smallest case of each golden file, as a file of its own.
fn vectors(root: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut paths: Vec<_> = fs::read_dir(root.join("../tests/golden"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|it| it == "json"));
    paths.sort();
    for path in paths {
        let mut file: serde_json::Value = serde_json::from_str(&fs::read_to_string(path)?)?;
        let Some(cases) = file["cases"].as_array() else { continue };
        let smallest = cases.iter().min_by_key(|case| case.to_string().len()).cloned();
        let codec = file["codec"].take();
        found.push(serde_json::json!({ "codec": codec, "cases": [smallest] }).to_string());
    }
    Ok(found)
}
