//! Nodes of a training that are killed, stopped or left alone: named by the others, and never left behind.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{gradwire, text};

/// A training that would take hours, with its nodes by rank.
struct Endless {
    parent: Child,
    nodes: Vec<u32>,
    // Holds the output until the end of the test.
    _folder: tempfile::TempDir,
}

impl Endless {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap().to_owned();
        let args = ["train", "--nodes=3", "--steps=1000000", "--backend=cpu", "--deadline=1", "--out", &out];
        let parent = gradwire(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let steps = folder.path().join("steps.jsonl");
        // Written by the buffer full: some hundred steps are done when it is not empty any more.
        until("the first steps", || fs::metadata(&steps).is_ok_and(|meta| meta.len() > 0));
        let nodes: Vec<u32> = (0..3).map(|rank| child(parent.id(), &format!("--rank={rank}"))).collect();
        Self { parent, nodes, _folder: folder }
    }

    /// Waits for the end; the nodes must be gone by then.
    fn end(self) -> (Output, Duration) {
        let start = Instant::now();
        let output = self.parent.wait_with_output().unwrap();
        let took = start.elapsed();
        for &node in &self.nodes {
            assert!(!is_alive(node), "node {node} is left behind");
        }
        (output, took)
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "no sign of {what} after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process under `parent` that has `word` on its command line.
fn child(parent: u32, word: &str) -> u32 {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let has = |id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|arg| arg == word.as_bytes())
    };
    children.split_whitespace().map(|id| id.parse().unwrap()).find(has).unwrap()
}

/// A process that is there, and not only as an entry that nobody has waited for.
fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn signal(name: &str, id: u32) {
    let sent = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
    assert!(sent.success(), "{name} to {id}");
}

/// The last line of a failed run.
fn failure(output: &Output) -> String {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(told.matches("error: ").count(), 1, "said once: {told}");
    assert!(output.stdout.is_empty(), "a failed run prints no result");
    told.lines().last().unwrap().to_owned()
}

#[test]
fn a_killed_node_is_named_by_the_others_and_ends_the_run() {
    let run = Endless::start();
    signal("-KILL", run.nodes[2]);
    let (output, took) = run.end();
    let line = failure(&output);
    assert!(line.contains("rank 2") && line.contains("SIGKILL"), "{line}");
    // Not a measurement: without the deadline it would never end.
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_stopped_node_is_named_by_the_others_and_ends_the_run() {
    let run = Endless::start();
    signal("-STOP", run.nodes[1]);
    let (output, took) = run.end();
    let line = failure(&output);
    assert!(line.contains("rank 1") && line.contains("is stopped"), "{line}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn an_interrupt_ends_every_node() {
    for name in ["-INT", "-TERM"] {
        let run = Endless::start();
        signal(name, run.parent.id());
        let line = failure(&run.end().0);
        assert!(line.contains("interrupted"), "{line}");
    }
}

#[test]
fn nodes_end_when_their_parent_is_killed() {
    let mut run = Endless::start();
    signal("-KILL", run.parent.id());
    run.parent.wait().unwrap();
    for &node in &run.nodes {
        until("the end of a node without a parent", || !is_alive(node));
    }
}
