//! What becomes of a run when something goes wrong in it: one line that says whose fault it is, and nothing left.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn gradwire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The last line of a failed run.
fn failure(output: &Output) -> String {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let said = told.lines().filter(|line| line.starts_with("gradwire: ")).count();
    assert_eq!(said, 1, "said once: {told}");
    assert!(output.stdout.is_empty(), "a failed run prints no result");
    told.lines().last().unwrap().to_owned()
}

/// A short training on the CPU of 3 nodes into `folder`, plus `more`.
fn short(folder: &Path, more: &[&str]) -> Output {
    let base = ["train", "--nodes=3", "--batch=8", "--backend=cpu", "--compare=none", "--json", "--out"];
    gradwire(&[&base[..], &[folder.to_str().unwrap()], more].concat()).output().unwrap()
}

#[test]
fn a_run_that_diverges_in_its_last_step_fails_and_leaves_no_model() {
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let folder = tempfile::tempdir().unwrap();
        let output = short(folder.path(), &["--lr=1e38", "--weight-decay=1e38", "--steps=1", mesh]);
        let line = failure(&output);
        assert!(line.contains("parameters are not finite after step 1"), "{line}");
        assert!(!folder.path().join("model.safetensors").exists(), "{line}");
        assert!(!folder.path().join("report.json").exists(), "{line}");
    }
}

#[test]
fn a_run_whose_evaluation_is_not_finite_fails_and_shows_no_raw_event() {
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let folder = tempfile::tempdir().unwrap();
        let output = short(folder.path(), &["--lr=1e30", "--steps=1", mesh]);
        let line = failure(&output);
        assert!(line.contains("not finite") || line.contains("evaluation loss is"), "{line}");
        assert!(line.contains("after step 1"), "{line}");
        assert!(!text(&output.stderr).contains('{'), "{}", text(&output.stderr));
    }
}

#[test]
fn a_run_goes_on_until_a_gradient_is_not_finite_and_every_step_before_is_written() {
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let folder = tempfile::tempdir().unwrap();
        // Here the loss is infinite, and null in JSON, in the step before.
        let output = short(folder.path(), &["--lr=1e6", "--optimizer=sgd", "--steps=40", mesh]);
        let line = failure(&output);
        let step = line.strip_prefix("gradwire: step ").and_then(|rest| rest.split_once(':')).unwrap().0;
        let step: usize = step.parse().unwrap();
        let steps = std::fs::read_to_string(folder.path().join("steps.jsonl")).unwrap();
        assert_eq!(steps.lines().count(), 3 * (step - 1), "{line}");
        assert!(!text(&output.stderr).contains('{'), "{}", text(&output.stderr));
    }
}

