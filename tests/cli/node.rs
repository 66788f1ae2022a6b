//! `gradwire node`: fleets of two, started by hand.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{gradwire, one_line, output, text};

fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Identities of 2 ranks in `folder`, and the arguments of a short run of each.
fn two_nodes(folder: &Path) -> [Vec<String>; 2] {
    let run = folder.join("run");
    let made = output(&["keygen", "--world-size=2", "--out", run.to_str().unwrap()]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let port = free_port();
    [0, 1].map(|rank| {
        let identity = run.join(format!("rank-{rank}.pem"));
        let mut args = vec!["node".to_owned(), format!("--identity={}", identity.display())];
        args.extend(["--backend=cpu", "--steps=3", "--batch=8", "--deadline=2", "--json"].map(str::to_owned));
        args.push(format!("--rendezvous=127.0.0.1:{port}"));
        if rank == 0 {
            args.push(format!("--bind=127.0.0.1:{port}"));
        }
        args
    })
}

fn start(args: &[String], environment: &[(&str, &str)]) -> Child {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    gradwire(&args)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn two_nodes_by_hand_end_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, one] = two_nodes(folder.path());
    // One told by options, one by torchrun's environment.
    let zero = start(&[zero, vec!["--rank=0".into(), "--world-size=2".into()]].concat(), &[]);
    let one = start(&one, &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")]);
    let outputs = [zero, one].map(|node| node.wait_with_output().unwrap());
    let reports: [Value; 2] = outputs.each_ref().map(|output| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    });
    for (rank, report) in reports.iter().enumerate() {
        assert_eq!(report["rank"], rank);
        assert_eq!(report["world_size"], 2);
        // What every rank has the same.
        for field in ["parameters_blake3", "eval_accuracy", "codec"] {
            assert_eq!(report[field], reports[0][field]);
        }
        assert_eq!(report["loss"]["eval"], reports[0]["loss"]["eval"]);
        assert_eq!(report["nodes"][0]["rank"], rank);
        let course = text(&outputs[rank].stderr);
        assert!(course.contains(&format!("rank {rank}: step 3 of 3, loss ")), "{course}");
    }
    assert!(text(&outputs[1].stderr).contains("torchrun"), "{}", text(&outputs[1].stderr));
}

#[test]
fn nodes_that_disagree_end_with_1_and_name_what_differs() {
    for (option, word) in [
        ("--codec=f32", "has codec \""),
        ("--codec=loco:decay=0", "has loco parameter decay \""),
        ("--scale=-3", "\"2^-3\""),
        ("--sites=2", "\"0,0 with bf16 inside\""),
        ("--shares=2,1", "\"2,1\""),
        ("--deadline=7", "\"7s\""),
        ("--seed=9", "seed"),
        ("--steps=4", "steps"),
        ("--batch=9", "samples per rank"),
        ("--weight-decay=0.5", "weight decay 0.5"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let [mut zero, mut one] = two_nodes(folder.path());
        zero.extend(["--rank=0".to_owned(), "--world-size=2".to_owned()]);
        one.extend(["--rank=1".to_owned(), "--world-size=2".to_owned()]);
        one.retain(|arg| !arg.starts_with(option.split('=').next().unwrap()));
        one.push(option.to_owned());
        for (node, other) in [start(&zero, &[]), start(&one, &[])].into_iter().zip(["rank 1", "rank 0"]) {
            let output = node.wait_with_output().unwrap();
            let told = text(&output.stderr);
            let line = told.lines().last().unwrap();
            assert_eq!(output.status.code(), Some(1), "{told}");
            assert!(line.starts_with("gradwire: ") && line.contains(other) && line.contains(word), "{told}");
        }
    }
}

/// Runs both to their end.
fn both(nodes: [Vec<String>; 2]) -> [Output; 2] {
    nodes.map(|node| start(&node, &[])).map(|node| node.wait_with_output().unwrap())
}

fn with(args: &[String], more: &[&str]) -> Vec<String> {
    args.iter().cloned().chain(more.iter().map(|arg| (*arg).to_owned())).collect()
}

#[test]
fn nodes_with_different_data_end_with_1_before_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.txt", "b.txt"].map(|name| folder.path().join(name));
    // The same length: only the content differs.
    for (path, letter) in paths.iter().zip(["a", "b"]) {
        fs::write(path, letter.repeat(4000)).unwrap();
    }
    let [zero, one] = two_nodes(folder.path());
    let data = paths.each_ref().map(|path| format!("--data={}", path.display()));
    let more = |data| ["--task=text", "--world-size=2", data];
    for output in both([with(&zero, &more(&data[0])), with(&one, &more(&data[1]))]) {
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let line = told.lines().last().unwrap();
        assert!(line.contains("has data") && line.contains("4000 bytes"), "{told}");
        assert!(!told.contains("step 1"), "{told}");
    }
}

