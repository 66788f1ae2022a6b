//! What a mesh has carried so far.

use std::time::Duration;

/// Bytes and frames of one peer, or of all of them, since the mesh was made. What is counted only grows; queue, round-trip
/// time and deadline are those of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Frames handed to the mesh for this peer.
    pub frames_sent: u64,
    /// Frames that came from this peer.
    pub frames_received: u64,
    /// Bytes of the frames sent, headers included.
    pub frame_bytes_sent: u64,
    /// Bytes of the frames received, headers included.
    pub frame_bytes_received: u64,
    /// UDP payload bytes sent at the socket, acknowledgements, handshake and retransmissions included; 0 on
    /// a mesh without sockets.
    pub udp_bytes_sent: u64,
    /// UDP payload bytes received at the socket; 0 on a mesh without sockets.
    pub udp_bytes_received: u64,
    /// Bytes of the sent packets that were taken for lost, and so sent again; 0 on a mesh without sockets.
    pub udp_bytes_lost: u64,
    /// Frames for this peer that wait for room in its connection; 0 on a mesh without sockets.
    pub queue_frames: u64,
    /// Bytes of the frames that wait, headers included.
    pub queue_bytes: u64,
    /// Smoothed round-trip time; zero on a mesh without sockets. Of all peers: the longest.
    pub round_trip: Duration,
    /// How long this peer may make no progress in the next collective, see [`Pace`](crate::collective::Pace); zero where no
    /// [`Communicator`](crate::Communicator) was asked. Of all peers: the longest.
    pub deadline: Duration,
}

/// What a mesh has carried: one entry per rank, the own one zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Indexed by rank.
    pub peers: Vec<PeerStats>,
}

impl Stats {
    /// The sum over all peers.
    #[must_use]
    pub fn total(&self) -> PeerStats {
        self.peers.iter().fold(PeerStats::default(), |sum, peer| PeerStats {
            frames_sent: sum.frames_sent + peer.frames_sent,
            frames_received: sum.frames_received + peer.frames_received,
            frame_bytes_sent: sum.frame_bytes_sent + peer.frame_bytes_sent,
            frame_bytes_received: sum.frame_bytes_received + peer.frame_bytes_received,
            udp_bytes_sent: sum.udp_bytes_sent + peer.udp_bytes_sent,
            udp_bytes_received: sum.udp_bytes_received + peer.udp_bytes_received,
            udp_bytes_lost: sum.udp_bytes_lost + peer.udp_bytes_lost,
            queue_frames: sum.queue_frames + peer.queue_frames,
            queue_bytes: sum.queue_bytes + peer.queue_bytes,
            round_trip: sum.round_trip.max(peer.round_trip),
            deadline: sum.deadline.max(peer.deadline),
        })
    }
}