#[test]
fn a_scale_is_refused_where_no_codec_of_the_run_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = short(folder.path(), &["--codec=f32", "--scale=7", "--steps=2"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--scale belongs to a codec"), "{}", text(&output.stderr));
}

#[test]
fn nodes_take_their_identities_from_stdin_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let made = gradwire(&["keygen", "--world-size=2", "--out", run.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("127.0.0.1:{}", socket.local_addr().unwrap().port());
    drop(socket);
    let (rendezvous, bind) = (format!("--rendezvous={address}"), format!("--bind={address}"));
    let base = ["node", "--identity=-", "--backend=cpu", "--steps=3", "--batch=8", "--world-size=2"];
    let place = [["--rank=0", &bind], ["--rank=1", "--bind=127.0.0.1:0"]];
    let nodes = [0, 1].map(|rank| {
        let identity = std::fs::File::open(run.join(format!("rank-{rank}.pem"))).unwrap();
        gradwire(&[&base[..], &place[rank], &[&rendezvous]].concat())
            .stdin(identity)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for node in nodes {
        let output = node.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let none = gradwire(&[&base[..], &["--rank=0", &rendezvous]].concat()).output().unwrap();
    assert!(failure(&none).contains("stdin: no certificate in the identity"), "{none:?}");
}

/// What becomes of processes needs /proc to look at.
#[cfg(target_os = "linux")]
mod processes {
    use std::fs;
    use std::process::Child;
    use std::time::{Duration, Instant};

    use super::*;

    /// A training that would take hours, with its nodes by rank.
    struct Endless {
        parent: Child,
        nodes: Vec<u32>,
        // Holds the output until the end of the test.
        _folder: tempfile::TempDir,
    }

    impl Endless {
        /// Of 3 nodes that have taken some hundred steps.
        fn running(deadline: u32) -> Self {
            let mut run = Self::start(3, deadline);
            let steps = run._folder.path().join("out/steps.jsonl");
            // Written by the buffer full.
            until("the first steps", || fs::metadata(&steps).is_ok_and(|meta| meta.len() > 0));
            run.nodes = (0..3).map(|rank| child(run.parent.id(), rank).unwrap()).collect();
            run
        }

        /// Of `count` nodes that are on their way to each other.
        fn joining(count: u32, deadline: u32) -> Self {
            let mut run = Self::start(count, deadline);
            let mut find = |rank| {
                let mut found = None;
                until("a node", || {
                    found = child(run.parent.id(), rank);
                    found.is_some()
                });
                found.unwrap()
            };
            run.nodes = (0..count).map(&mut find).collect();
            run
        }

        fn start(count: u32, deadline: u32) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let temp = folder.path().join("temp");
            fs::create_dir(&temp).unwrap();
            let (nodes, deadline) = (format!("--nodes={count}"), format!("--deadline={deadline}"));
            let parent = gradwire(&["train", "--steps=1000000", "--backend=cpu", &nodes, &deadline, "--out"])
                .arg(folder.path().join("out"))
                // Whatever a run leaves in the folder for temporary files is seen there.
                .env("TMPDIR", &temp)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            Self { parent, nodes: Vec::new(), _folder: folder }
        }

        fn stop(&self, ranks: &[usize]) {
            let nodes: Vec<u32> = ranks.iter().map(|rank| self.nodes[*rank]).collect();
            signal("-STOP", &nodes);
        }

        /// Waits for the end; the nodes must be gone by then. A minute at most: less than a deadline of an hour.
        fn end(mut self) -> Output {
            until("the end", || self.parent.try_wait().unwrap().is_some());
            let output = self.parent.wait_with_output().unwrap();
            for &node in &self.nodes {
                assert!(!is_alive(node), "node {node} is left behind");
            }
            let left: Vec<_> = fs::read_dir(self._folder.path().join("temp")).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
            output
        }
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "no sign of {what} after a minute");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process of `rank` under `parent`.
    fn child(parent: u32, rank: u32) -> Option<u32> {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        let word = format!("--rank={rank}");
        let has = |id: &u32| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|arg| arg == word.as_bytes())
        };
        children.split_whitespace().map(|id| id.parse().unwrap()).find(has)
    }

    /// A process that is there, and not only as an entry that nobody has waited for.
    fn is_alive(id: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// To all of them at once.
    fn signal(name: &str, ids: &[u32]) {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let sent = Command::new("kill").arg(name).args(&ids).status().unwrap();
        assert!(sent.success(), "{name} to {ids:?}");
    }

    #[test]
    fn a_killed_node_is_named_with_its_signal_whatever_the_deadline() {
        let run = Endless::running(3600);
        signal("-KILL", &[run.nodes[2]]);
        let line = failure(&run.end());
        assert!(line.contains("rank 2") && line.contains("SIGKILL"), "{line}");
    }

    #[test]
    fn a_stopped_node_is_named_by_the_others_and_ends_the_run() {
        let run = Endless::running(1);
        run.stop(&[1]);
        let line = failure(&run.end());
        assert!(line.contains("rank 1 ") && line.contains("is stopped"), "{line}");
    }

    #[test]
    fn a_node_that_is_stopped_before_all_have_joined_is_named() {
        for rank in [0, 1] {
            let run = Endless::joining(2, 1);
            run.stop(&[rank]);
            let line = failure(&run.end());
            assert!(line.contains(&format!("rank {rank} ")) && line.contains("is stopped"), "{line}");
            assert!(!line.contains("did not join"), "noticed before the others gave up: {line}");
        }
    }

    #[test]
    fn every_stopped_node_is_named() {
        let run = Endless::running(1);
        run.stop(&[0, 2]);
        let line = failure(&run.end());
        assert!(line.contains("the processes of ranks 0 and 2 are stopped"), "{line}");
    }

    #[test]
    fn nodes_that_are_all_stopped_are_noticed_by_their_parent() {
        let run = Endless::running(1);
        run.stop(&[0, 1, 2]);
        let line = failure(&run.end());
        assert!(line.contains("ranks 0, 1 and 2 gave no sign of life for"), "{line}");
        assert!(line.contains("deadline 1.0s") && line.contains("are stopped"), "{line}");
    }

    #[test]
    fn a_stop_that_is_shorter_than_the_deadline_does_no_harm() {
        let mut run = Endless::running(3);
        run.stop(&[0, 1, 2]);
        signal("-STOP", &[run.parent.id()]);
        // The parent's own stop is longer than any deadline, and must not be taken for the silence of its nodes.
        signal("-CONT", &run.nodes);
        std::thread::sleep(Duration::from_secs(5));
        signal("-CONT", &[run.parent.id()]);
        std::thread::sleep(Duration::from_secs(2));
        assert!(run.parent.try_wait().unwrap().is_none(), "the run goes on");
        signal("-INT", &[run.parent.id()]);
        assert!(failure(&run.end()).contains("interrupted"));
    }

    #[test]
    fn a_node_that_is_killed_before_all_have_joined_ends_the_run_whatever_the_deadline() {
        for rank in [0, 1] {
            let run = Endless::joining(2, 3600);
            signal("-KILL", &[run.nodes[rank]]);
            let line = failure(&run.end());
            assert!(line.contains(&format!("rank {rank}")) && line.contains("SIGKILL"), "{line}");
        }
    }

    #[test]
    fn a_node_that_fails_before_all_have_joined_says_why_whatever_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let more = ["--nodes=2", "--backend=cpu,gpu", "--adapter=no such adapter", "--deadline=3600"];
        let base = ["train", "--compare=none", "--steps=3", "--out", folder.path().to_str().unwrap()];
        let output = gradwire(&[&base[..], &more].concat()).output().unwrap();
        let line = failure(&output);
        assert!(line.contains("rank 1") && line.contains("no such adapter"), "{line}");
    }

    #[test]
    fn a_node_that_is_interrupted_tells_the_others() {
        for (name, rank) in [("-TERM", 1), ("-INT", 0)] {
            let run = Endless::running(3600);
            signal(name, &[run.nodes[rank]]);
            let line = failure(&run.end());
            assert!(line.contains(&format!("rank {rank} was interrupted")), "{line}");
        }
    }

    #[test]
    fn an_interrupt_ends_every_node() {
        for name in ["-INT", "-TERM"] {
            let run = Endless::running(1);
            signal(name, &[run.parent.id()]);
            let line = failure(&run.end());
            assert!(line.contains("interrupted"), "{line}");
        }
    }

    #[test]
    fn nodes_end_when_their_parent_is_killed_and_no_key_stays_behind() {
        for mut run in [Endless::running(1), Endless::joining(2, 1)] {
            signal("-KILL", &[run.parent.id()]);
            run.parent.wait().unwrap();
            for &node in &run.nodes {
                until("the end of a node without a parent", || !is_alive(node));
            }
            let left: Vec<_> = fs::read_dir(run._folder.path().join("temp")).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// As when the program is built anew during a run.
#[cfg(target_os = "linux")]
#[test]
fn a_run_outlives_the_removal_of_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let (program, out) = (folder.path().join("gradwire"), folder.path().join("out"));
    std::fs::copy(env!("CARGO_BIN_EXE_gradwire"), &program).unwrap();
    let args = ["train", "--nodes=2", "--backend=cpu", "--steps=20", "--out", out.to_str().unwrap()];
    let mut run = Command::new(&program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // There as soon as the options are read, and before any node has started.
    while !out.join("steps.jsonl").exists() && run.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::fs::remove_file(&program).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("f32"), "both runs came to their end");
}