#[test]
fn rank_and_world_size_come_from_the_identity_and_the_peers_file() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(folder.path());
    let entry = |rank| format!("[[peer]]\nrank = {rank}\naddress = \"127.0.0.1:{}\"\n", free_port());
    let peers = folder.path().join("peers.toml");
    fs::write(&peers, [entry(1), entry(0)].concat()).unwrap();
    let nodes = nodes.map(|mut node| {
        node.retain(|arg| !["--rendezvous", "--bind", "--json"].iter().any(|name| arg.starts_with(name)));
        with(&node, &["--peers", peers.to_str().unwrap()])
    });
    let outputs = both(nodes.clone());
    let hashes = outputs.each_ref().map(|output| {
        let (told, result) = (text(&output.stderr), text(&output.stdout));
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.contains("rank from the identity, world size from the peers file"), "{told}");
        for name in ["rank: ", "loss: ", "evaluation: ", "parameters_blake3: "] {
            assert!(result.lines().any(|line| line.starts_with(name)), "{result}");
        }
        result.lines().find(|line| line.starts_with("parameters_blake3")).unwrap().to_owned()
    });
    assert_eq!(hashes[0], hashes[1]);

    for (content, word) in [
        ("", "rank 0 is missing"),
        ("what", "line 1"),
        (&*[entry(0), entry(2)].concat(), "rank 1 is missing"),
    ] {
        fs::write(&peers, content).unwrap();
        let output = start(&nodes[0], &[]).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{content}");
        let line = one_line(&output);
        assert!(line.contains("peers.toml") && line.contains(word), "{line}");
    }
}

#[test]
fn nodes_in_the_sites_of_a_peers_file_end_as_a_training_of_the_same_sites_does() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let made = output(&["keygen", "--world-size=3", "--out", run.to_str().unwrap()]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let entry = |(rank, site)| {
        format!("[[peer]]\nrank = {rank}\naddress = \"127.0.0.1:{}\"\nsite = \"{site}\"\n", free_port())
    };
    let peers = folder.path().join("peers.toml");
    fs::write(&peers, [(0, "oslo"), (1, "rome"), (2, "rome")].map(entry).concat()).unwrap();
    let options = ["--backend=cpu", "--steps=3", "--batch=8", "--json"];
    let node = |rank: u32, more: &[&str]| {
        let identity = format!("--identity={}", run.join(format!("rank-{rank}.pem")).display());
        let place = ["node".to_owned(), identity, format!("--peers={}", peers.display())];
        start(&with(&with(&place, &options), more), &[])
    };
    let nodes = [0, 1, 2].map(|rank| node(rank, &[]));
    let reports = nodes.map(|node| {
        let output = node.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    });
    let out = folder.path().join("train");
    let train = ["train", "--nodes=3", "--sites=1,2", "--mesh=memory", "--compare=none", "--out"];
    let output = output(&[&train[..], &[out.to_str().unwrap()], &options].concat());
    let trained: Value = serde_json::from_slice(&output.stdout).unwrap();
    for report in &reports {
        assert_eq!(report["parameters_blake3"], trained["runs"][0]["parameters_blake3"]);
        assert!(report["bytes"]["wan_packets"].as_u64().unwrap() > 0, "{report}");
    }

    let refused = node(0, &["--sites=1,2"]).wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(one_line(&refused).contains("--sites and a peers file with sites"), "{}", text(&refused.stderr));
}

#[test]
fn an_address_that_is_wrong_in_the_environment_is_named_by_its_variable() {
    let folder = tempfile::tempdir().unwrap();
    let [mut zero, _] = two_nodes(folder.path());
    zero.retain(|arg| !arg.starts_with("--rendezvous"));
    let rank = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
    for (name, value) in [("GRADWIRE_RENDEZVOUS", "127.0.0.1"), ("MASTER_ADDR", "127.0.0.1:29500")] {
        let output = start(&zero, &[&rank[..], &[(name, value)]].concat()).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let line = one_line(&output);
        assert!(line.contains(&format!("{name} is {value:?}")), "{line}");
    }
}

#[test]
fn what_is_wrong_with_an_identity_is_said_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, _] = two_nodes(folder.path());
    let wrong = |args: &[String], status, words: &[&str]| {
        let output = start(args, &[]).wait_with_output().unwrap();
        let line = one_line(&output);
        assert_eq!(output.status.code(), Some(status), "{line}");
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    };
    wrong(
        &with(&zero, &["--rank=1", "--world-size=2"]),
        2,
        &["rank-0.pem", "is of rank 0", "--rank says rank 1"],
    );
    let as_identity = |name: &str| {
        let mut args = with(&zero, &["--world-size=2"]);
        args.retain(|arg| !arg.starts_with("--identity"));
        with(&args, &["--identity", folder.path().join("run").join(name).to_str().unwrap()])
    };
    wrong(
        &as_identity("ca.pem"),
        2,
        &["ca.pem", "no private key in the identity", "holds a certificate only"],
    );
    wrong(&as_identity("ca-key.pem"), 1, &["ca-key.pem", "no certificate"]);
    wrong(&as_identity("rank-7.pem"), 1, &["rank-7.pem", "o such file"]);
}

