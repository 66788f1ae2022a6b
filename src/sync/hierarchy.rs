//! Sites: a fast network inside each, a slow one between them, which every byte crosses once.
//!
//! # What
//!
//! N ranks stand in G sites ([`Config::sites`](super::Config::sites)), of S ranks each or of unequal sizes. A step has four
//! rounds, each an all-to-all over all ranks:
//!
//! 1. *site mean*: inside a site, the gradient is cut into one slice per member; member j gets the mean of slice j over
//!    the site, weighted by samples, from packets of the [inner codec](super::Config::inner). A site of one rank has
//!    its gradient as its mean.
//! 2. *exchange*: member j encodes its slice in the run's codec, whose state for slice j is kept there alone, and cuts
//!    the packet at the borders of the shards, which are those of the flat exchange. An owner puts the pieces of each site
//!    together, and averages one packet per site, weighted by the samples of the site.
//! 3. *parameters*: after the optimizer, an owner sends its shard to the members of its site, and to one member of every
//!    other site.
//! 4. *relay*: that one sends it to the other members of its site. Which one it is goes round, so that all members relay
//!    alike.
//!
//! The codec's scale, where it is [agreed on](super::Scale::Auto), is that of the sites' means, between rounds 1 and 2. A site
//! of several ranks none of which has a sample sends zeros, of weight 0. Sites that each have one rank, and a single site,
//! are the flat exchange: the inner codec is not used.
//!
//! Optimizers that momenta travel to work as in the flat exchange; what they ask to be exact travels as f32 inside a site,
//! too. [PowerSGD](super::powersgd) is refused, as its factors go round through means of all ranks.
//!
//! # Wire layout
//!
//! Rounds 1 and 2 send [packets](super::packet). Each of round 1 is the sender's for one member's slice, with its count of
//! elements that are not finite, and its clamped codes; in round 2 every rank sends one to every rank, so that all learn all
//! counts: where slice and shard have nothing in common, the header alone. Clamped codes are then those of both
//! codecs. Rounds 3 and 4 are bare little-endian f32; in round 4 the relayed shards follow each other in the order of
//! their owners. Slices start on units of both codecs.
//!
//! # Exactness
//!
//! Every rank has the same bits of the parameters. The result is the mean over sites, in the run's codec, of means within
//! sites, in the inner one, each element computed once: it depends on who is in a site with whom, not on where slices begin.
//!
//! # Price
//!
//! Bytes that the S ranks of a site send together in a step, of n parameters; q and p are the bytes of an element in the run's
//! codec and in the inner one, and head and tail of a packet have 32 bytes.
//!
//! | round | inside the site | to other sites |
//! |---|---|---|
//! | 1 | p n (S-1), S (S-1) headers | |
//! | 2 | at most q n S/N, S (S-1) headers | q n (N-S)/N, S (N-S) headers |
//! | 3 | 4 n S/N (S-1) | 4 n S/N (G-1) |
//! | 4 | 4 n (N-S)/N (S-1) | |
//!
//! So from a site of S ranks to one of T go q n T/N + 4 n S/N bytes and S T headers, where the flat exchange sends
//! S T (q + 4) n/N and as many headers. In round 2 a member sends what of its slice others own: all members send alike to
//! other sites if ranks go round the sites (0, 1, 0, 1), and the last ones more than the first if the ranks of the first site
//! come first.
//!
//! Not in it: whoever has nothing to send to a rank in a round sends an empty message, one frame of 56 bytes, as every rank
//! must hear of every other one before the next round. That makes S T frames per round and direction, and a step waits for
//! the slow network four times where the flat exchange does twice: sites pay where it lacks bandwidth, not where it is
//! only far.
//!
//! Memory: the packet of the whole gradient in the inner codec and one received slice per member, but only a slice of the
//! run codec's packet and state.

mod exchange;
mod gather;
mod sites;
mod within;

pub(super) use exchange::Hierarchy;
pub(super) use gather::gather;
pub(super) use sites::{Sites, all_apart, fingerprint};

use super::{Config, Scheme, SyncError};
use crate::codec::{Codec, CodecId};

/// Sites that the caller can't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another number of ranks than in the world.
    #[error("caller's sites are of {given} ranks, the world has {size}")]
    Ranks {
        /// Ranks that a site is named of.
        given: usize,
        /// Ranks in the world.
        size: u32,
    },
    /// An inner codec that remembers something, or has one scale for the whole gradient.
    #[error(
        "caller's inner codec is {inner}, inside a site only codecs without state and scale are used, such as bf16"
    )]
    Inner {
        /// Which one.
        inner: CodecId,
    },
    /// A scheme that has no packets to average within sites.
    #[error("caller's scheme is powersgd in {sites} sites, sites need a codec")]
    PowerSgd {
        /// Number of sites.
        sites: usize,
    },
}

/// Whether a caller can have the sites of `config` in a world of `size` ranks.
///
/// # Errors
///
/// [`ConfigError`], and an inner codec with parameters out of range. What is no hierarchy is only counted.
pub fn check(config: &Config, size: u32) -> Result<(), SyncError> {
    let given = config.sites.len();
    if given != 0 && given != size as usize {
        return Err(ConfigError::Ranks { given, size }.into());
    }
    let Some(sites) = Sites::new(&config.sites) else { return Ok(()) };
    if matches!(config.scheme, Scheme::PowerSgd(_)) {
        return Err(ConfigError::PowerSgd { sites: sites.count() }.into());
    }
    config.inner.validate()?;
    if is_inner(&config.inner) { Ok(()) } else { Err(ConfigError::Inner { inner: config.inner.id() }.into()) }
}

fn is_inner(codec: &Codec) -> bool {
    let unit = codec.unit();
    let remembers = unit.state_words > 0 || codec.mean_state_words(1, unit.elements) > 0;
    !remembers && codec.scale_log2().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_a_site_are_the_codecs_that_stand_for_themselves() {
        let inner: Vec<&str> =
            CodecId::ALL.into_iter().filter(|id| is_inner(&Codec::new(*id))).map(CodecId::name).collect();
        assert_eq!(inner, ["f32", "f16", "bf16", "fp8", "block8", "block4"]);
    }
}
