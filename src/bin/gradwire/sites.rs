//! Who is in a site with whom, and what gradients travel as there.

use gradwire::codec::Codec;
use gradwire::optim;
use gradwire::sync::{Config, Scheme, hierarchy};

use crate::args::CODEC;
use crate::failure::Failure;

/// The longest list of sites that is compared, and shown, as it is.
const MOST_SHOWN: usize = 128;

/// Options of a fleet in sites, the same on every rank.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SiteArgs {
    /// Ranks of each site, in order of rank, as in `2,2`: inside a site gradients travel as --inner-codec, between sites in
    /// --codec, each byte once per pair of sites [default: no sites].
    #[arg(long, value_name = "RANKS,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    sites: Vec<u32>,
    /// What gradients travel as inside a site: f32, f16, bf16, fp8, block8 or block4 [default: bf16].
    #[arg(long, value_name = CODEC)]
    inner_codec: Option<Codec>,
}

/// [`SiteArgs`], checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sites {
    /// By rank; empty where there are none.
    of_rank: Vec<u32>,
    inner: Codec,
}

impl SiteArgs {
    /// For `world_size` ranks; `peers` are the sites of a peers file, if it has some.
    pub(crate) fn sites(&self, world_size: u32, peers: &[u32]) -> Result<Sites, Failure> {
        let ranks: u64 = self.sites.iter().map(|ranks| u64::from(*ranks)).sum();
        if !self.sites.is_empty() && ranks != u64::from(world_size) {
            return Err(Failure::Usage(format!("--sites are of {ranks} ranks, there are {world_size}")));
        }
        if !self.sites.is_empty() && !peers.is_empty() {
            return Err(Failure::Usage(
                "--sites and a peers file with sites: only one of them can be right".into(),
            ));
        }
        let sized = (0..).zip(&self.sites);
        let mut of_rank: Vec<u32> = sized.flat_map(|(site, ranks)| (0..*ranks).map(move |_| site)).collect();
        of_rank.extend(peers);
        if self.inner_codec.is_some() && of_rank.is_empty() {
            return Err(Failure::Usage("--inner-codec belongs to sites, and there are none".into()));
        }
        Ok(Sites { of_rank, inner: self.inner_codec.unwrap_or(Codec::Bf16) })
    }
}

impl Sites {
    /// Refuses `schemes` that do not go with sites, and an inner codec that is none.
    pub(crate) fn check(&self, schemes: &[Scheme], world_size: u32) -> Result<(), Failure> {
        schemes.iter().try_for_each(|scheme| {
            let mut config = Config::new(*scheme, optim::Config::Sgd(optim::Sgd::default()));
            self.apply(&mut config);
            hierarchy::check(&config, world_size).map_err(|error| Failure::Usage(error.to_string()))
        })
    }

    pub(crate) fn apply(&self, config: &mut Config) {
        config.sites.clone_from(&self.of_rank);
        config.inner = self.inner;
    }

    /// Ranks of each site, of sites that follow each other as `--sites` says.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.of_rank.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
    }

    /// What travels inside a site; `None` where there is none.
    pub(crate) fn inner(&self) -> Option<Codec> {
        (!self.of_rank.is_empty()).then_some(self.inner)
    }

    /// The options that make another process arrive here.
    pub(crate) fn to_flags(&self) -> Vec<String> {
        let Some(inner) = self.inner() else { return Vec::new() };
        let sizes: Vec<String> = self.sizes().iter().map(ToString::to_string).collect();
        vec![format!("--sites={}", sizes.join(",")), format!("--inner-codec={inner}")]
    }

    /// What ranks compare, and a human can read; `None` where there are none.
    pub(crate) fn to_text(&self) -> Option<String> {
        let inner = self.inner()?;
        let numbers: Vec<String> = self.of_rank.iter().map(ToString::to_string).collect();
        let mut list = numbers.join(",");
        if list.len() > MOST_SHOWN {
            list = blake3::hash(list.as_bytes()).to_hex().to_string();
        }
        Some(format!("{list} with {inner} inside"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        sites: SiteArgs,
    }

    fn sites(args: &[&str], world_size: u32, peers: &[u32]) -> Result<Sites, String> {
        let args = ["x"].iter().chain(args);
        Line::parse_from(args).sites.sites(world_size, peers).map_err(|error| error.to_string())
    }

    #[test]
    fn sites_come_from_sizes_or_from_a_peers_file() {
        let sized = sites(&["--sites=2,1", "--inner-codec=block8"], 3, &[]).unwrap();
        assert_eq!((&sized.of_rank[..], sized.inner.id().name()), (&[0, 0, 1][..], "block8"));
        let flags = sized.to_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        assert_eq!(sites(&flags, 3, &[]).unwrap(), sized);
        let named = sites(&[], 3, &[0, 1, 0]).unwrap();
        assert_eq!(named.to_text().unwrap(), "0,1,0 with bf16 inside");
        assert_eq!(sites(&[], 3, &[]).unwrap().to_text(), None);
        let long = sites(&["--sites=2000,2096"], 4096, &[]).unwrap().to_text().unwrap();
        assert!(long.ends_with(" with bf16 inside") && long.len() < 200, "{long}");
    }

    #[test]
    fn sites_that_cannot_be_are_refused_with_both_numbers_or_names() {
        let error = |args: &[&str], peers: &[u32]| sites(args, 3, peers).unwrap_err();
        assert_eq!(error(&["--sites=2,2"], &[]), "--sites are of 4 ranks, there are 3");
        assert!(error(&["--sites=2,1"], &[0, 0, 1]).starts_with("--sites and a peers file with sites"));
        assert_eq!(error(&["--inner-codec=f16"], &[]), "--inner-codec belongs to sites, and there are none");
        let powersgd: Scheme = "powersgd".parse().unwrap();
        let said = sites(&["--sites=2,1"], 3, &[]).unwrap().check(&[powersgd], 3).unwrap_err().to_string();
        assert!(said.contains("powersgd in 2 sites"), "{said}");
    }
}
