//! The binary from outside: exit statuses, messages, what `--json` prints, and that no process stays behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn gradwire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"] {
        command.env_remove(name);
    }
    command
}

fn output(args: &[&str]) -> Output {
    gradwire(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The only line on stderr.
fn one_line(output: &Output) -> String {
    let text = text(&output.stderr);
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A short training on the CPU of 3 nodes into `folder`, plus `more`.
fn short<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["train", "--nodes=3", "--steps=4", "--batch=8", "--backend=cpu", "--out", folder];
    [&base[..], more].concat()
}

#[test]
fn wrong_usage_ends_with_2_and_one_line_with_both_numbers() {
    for (args, words) in [
        (&["train", "--nodes", "0"][..], &["--nodes is 0", "1 to 256"][..]),
        (&["train", "--backend", "cpu,cpu"], &["2 values", "4 nodes"]),
        (&["train", "--task", "text"], &["--data"]),
        (&["train", "--lr=-1"], &["--lr is -1"]),
        (&["train", "--deadline", "0"], &["--deadline is 0 s", "0.1 to 3600"]),
        (&["train", "--nodes=256", "--batch=65536"], &["16777216", "2097152"]),
        (&["node", "--identity=x", "--rank=3", "--world-size=2"], &["rank 3", "world size 2"]),
        (&["node", "--identity=x"], &["--rank"]),
    ] {
        let output = output(args);
        let line = one_line(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {line}");
        for word in words {
            assert!(line.contains(word), "{args:?}: {line}");
        }
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn options_that_the_parser_refuses_end_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["train", "--codec", "zip"],
        &["train", "--scale", "65"],
        &["train", "--steps", "0"],
        &["train", "--batch", "0"],
        &["keygen", "--out", "x", "--world-size", "0"],
        &["node", "--rank", "0", "--world-size", "1"],
    ] {
        assert_eq!(output(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn data_that_is_missing_or_too_short_ends_with_1_and_says_how_much_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let file = folder.path().join("short.txt");
    fs::write(&file, "too short").unwrap();
    let missing = folder.path().join("missing.txt");
    for (data, words) in [(&file, ["9 bytes", "need"]), (&missing, ["missing.txt", "o such file"])] {
        let args = ["train", "--task=text", "--data", data.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let output = output(&args);
        assert_eq!(output.status.code(), Some(1), "{data:?}");
        let line = one_line(&output);
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert!(!out.exists(), "nothing is written for a run that can't start");
}

#[test]
fn processes_and_threads_end_with_the_same_parameters_and_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let mut hashes = Vec::new();
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let out = folder.path().join(mesh);
        let output = output(&short(out.to_str().unwrap(), &[mesh, "--json"]));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["params"], 50_826);
        assert_eq!(report["steps"], 4);
        let runs = report["runs"].as_array().unwrap();
        let names: Vec<&Value> = runs.iter().map(|run| &run["codec"]["name"]).collect();
        assert_eq!(names, ["loco", "f32"]);
        for run in runs {
            assert_eq!(run["nodes"].as_array().unwrap().len(), 3);
            assert!(run["eval_accuracy"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)));
            assert!(run["seconds"]["total"].as_f64().unwrap() > 0.0);
            let udp = run["bytes"]["udp"].as_u64().unwrap();
            assert_eq!(udp > run["bytes"]["frames"].as_u64().unwrap(), mesh == "--mesh=quic", "{udp}");
        }
        let sent = |run: &Value| run["bytes"]["gradient_packets"].as_u64().unwrap() as f64;
        assert!(sent(&runs[1]) / sent(&runs[0]) >= 7.9, "{} and {}", sent(&runs[0]), sent(&runs[1]));
        hashes.push(runs.iter().map(|run| run["parameters_blake3"].clone()).collect::<Vec<_>>());

        let written: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
        assert_eq!(written, report);
        let steps = fs::read_to_string(out.join("steps.jsonl")).unwrap();
        assert_eq!(steps.lines().count(), 2 * 3 * 4, "a line per run, rank and step");
        assert!(steps.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
        assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("</html>"));
        let model = fs::read(out.join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(model[..8].try_into().unwrap());
        assert_eq!(model.len() as u64, 8 + header + 4 * 50_826, "every parameter is in the file");
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn a_seed_repeats_to_the_bit_and_another_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |seed: &str| {
        let output = output(&short(folder.path().to_str().unwrap(), &["--json", "--compare=none", seed]));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["runs"][0]["parameters_blake3"].clone()
    };
    assert_eq!(hash("--seed=1"), hash("--seed=1"));
    assert_ne!(hash("--seed=1"), hash("--seed=2"));
}

#[test]
fn a_run_that_diverges_ends_with_1_and_says_whose_gradient_is_not_finite() {
    let folder = tempfile::tempdir().unwrap();
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let output = output(&short(folder.path().to_str().unwrap(), &["--lr=1e30", "--json", mesh]));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let line = told.lines().last().unwrap();
        assert!(line.contains("rank 0 has") && line.ends_with("not finite"), "{told}");
        assert!(output.stdout.is_empty(), "a failed run prints no result");
    }
}

#[test]
fn keygen_writes_identities_for_their_owner_alone_and_never_over_others() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let args = ["keygen", "--world-size=2", "--json", "--out", run.to_str().unwrap()];
    let first = output(&args);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    for identity in report["identities"].as_array().unwrap() {
        let meta = fs::metadata(identity.as_str().unwrap()).unwrap();
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, 0o600);
        assert!(meta.len() > 500);
    }
    let again = output(&args);
    assert_eq!(again.status.code(), Some(1));
    one_line(&again);
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
    let hashes = outputs.each_ref().map(|output| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["parameters_blake3"].clone()
    });
    assert_eq!(hashes[0], hashes[1]);
    assert!(text(&outputs[1].stderr).contains("torchrun"), "{}", text(&outputs[1].stderr));
}

#[test]
fn nodes_that_disagree_end_with_1_and_name_what_differs() {
    for (option, word) in [("--codec=f32", "codec"), ("--seed=9", "seed"), ("--steps=4", "steps")] {
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
            assert!(line.starts_with("error: ") && line.contains(other) && line.contains(word), "{told}");
        }
    }
}

#[test]
fn an_identity_that_is_missing_or_of_another_rank_ends_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, _] = two_nodes(folder.path());
    let other = start(&[zero.clone(), vec!["--rank=1".into(), "--world-size=2".into()]].concat(), &[]);
    let output = other.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = one_line(&output);
    assert!(line.contains("rank 0") && line.contains("rank 1"), "{line}");

    fs::remove_file(folder.path().join("run/rank-0.pem")).unwrap();
    let output = start(&[zero, vec!["--rank=0".into(), "--world-size=2".into()]].concat(), &[])
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output).contains("rank-0.pem"));
}
