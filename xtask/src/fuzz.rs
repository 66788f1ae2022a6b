//! `cargo xtask fuzz`: the smoke run on any compiler, or one target under libFuzzer.
//!
//! libFuzzer's instrumentation is the compiler's, behind unstable flags; `RUSTC_BOOTSTRAP=1` lets a stable one take them, so
//! that no other toolchain and no tool has to be installed. A C++ compiler builds libFuzzer itself.

use std::path::Path;

use crate::{cargo, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz");

/// As cargo-fuzz passes them.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Formatting and clippy: `fuzz/` is a workspace of its own, so those of the root don't see it.
pub(crate) fn lint() -> Result<(), String> {
    run(cargo().args(["fmt", "--check"]).current_dir(FOLDER))?;
    let clippy = ["clippy", "--locked", "--all-targets", "--", "-D", "warnings"];
    run(cargo().args(clippy).current_dir(FOLDER))
}

/// Every target over its corpus and seeded mutations of it.
pub(crate) fn smoke() -> Result<(), String> {
    run(cargo().args(["test", "--locked", "--test", "smoke", "--lib"]).current_dir(FOLDER))
}

/// `runs` executions of `target`. Inputs that reach new code stay in `fuzz/target/corpus`, crashes in `fuzz/artifacts`; the
/// corpus in the repository is only read.
pub(crate) fn target(target: &str, runs: &str) -> Result<(), String> {
    runs.parse::<u64>().map_err(|_| format!("{runs:?} is no number of runs"))?;
    if !Path::new(FOLDER).join("fuzz_targets").join(target).with_extension("rs").is_file() {
        return Err(format!("no target is named {target:?}; there is one per file in fuzz/fuzz_targets"));
    }
    let found = format!("target/corpus/{target}");
    let artifacts = format!("artifacts/{target}/");
    for folder in [&found, &artifacts] {
        let folder = Path::new(FOLDER).join(folder);
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    // A target triple keeps the flags from build scripts and macros.
    let host = host()?;
    let build =
        ["run", "--locked", "--release", "--features", "libfuzzer", "--target", &host, "--bin", target];
    let options =
        [format!("-artifact_prefix={artifacts}"), format!("-runs={runs}"), "-timeout=10".to_owned()];
    let limits = ["-rss_limit_mb=1024", "-max_len=4096", "-print_final_stats=1"];
    run(cargo()
        .args(build)
        .args(["--", &found, &format!("corpus/{target}")])
        .args(options)
        .args(limits)
        .current_dir(FOLDER)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS))
}

fn host() -> Result<String, String> {
    let output = std::process::Command::new("rustc").arg("-vV").output();
    let output = output.map_err(|error| format!("`rustc -vV` did not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".to_owned())
}
