//! Rank, world size and rendezvous from what started this process: torchrun, SLURM, Open MPI or Kubernetes.
//!
//! Launchers are tried in this order, and the first that is there counts:
//!
//! | launcher | there if | rank | world size | rendezvous |
//! |---|---|---|---|---|
//! | torchrun | `RANK` or `WORLD_SIZE`[^1] | `RANK` | `WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` |
//! | SLURM | `SLURM_PROCID` | `SLURM_PROCID` | `SLURM_NTASKS` | below |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` or `_SIZE` | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | below |
//! | Kubernetes | `JOB_COMPLETION_INDEX` | `JOB_COMPLETION_INDEX` | `GRADWIRE_WORLD_SIZE`, else `WORLD_SIZE` | below |
//!
//! `GRADWIRE_RENDEZVOUS` (host:port) overrides any launcher's rendezvous, and `MASTER_ADDR` comes next. Without
//! either, SLURM gives the first host of `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, or
//! `SLURM_LAUNCH_NODE_IPADDR`; the others give none. The port is `MASTER_PORT`, else [`DEFAULT_PORT`] (torchrun
//! must set it).
//!
//! [^1]: `WORLD_SIZE` alone beside `JOB_COMPLETION_INDEX` is Kubernetes.

mod nodelist;

use std::fmt;

use crate::address;
use crate::world::{World, WorldError};

pub use nodelist::first_host;

/// The rendezvous port where the launcher gives a host and no port.
pub const DEFAULT_PORT: u16 = 29_400;

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// torchrun, or another that sets its variables.
    Torchrun,
    /// SLURM's srun.
    Slurm,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A Kubernetes indexed job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "SLURM",
            Self::OpenMpi => "Open MPI",
            Self::Kubernetes => "a Kubernetes indexed job",
        })
    }
}

/// What is known from elsewhere, such as command-line options. It wins: the environment is not asked for it, so what
/// is missing or unusable there does not matter. Default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The rank.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub world_size: Option<u32>,
    /// Whether the way to the other ranks is known; [`Launch::rendezvous`] is `None` then.
    pub rendezvous: bool,
}

/// Which part of which world this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Below `world_size`.
    pub rank: u32,
    /// 1 to [`crate::world::MAX_WORLD_SIZE`].
    pub world_size: u32,
    /// `host:port` of rank 0, where the launcher says it and nobody else did.
    pub rendezvous: Option<String>,
    /// Who said so.
    pub source: Launcher,
}

/// An environment that a launcher set only in part, or not sensibly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A variable is missing beside others of the same launcher.
    #[error("{source_name} started this process, but {variable} is not set")]
    Missing {
        /// The launcher.
        source_name: Launcher,
        /// What is missing.
        variable: &'static str,
    },
    /// A variable is not what it should be.
    #[error("{variable} is {value:?}, {expected} is expected")]
    Value {
        /// Which one.
        variable: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The rank does not exist in the world.
    #[error("{source_name}: {error}")]
    World {
        /// The launcher.
        source_name: Launcher,
        /// What is wrong.
        error: WorldError,
    },
}

impl Launch {
    /// What the environment says beyond what is `known`; `None` if no launcher is there. `variable` looks up a name,
    /// for example with `|name| std::env::var(name).ok()`; an empty value counts as none. A world of one rank needs
    /// no rendezvous.
    ///
    /// # Errors
    ///
    /// If a launcher is there, but a variable that is needed is missing or unusable; it is named.
    pub fn from_environment(
        known: Known,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, LaunchError> {
        let environment = Environment { variable: &variable };
        let Some(source) = environment.launcher() else { return Ok(None) };
        let (rank, size): (_, &[_]) = match source {
            Launcher::Torchrun => ("RANK", &["WORLD_SIZE"]),
            Launcher::Slurm => ("SLURM_PROCID", &["SLURM_NTASKS"]),
            Launcher::OpenMpi => ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"]),
            Launcher::Kubernetes => ("JOB_COMPLETION_INDEX", &["GRADWIRE_WORLD_SIZE", "WORLD_SIZE"]),
        };
        let rank = match known.rank {
            Some(rank) => rank,
            None => environment.first(&[rank])?.ok_or(missing(source, rank))?,
        };
        let world_size = match known.world_size {
            Some(size) => size,
            None => environment.first(size)?.ok_or_else(|| {
                let both = "GRADWIRE_WORLD_SIZE or WORLD_SIZE";
                missing(source, if let [name] = size { name } else { both })
            })?,
        };
        World::new(rank, world_size, 0).map_err(|error| LaunchError::World { source_name: source, error })?;
        let rendezvous =
            if known.rendezvous || world_size == 1 { None } else { environment.rendezvous(source)? };
        Ok(Some(Self { rank, world_size, rendezvous, source }))
    }
}

struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn number(&self, variable: &'static str) -> Result<Option<u32>, LaunchError> {
        let Some(value) = self.text(variable) else { return Ok(None) };
        let expected = "a number from 0 to 4294967295";
        value.parse().map(Some).map_err(|_| LaunchError::Value { variable, value, expected })
    }

