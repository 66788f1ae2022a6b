//! Sees to it that there is an adapter for wgpu: Metal and DX12 come with their systems, Vulkan may not.

use std::process::{Command, Stdio};

use crate::{cargo, run, show};

/// The software rasteriser (lavapipe) and the loader, as Debian and its derivatives call them.
const PACKAGES: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// Installs a software driver where no adapter is found and where that is possible without asking.
pub(crate) fn ensure_adapter() -> Result<(), String> {
    // Built first and apart, so that a broken build is not taken for a missing adapter.
    run(cargo().args(["build", "--example", "adapters"]))?;
    if adapter_found()? {
        return Ok(());
    }
    let commands = [command(&["update"]), command(&["install", "--yes", "--no-install-recommends"])];
    if !cfg!(target_os = "linux") || !answers("apt-get", &["--version"]) {
        eprintln!("xtask: no adapter found; install a Vulkan driver (lavapipe of Mesa is enough)");
        return Ok(());
    }
    if !is_root() && !answers("sudo", &["-n", "true"]) {
        eprintln!("xtask: no adapter found; to install a software one:");
        commands.iter().for_each(|command| eprintln!("    {}", show(command)));
        return Ok(());
    }
    for mut install in commands {
        run(&mut install)?;
    }
    if adapter_found()? { Ok(()) } else { Err(format!("no adapter after installing {}", PACKAGES.join(" "))) }
}

fn command(verb: &[&str]) -> Command {
    let mut command = if is_root() { Command::new("apt-get") } else { Command::new("sudo") };
    if !is_root() {
        command.arg("apt-get");
    }
    command.args(verb).env("DEBIAN_FRONTEND", "noninteractive");
    if verb[0] == "install" {
        command.args(PACKAGES);
    }
    command
}

/// Asks wgpu itself, through the example that lists adapters.
fn adapter_found() -> Result<bool, String> {
    let mut list = cargo();
    list.args(["run", "--quiet", "--example", "adapters"]);
    match list.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("`{}` did not start: {error}", show(&list))),
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn answers(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
