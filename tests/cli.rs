//! The binary from outside: exit statuses, messages, and what `--json` prints. What can go wrong in a run: tests/faults.rs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "cli/exchange.rs"]
mod exchange;
#[path = "cli/node.rs"]
mod node;
#[path = "cli/step.rs"]
mod step;

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn gradwire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    let launchers = ["RANK", "WORLD_SIZE", "MASTER_", "GRADWIRE_", "SLURM_", "OMPI_", "JOB_COMPLETION_INDEX"];
    for (name, _) in std::env::vars_os() {
        if launchers.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
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
        (&["train", "--compare=loco"], &["--compare loco", "--codec loco", "--compare none"]),
        (&["train", "--nodes=3", "--sites=2,2"], &["--sites are of 4 ranks", "there are 3"]),
        (&["train", "--inner-codec=f16"], &["--inner-codec belongs to sites"]),
        (&["train", "--sites=2,2", "--inner-codec=loco"], &["inner codec is loco", "without state"]),
        (&["train", "--sites=2,2", "--codec=powersgd"], &["powersgd in 2 sites"]),
        (&["train", "--compare=f32", "--codec=f32"], &["--compare f32", "--codec f32"]),
        (&["node", "--identity=x"], &["--world-size"]),
        (
            &["node", "--identity=x", "--world-size=2", "--rendezvous=127.0.0.1"],
            &[r#"--rendezvous needs HOST:PORT, got "127.0.0.1""#],
        ),
        (&["node", "--identity=x", "--world-size=2", "--rendezvous=127.0.0.1:0"], &["127.0.0.1:0"]),
        (&["node", "--identity=x", "--peers=no-such.toml"], &["no-such.toml", "o such file"]),
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
fn options_that_the_parser_refuses_end_with_2_one_line_that_says_why_and_a_hint() {
    for (args, why) in [
        (&["fly"][..], "'fly'"),
        (&["train", "--codec", "zip"], "no codec is named \"zip\""),
        (&["train", "--codec", "loco:decay=256"], "loco does not take \"decay=256\", but 0 to 255"),
        (&["bench", "kernels", "--elements", "0"], "--elements"),
        (&["bench", "kernels", "--elements", "1Mib"], "1Mib"),
        (&["bench", "kernels", "--codec", "zip"], "no codec is named \"zip\""),
        (
            &["bench", "kernels", "--codec", "powersgd:seed=1"],
            "powersgd is a scheme of exchange without kernels",
        ),
        (&["bench", "exchange", "--nodes", "1"], "2..=64"),
        (&["bench", "exchange", "--bytes", "5GiB"], "5368709120 bytes, must be at most 4294967296"),
        (&["bench", "exchange", "--link-rate", "fast"], "neither declared, estimated nor a rate"),
        (&["bench", "exchange", "--link", "1Gbit,80ms"], "no loss: RATE,RTT,LOSS"),
        (&["train", "--scale", "65"], "-64 to 64"),
        (&["train", "--steps", "0"], "1..=1000000000"),
        (&["train", "--batch", "0"], "1..=65536"),
        (&["train", "--backend", "cuda"], "[possible values: auto, cpu, gpu]"),
        (&["train", "--no-such"], "--no-such"),
        (&["node", "--identity=x", "--join-timeout=0"], "--join-timeout"),
        (&["keygen", "--out", "x", "--world-size", "0"], "--world-size"),
        (&["node", "--rank", "0", "--world-size", "1"], "--identity"),
    ] {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let told = text(&output.stderr);
        let [line, hint] = told.lines().collect::<Vec<_>>()[..] else { panic!("{args:?}: {told}") };
        assert!(line.starts_with("gradwire: ") && line.contains(why), "{args:?}: {told}");
        assert!(hint.contains("--help") && output.stdout.is_empty(), "{args:?}: {told}");
        // `cuda` is not a misspelt `cpu`.
        assert!(!told.contains("similar value"), "{args:?}: {told}");
    }
    for args in [&[][..], &["bench"]] {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("Commands:"), "{args:?}: {}", text(&output.stderr));
    }
}

/// The rows of `bench kernels --json` with `args`.
fn kernel_rows(args: &[&str]) -> Vec<Value> {
    let base = ["bench", "kernels", "--elements=1Ki", "--json"];
    let output = output(&[&base[..], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ranks"], 4, "{report}");
    report["rows"].as_array().unwrap().clone()
}

#[test]
fn bench_kernels_has_three_rows_for_every_codec_and_counts_the_bytes_of_its_input() {
    let rows = kernel_rows(&["--backend=cpu"]);
    let names: Vec<_> = rows.iter().step_by(3).map(|row| row["codec"].as_str().unwrap()).collect();
    assert_eq!(names, gradwire::codec::CodecId::ALL.map(gradwire::codec::CodecId::name));
    for three in rows.chunks(3) {
        let kernels: Vec<_> = three.iter().map(|row| row["kernel"].as_str().unwrap()).collect();
        assert_eq!(kernels, ["encode", "average", "copy"]);
        assert_eq!(three[0]["bytes"], three[2]["bytes"], "the copy moves what the encode moves");
        assert_eq!(three[2]["share_of_copy"], 1.0);
        for row in three {
            assert_eq!((&row["backend"], &row["adapter"]), (&"cpu".into(), &Value::Null));
            assert_eq!((&row["elements"], &row["repeats"]), (&1024.into(), &5.into()));
            let [seconds, min, max, rate, share] = ["seconds", "min", "max", "gb_per_s", "share_of_copy"]
                .map(|field| row[field].as_f64().unwrap());
            assert!(0.0 < min && min <= seconds && seconds <= max, "{row}");
            assert!(rate > 0.0 && share > 0.0, "{row}");
        }
    }
    let bytes = |input| kernel_rows(&["--backend=cpu", "--codec=loco:decay=0", input])[0]["bytes"].clone();
    assert_eq!((bytes("--input=f32"), bytes("--input=bf16")), (6656.into(), 4608.into()));
}

#[test]
fn bench_kernels_measures_every_adapter_and_refuses_a_name_that_none_has() {
    let adapters = gradwire::gpu::adapters();
    let required = std::env::var("GRADWIRE_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required || !adapters.is_empty(), "GRADWIRE_REQUIRE_GPU is 1, but there is no adapter");
    let rows = kernel_rows(&["--backend=all", "--codec=loco", "--codec=f32"]);
    let on = |backend| rows.iter().filter(move |row| row["backend"] == backend);
    assert_eq!((on("cpu").count(), on("gpu").count()), (6, 6 * adapters.len()), "{rows:?}");
    for (six, info) in on("gpu").collect::<Vec<_>>().chunks(6).zip(&adapters) {
        let kernels = ["encode", "average", "copy"];
        let expected = ["loco", "f32"].into_iter().flat_map(|codec| kernels.map(|kernel| (codec, kernel)));
        for (row, (codec, kernel)) in six.iter().zip(expected) {
            assert_eq!((&row["kernel"], &row["codec"]), (&kernel.into(), &codec.into()));
            assert_eq!((&row["adapter"], &row["elements"]), (&info.name.as_str().into(), &1024.into()));
            assert!(row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let output = output(&["bench", "kernels", "--adapter=no such adapter"]);
    assert_eq!(output.status.code(), Some(1));
    let line = one_line(&output);
    assert!(line.contains("adapter"), "{line}");
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
fn sites_of_processes_and_of_threads_end_with_the_same_parameters_and_say_what_went_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["--mesh=quic", "--mesh=memory"].map(|mesh| {
        let out = folder.path().join(mesh);
        let more = [mesh, "--json", "--sites=1,2", "--inner-codec=block8", "--compare=none"];
        let output = output(&short(out.to_str().unwrap(), &more));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["settings"]["sites"], serde_json::json!([1, 2]));
        assert!(report["settings"]["inner_codec"].as_str().unwrap().starts_with("block8:block=64"));
        let page = fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("of these, between sites") && page.contains("1, 2 nodes, block8"), "{page}");
        let bytes = &report["runs"][0]["bytes"];
        let sent = |kind: &str| bytes[kind].as_u64().unwrap();
        // In each direction of the one pair of sites at most a gradient of 4 bits and the parameters, once together
        // for both, and a header per pair of ranks.
        let once = 4 * (50_826 / 2 + 4 * 50_826 + 2 * 2 * 32);
        assert!((once - once / 100..once + once / 100).contains(&sent("wan_packets")), "{bytes}");
        assert!(sent("wan_packets") < sent("gradient_packets") + sent("parameter_packets"), "{bytes}");
        report["runs"][0]["parameters_blake3"].clone()
    });
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn a_seed_repeats_to_the_bit_and_another_one_does_not() {
    let hash = |seed: &str| {
        let folder = tempfile::tempdir().unwrap();
        let output = output(&short(folder.path().to_str().unwrap(), &["--json", "--compare=none", seed]));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["runs"][0]["parameters_blake3"].clone()
    };
    assert_eq!(hash("--seed=1"), hash("--seed=1"));
    assert_ne!(hash("--seed=1"), hash("--seed=2"));
}

#[test]
fn a_run_that_diverges_ends_with_1_and_says_whose_gradient_is_not_finite() {
    for mesh in ["--mesh=quic", "--mesh=memory"] {
        let folder = tempfile::tempdir().unwrap();
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
    for half_gone in [false, true] {
        let again = output(&args);
        assert_eq!(again.status.code(), Some(1));
        let line = one_line(&again);
        assert!(line.contains("run already holds identities") && line.contains("choose another"), "{line}");
        if half_gone {
            assert!(!run.join("ca.pem").exists(), "no new authority beside old identities");
        } else {
            fs::remove_file(run.join("ca.pem")).unwrap();
        }
    }
}

#[test]
fn the_table_and_the_path_go_to_stdout_and_the_course_to_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let output = output(&short(out.to_str().unwrap(), &["--mesh=memory"]));
    let (result, course) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{course}");
    assert!(result.contains("accuracy") && !course.contains("accuracy"), "{result}{course}");
    assert_eq!(result.lines().last(), out.join("report.html").to_str());
    for codec in ["loco", "f32"] {
        for step in 1..=4 {
            assert!(course.contains(&format!("{codec}: step {step} of 4, loss ")), "{course}");
        }
    }
}

#[test]
fn a_run_is_not_written_over_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let args = short(folder.path().to_str().unwrap(), &["--mesh=memory", "--compare=none"]);
    assert_eq!(output(&args).status.code(), Some(0));
    let read = || fs::read(folder.path().join("report.json")).unwrap();
    let report = read();
    let again = output(&[&args[..], &["--seed=1"]].concat());
    assert_eq!(again.status.code(), Some(1));
    let line = one_line(&again);
    assert!(line.contains("already holds a run; choose another --out"), "{line}");
    assert_eq!(read(), report);
}

#[test]
fn the_default_folder_is_a_new_one_for_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["train", "--nodes=1", "--steps=1", "--batch=1", "--mesh=memory", "--compare=none"];
    let runs: Vec<Child> = (0..3)
        .map(|_| {
            gradwire(&args)
                .current_dir(folder.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut pages: Vec<String> = runs
        .into_iter()
        .map(|run| text(&run.wait_with_output().unwrap().stdout).lines().last().unwrap().to_owned())
        .collect();
    pages.sort();
    pages.dedup();
    assert_eq!(pages.len(), 3, "{pages:?}");
    assert!(pages.iter().all(|page| folder.path().join(page).exists()), "{pages:?}");
}

#[test]
fn a_rank_that_falls_back_to_the_cpu_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--backend=auto,cpu,auto", "--mesh=memory", "--compare=none"];
    let mut args = short(folder.path().to_str().unwrap(), &more);
    args.retain(|arg| *arg != "--backend=cpu");
    let report = |output: &Output| -> Value {
        let path = text(&output.stdout).lines().last().unwrap().replace("report.html", "report.json");
        serde_json::from_str(&fs::read_to_string(folder.path().join(path)).unwrap()).unwrap()
    };
    let output = output(&args);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    // Where there is a hardware adapter, nothing falls back.
    let fell_back = report(&output)["runs"][0]["nodes"][0]["backend"] == "cpu";
    assert_eq!(told.contains("ranks 0, 2: backend auto: "), fell_back, "{told}");
}

#[test]
fn an_adapter_that_is_asked_for_by_name_is_used_or_missed() {
    let run = |backend, code| {
        let folder = tempfile::tempdir().unwrap();
        let more = [backend, "--adapter=no such adapter", "--mesh=memory", "--compare=none"];
        let mut args = short(folder.path().to_str().unwrap(), &more);
        args.retain(|arg| *arg != "--backend=cpu" || *arg == backend);
        let output = output(&args);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains("no such adapter"), "{told}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "left by a run without a step");
    };
    run("--backend=auto", 1);
    run("--backend=gpu", 1);
}

#[test]
fn verify_has_vectors_of_its_own_and_takes_only_vectors() {
    let built_in = output(&["verify", "--json"]);
    assert_eq!(built_in.status.code(), Some(0), "{}", text(&built_in.stderr));
    let report: Value = serde_json::from_slice(&built_in.stdout).unwrap();
    assert_eq!(report["file"], "built in");
    let rows = report["results"].as_array().unwrap();
    for id in gradwire::codec::CodecId::ALL {
        assert!(rows.iter().any(|row| row["codec"] == id.name()), "{id} has no row");
    }
    for row in rows {
        assert!(row["cases"].as_u64().unwrap() > 0 && row["different"] == 0, "{row}");
    }

    let folder = tempfile::tempdir().unwrap();
    for content in [r#"{"codec": 1}"#, r#"{"steps": []}"#, "no JSON", ""] {
        let file = folder.path().join("other.json");
        fs::write(&file, content).unwrap();
        let output = output(&["verify", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{content}");
        let line = one_line(&output);
        assert!(line.contains("other.json: not a vector file") && !line.contains("column"), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_takes_no_byte_is_a_failure_on_stdout_and_nothing_on_stderr() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for verb in [&["verify"][..], &["verify", "--json"]] {
        let output = gradwire(verb).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", text(&output.stderr));
        assert!(one_line(&output).starts_with("gradwire: stdout: "), "{verb:?}: {}", text(&output.stderr));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let mut train = gradwire(&short(path.to_str().unwrap(), &[]));
    let status = train.stderr(full()).stdout(std::process::Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(0));
}