    /// The first of these variables that is set.
    fn first(&self, variables: &[&'static str]) -> Result<Option<u32>, LaunchError> {
        variables.iter().find_map(|name| self.number(name).transpose()).transpose()
    }

    fn launcher(&self) -> Option<Launcher> {
        let set = |name| self.text(name).is_some();
        // SLURM, Open MPI and Kubernetes scripts often set WORLD_SIZE for their own use; RANK is torchrun's.
        let others = ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "JOB_COMPLETION_INDEX"];
        if set("RANK") || (set("WORLD_SIZE") && !others.iter().any(|name| set(name))) {
            Some(Launcher::Torchrun)
        } else if set("SLURM_PROCID") {
            Some(Launcher::Slurm)
        } else if set("OMPI_COMM_WORLD_RANK") || set("OMPI_COMM_WORLD_SIZE") {
            Some(Launcher::OpenMpi)
        } else if set("JOB_COMPLETION_INDEX") {
            Some(Launcher::Kubernetes)
        } else {
            None
        }
    }

    fn rendezvous(&self, source: Launcher) -> Result<Option<String>, LaunchError> {
        if let Some(address) = self.text("GRADWIRE_RENDEZVOUS") {
            return match address::check(&address) {
                Ok(_) => Ok(Some(address)),
                Err(_) => Err(LaunchError::Value {
                    variable: "GRADWIRE_RENDEZVOUS",
                    value: address,
                    expected: "host:port with a port above 0",
                }),
            };
        }
        let port = self.port()?;
        if let Some(host) = self.text("MASTER_ADDR") {
            let port = match (port, source) {
                (None, Launcher::Torchrun) => return Err(missing(source, "MASTER_PORT")),
                (port, _) => port.unwrap_or(DEFAULT_PORT),
            };
            return reachable("MASTER_ADDR", host, port).map(Some);
        }
        let port = port.unwrap_or(DEFAULT_PORT);
        match source {
            Launcher::Torchrun => Err(missing(source, "MASTER_ADDR")),
            Launcher::Slurm => self.slurm_host(port),
            Launcher::OpenMpi | Launcher::Kubernetes => Ok(None),
        }
    }

    fn port(&self) -> Result<Option<u16>, LaunchError> {
        let Some(value) = self.text("MASTER_PORT") else { return Ok(None) };
        match value.parse() {
            Ok(port @ 1..) => Ok(Some(port)),
            _ => {
                Err(LaunchError::Value { variable: "MASTER_PORT", value, expected: "a port from 1 to 65535" })
            }
        }
    }

    fn slurm_host(&self, port: u16) -> Result<Option<String>, LaunchError> {
        for variable in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
            if let Some(value) = self.text(variable) {
                return match first_host(&value) {
                    Some(host) => reachable(variable, host, port).map(Some),
                    None => {
                        Err(LaunchError::Value { variable, value, expected: "a list such as gpu[03-07,9]" })
                    }
                };
            }
        }
        let variable = "SLURM_LAUNCH_NODE_IPADDR";
        self.text(variable).map(|host| reachable(variable, host, port)).transpose()
    }
}

fn missing(source_name: Launcher, variable: &'static str) -> LaunchError {
    LaunchError::Missing { source_name, variable }
}

/// The address of `host`, which `variable` says.
fn reachable(variable: &'static str, host: String, port: u16) -> Result<String, LaunchError> {
    let address = join(&host, port);
    match address::check(&address) {
        Ok(_) => Ok(address),
        Err(_) => Err(LaunchError::Value { variable, value: host, expected: "a host name or an IP address" }),
    }
}

