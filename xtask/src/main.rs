//! `cargo xtask test`: what a machine needs for the tests, then the tests. `cargo xtask ci`: everything CI checks.
//! `cargo xtask fuzz`: hostile input.

mod fuzz;
mod vulkan;

use std::env;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask test [--without-gpu]   install a Vulkan driver if there is no adapter, then run all tests
       cargo xtask chaos [--runs N] [--seed S]
                                          N seeded runs of 64 simulated ranks with faults, 1,000 from seed 1 by default
       cargo xtask ci                     formatting, clippy, `cargo xtask test`, docs, `cargo xtask fuzz --smoke`
       cargo xtask fuzz --smoke           every fuzz target over its corpus and seeded mutations of it
       cargo xtask fuzz TARGET --runs N   one fuzz target under libFuzzer (needs a C++ compiler)

--without-gpu   install nothing; tests that need an adapter say that they were skipped";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["test"] => test(true),
        ["test", "--without-gpu"] => test(false),
        ["chaos"] => chaos("1000", "1"),
        ["chaos", "--runs", runs] => chaos(runs, "1"),
        ["chaos", "--seed", seed] => chaos("1000", seed),
        ["chaos", "--runs", runs, "--seed", seed] => chaos(runs, seed),
        ["ci"] => ci(),
        ["fuzz", "--smoke"] => fuzz::smoke(),
        ["fuzz", target, "--runs", runs] => fuzz::target(target, runs),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn ci() -> Result<(), String> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    for features in [&["--no-default-features"][..], &[], &["--all-features"]] {
        let clippy = ["clippy", "--workspace", "--all-targets"];
        run(cargo().args(clippy).args(features).args(["--", "-D", "warnings"]))?;
    }
    fuzz::lint()?;
    // What the features promise to leave out must not be needed: kernels without tokio, transport without quinn.
    run(cargo().args(["check", "--no-default-features"]))?;
    run(cargo().args(["check", "--no-default-features", "--features", "gpu"]))?;
    run(cargo().args(["check", "--package", "gradwire-transport", "--no-default-features"]))?;
    test(true)?;
    let docs = ["doc", "--workspace", "--all-features", "--no-deps"];
    run(cargo().args(docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    fuzz::smoke()
}

fn test(gpu: bool) -> Result<(), String> {
    let mut environment = Vec::new();
    if gpu {
        vulkan::ensure_adapter()?;
        environment.push(("GRADWIRE_REQUIRE_GPU", "1"));
    }
    let scope = ["--workspace", "--all-features"];
    let nextest = cargo().args(["nextest", "--version"]).output();
    if nextest.is_ok_and(|output| output.status.success()) {
        run(cargo().args(["nextest", "run"]).args(scope).envs(environment.iter().copied()))?;
        // nextest runs no documentation tests.
        run(cargo().args(["test", "--doc"]).args(scope).envs(environment))
    } else {
        run(cargo().arg("test").args(scope).envs(environment))
    }
}

fn chaos(runs: &str, seed: &str) -> Result<(), String> {
    let test =
        ["test", "--release", "--no-default-features", "--test", "chaos", "--", "--nocapture", "every_run"];
    run(cargo().args(test).env("GRADWIRE_CHAOS_RUNS", runs).env("GRADWIRE_CHAOS_SEED", seed))
}

/// The cargo that runs this task.
fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` to its end, shown before.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed: {status}")),
        Err(error) => Err(format!("`{shown}` did not start: {error}")),
    }
}

fn show(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit(['/', '\\']).next().unwrap_or(&program).to_owned();
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    [program].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}
