//! What started the process: launchers' variables, and node lists.
//!
//! Holds: a rank is below its world's size, and a rendezvous is an address.

use gradwire_transport::{Known, Launch, address, launch};

use crate::{Recipe, memory};

const VARIABLES: [&str; 15] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_LAUNCH_NODE_IPADDR",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "JOB_COMPLETION_INDEX",
    "GRADWIRE_WORLD_SIZE",
    "GRADWIRE_RENDEZVOUS",
    "GRADWIRE_RANK",
];

pub fn run(input: &[u8]) {
    let mut recipe = Recipe::new(input);
    let known = recipe.u8();
    let number = |bit: u8, value| (known & bit != 0).then_some(value);
    let known = Known {
        rank: number(1, u32::from(known >> 5)),
        world_size: number(2, u32::from(known >> 4)),
        rendezvous: known & 4 != 0,
    };
    // A line each: the number of a variable as a letter, then its value.
    let text = recipe.text();
    let lookup = |name: &str| {
        let index = VARIABLES.iter().position(|variable| *variable == name)?;
        let letter = char::from(b'a' + index as u8);
        text.lines().find_map(|line| line.strip_prefix(letter)).map(str::to_owned)
    };
    let launch = memory::within((16 << 10) + 16 * text.len(), || Launch::from_environment(known, lookup));
    if let Ok(Some(launch)) = launch {
        assert!(launch.rank < launch.world_size, "{launch:?}");
        if let Some(rendezvous) = &launch.rendezvous {
            assert!(address::check(rendezvous).is_ok(), "{rendezvous:?} is no address: {launch:?}");
        }
    }
    if let Some(host) = launch::first_host(&text) {
        assert!(address::check(&format!("{host}:1")).is_ok(), "{host:?} is no host");
        assert_eq!(launch::first_host(&host), Some(host), "a host is a list of one");
    }
}