fn join(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn launch(environment: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        launch_beside(Known::default(), environment)
    }

    fn launch_beside(known: Known, environment: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        Launch::from_environment(known, |name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn found(environment: &[(&str, &str)]) -> (u32, u32, Option<String>, Launcher) {
        let Launch { rank, world_size, rendezvous, source } = launch(environment).unwrap().unwrap();
        (rank, world_size, rendezvous, source)
    }

    fn error(environment: &[(&str, &str)]) -> String {
        launch(environment).unwrap_err().to_string()
    }

    const TORCHRUN: [(&str, &str); 4] =
        [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn each_launcher_is_read_and_the_first_in_order_counts() {
        assert_eq!(launch(&[]), Ok(None));
        assert_eq!(launch(&[("RANK", ""), ("MASTER_ADDR", "a")]), Ok(None), "nothing but an address");
        let torchrun = (3, 8, Some("10.0.0.1:29500".into()), Launcher::Torchrun);
        assert_eq!(found(&TORCHRUN), torchrun);
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "gpu[03-07,9]")];
        assert_eq!(found(&[&TORCHRUN[..], &slurm].concat()), torchrun);
        assert_eq!(found(&slurm), (1, 4, Some("gpu03:29400".into()), Launcher::Slurm));
        let step = [&slurm[..], &[("SLURM_STEP_NODELIST", "b2,c"), ("MASTER_PORT", "7")]].concat();
        assert_eq!(found(&step), (1, 4, Some("b2:7".into()), Launcher::Slurm));
        let ip = [&slurm[..2], &[("SLURM_LAUNCH_NODE_IPADDR", "fe80::1")]].concat();
        assert_eq!(found(&ip), (1, 4, Some("[fe80::1]:29400".into()), Launcher::Slurm));
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(found(&mpi), (0, 2, None, Launcher::OpenMpi));
        let address = [&mpi[..], &[("MASTER_ADDR", "head")]].concat();
        assert_eq!(found(&address), (0, 2, Some("head:29400".into()), Launcher::OpenMpi));
        let job = [("JOB_COMPLETION_INDEX", "5"), ("WORLD_SIZE", "6"), ("MASTER_ADDR", "job-0.svc")];
        assert_eq!(found(&job), (5, 6, Some("job-0.svc:29400".into()), Launcher::Kubernetes));
        let own = [&job[..], &[("GRADWIRE_WORLD_SIZE", "7"), ("GRADWIRE_RENDEZVOUS", "a:1")]].concat();
        assert_eq!(found(&own), (5, 7, Some("a:1".into()), Launcher::Kubernetes));
    }

    #[test]
    fn what_is_known_is_not_asked_for_and_wins() {
        let beside = |known, environment: &[(&str, &str)]| {
            launch_beside(known, environment)
                .map(|launch| launch.map(|it| (it.rank, it.world_size, it.rendezvous)))
                .map_err(|error| error.to_string())
        };
        let known = |rank, world_size, rendezvous| Known { rank, world_size, rendezvous };
        let half = [("RANK", "0"), ("WORLD_SIZE", "2")];
        assert_eq!(beside(known(None, None, true), &half), Ok(Some((0, 2, None))));
        assert_eq!(beside(known(None, Some(1), false), &half), Ok(Some((0, 1, None))), "a world of one");
        let said = beside(known(Some(1), None, false), &half).unwrap_err();
        assert!(said.ends_with("but MASTER_ADDR is not set"), "{said}");
        let job = [("JOB_COMPLETION_INDEX", "3"), ("MASTER_PORT", "none")];
        assert_eq!(beside(known(None, Some(4), true), &job), Ok(Some((3, 4, None))));
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "gpu[")];
        assert_eq!(beside(known(None, None, true), &slurm), Ok(Some((1, 4, None))));
        let wild = [("RANK", "x"), ("WORLD_SIZE", "y"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "7")];
        assert_eq!(beside(known(Some(1), Some(2), false), &wild), Ok(Some((1, 2, Some("a:7".into())))));
        let said = beside(known(Some(2), Some(2), true), &wild).unwrap_err();
        assert_eq!(said, "torchrun: rank 2 is not below the world size 2");
        assert_eq!(beside(known(Some(0), Some(2), true), &[]), Ok(None), "no launcher");
    }

    #[test]
    fn what_is_missing_or_unusable_is_named_with_its_value() {
        for (left_out, name) in [(0, "RANK"), (1, "WORLD_SIZE"), (2, "MASTER_ADDR"), (3, "MASTER_PORT")] {
            let mut environment = TORCHRUN.to_vec();
            environment.remove(left_out);
            assert_eq!(error(&environment), format!("torchrun started this process, but {name} is not set"));
        }
        let said = error(&[("SLURM_PROCID", "0")]);
        assert_eq!(said, "SLURM started this process, but SLURM_NTASKS is not set");
        let said = error(&[("OMPI_COMM_WORLD_SIZE", "2")]);
        assert_eq!(said, "Open MPI started this process, but OMPI_COMM_WORLD_RANK is not set");
        let said = error(&[("JOB_COMPLETION_INDEX", "0")]);
        assert!(said.ends_with("but GRADWIRE_WORLD_SIZE or WORLD_SIZE is not set"), "{said}");
        let with = |index: usize, value| {
            let mut environment = TORCHRUN;
            environment[index].1 = value;
            error(&environment)
        };
        assert_eq!(with(0, "-1"), r#"RANK is "-1", a number from 0 to 4294967295 is expected"#);
        assert_eq!(with(0, "8"), "torchrun: rank 8 is not below the world size 8");
        assert_eq!(with(1, "0"), "torchrun: world size 0 is not in 1..=4096");
        assert_eq!(with(3, "65536"), r#"MASTER_PORT is "65536", a port from 1 to 65535 is expected"#);
        assert_eq!(with(2, "a b"), r#"MASTER_ADDR is "a b", a host name or an IP address is expected"#);
        let ip = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_LAUNCH_NODE_IPADDR", "fe80::x")];
        let said = error(&ip);
        assert_eq!(
            said,
            r#"SLURM_LAUNCH_NODE_IPADDR is "fe80::x", a host name or an IP address is expected"#
        );
        let nodes = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "gpu[")];
        assert_eq!(error(&nodes), r#"SLURM_JOB_NODELIST is "gpu[", a list such as gpu[03-07,9] is expected"#);
    }
}
