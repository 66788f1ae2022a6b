//! All-to-all, all-gather and barrier as state machines without socket, clock or thread.