#[test]
fn identities_of_different_runs_are_suspected_when_the_join_times_out() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [zero, mut one] = two_nodes(folder.path());
    let [_, of_other] = two_nodes(other.path());
    one[1].clone_from(&of_other[1]);
    let more = ["--world-size=2", "--join-timeout=2"];
    let outputs = both([with(&zero, &more), with(&one, &more)]);
    let told = outputs.each_ref().map(|output| text(&output.stderr));
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)), "{told:?}");
    assert!(told[1].contains("another keygen?"), "{told:?}");
    assert!(told[0].contains("rank 1 did not join within 2.0s"), "{told:?}");
}

#[test]
fn a_lost_rank_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, one] = two_nodes(folder.path()).map(|mut node| {
        node.retain(|arg| !arg.starts_with("--steps") && !arg.starts_with("--deadline"));
        with(&node, &["--steps=1000000", "--deadline=1", "--world-size=2"])
    });
    let out = folder.path().join("out");
    let zero = start(&with(&zero, &["--out", out.to_str().unwrap()]), &[]);
    let mut one = start(&one, &[]);
    // Written by the buffer full: some steps are done when it is not empty any more.
    while fs::metadata(out.join("steps.jsonl")).map_or(0, |meta| meta.len()) == 0 {
        assert!(one.try_wait().unwrap().is_none(), "rank 1 ended before it was killed");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    one.kill().unwrap();
    one.wait().unwrap();
    let output = zero.wait_with_output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(told.matches("rank 1 silent").count(), 1, "{told}");
    assert!(!told.contains("WARN") && !told.contains("tag"), "{told}");
}

#[test]
fn a_node_writes_over_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, _] = two_nodes(folder.path());
    let out = folder.path().join("out");
    let args =
        [zero, ["--world-size=1", "--out", out.to_str().unwrap()].map(str::to_owned).to_vec()].concat();
    let run = || start(&args, &[]).wait_with_output().unwrap();
    let first = run();
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let steps = std::fs::read(out.join("steps.jsonl")).unwrap();
    let again = run();
    assert_eq!(again.status.code(), Some(1));
    assert!(
        one_line(&again).contains("already holds a run; choose another --out"),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(std::fs::read(out.join("steps.jsonl")).unwrap(), steps);
}

/// One metric's value, as Prometheus would read it from `port`; `None` while there is none.
fn metric(port: u16, name: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let line = answer.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn a_node_serves_its_numbers_to_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let [zero, one] = two_nodes(folder.path()).map(|args| {
        args.into_iter()
            .filter(|arg| !arg.starts_with("--steps"))
            .chain(["--steps=1000000".into()])
            .collect::<Vec<_>>()
    });
    let more = ["--rank=0".into(), "--world-size=2".into(), format!("--metrics=127.0.0.1:{port}")];
    let mut zero = start(&[zero, more.to_vec()].concat(), &[]);
    let mut one = start(&[one, vec!["--rank=1".into(), "--world-size=2".into()]].concat(), &[]);
    let wanted = [
        "gradwire_step{rank=\"0\"}",
        "gradwire_stage_seconds_count{rank=\"0\",stage=\"exchange\"}",
        "gradwire_packet_sent_bytes_total{rank=\"0\",kind=\"gradient\"}",
        "gradwire_peer_udp_sent_bytes_total{rank=\"0\",peer=\"1\"}",
        "gradwire_peer_round_trip_seconds{rank=\"0\",peer=\"1\"}",
        "gradwire_peer_deadline_seconds{rank=\"0\",peer=\"1\"}",
    ];
    let began = Instant::now();
    let mut missing: Vec<&str> = wanted.to_vec();
    while !missing.is_empty() && began.elapsed() < Duration::from_secs(60) {
        missing.retain(|name| metric(port, name).is_none_or(|value| value <= 0.0));
    }
    for node in [&mut zero, &mut one] {
        node.kill().unwrap();
        node.wait().unwrap();
    }
    assert!(missing.is_empty(), "never above 0: {missing:?}");
}

#[test]
fn an_address_for_metrics_that_is_taken_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let [zero, _] = two_nodes(folder.path());
    let more = ["--rank=0".into(), "--world-size=2".into(), format!("--metrics={address}")];
    let output = start(&[zero, more.to_vec()].concat(), &[]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&format!("--metrics {address}: ")), "{}", text(&output.stderr));
}
