//! Keeps a line of Mesa's off the first screen of a user without a desktop.
//!
//! Mesa's device-select layer looks for a Wayland display whenever a Vulkan instance is made, and where there is no
//! session (a container, a server, cron) writes "error: XDG_RUNTIME_DIR is invalid or not set in the environment"
//! on stderr, several times: beside our one-line errors it reads like a failure of ours. `NODEVICE_SELECT` turns
//! the layer off; it only orders adapters, which we do ourselves. A variable can't be set safely in a running
//! process, so the process starts itself again with it, before it has done anything else (about 1 ms).

/// Does not return if the process was replaced by itself.
#[cfg(target_os = "linux")]
pub(crate) fn silence() {
    use std::env;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const OFF: &str = "NODEVICE_SELECT";
    if env::var_os("XDG_RUNTIME_DIR").is_some() || env::var_os(OFF).is_some() {
        return;
    }
    let mut arguments = env::args_os();
    let (Ok(program), Some(name)) = (env::current_exe(), arguments.next()) else { return };
    let error = Command::new(program).arg0(name).args(arguments).env(OFF, "1").exec();
    tracing::debug!(%error, "did not start again");
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn silence() {}
