//! Lists the adapters that wgpu finds here, best first; exit status 1 if there is none.
//!
//!     cargo run --example adapters

use std::process::ExitCode;

use gradwire::gpu;

fn main() -> ExitCode {
    let adapters = gpu::adapters();
    for adapter in &adapters {
        println!("{}, {}", adapter.label(), adapter.driver);
    }
    if adapters.is_empty() {
        eprintln!("{}", gpu::GpuError::NoAdapter { wanted: None, seen: Vec::new() });
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
