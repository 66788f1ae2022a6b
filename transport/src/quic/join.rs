//! From a bound socket to a full mesh: higher ranks dial lower ranks, everyone waits for everyone.
//!
//! With [`Rendezvous::Peers`] all addresses are known. With [`Rendezvous::Address`] everyone first dials rank 0,
//! which, once all are there, tells each where the others are. Each connection is dialed again until the
//! deadline, because peers start at different times.

mod after;
mod dial;
mod listen;
mod turned;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

use super::config::{Config, Rendezvous};
use super::error::JoinError;
use super::greet::{self, Greeted, Unheard};
use super::hello::Hello;
use super::members::Members;
use super::seats::Seats;
use super::table::{News, TableError};
use crate::error::Abort;
use crate::world::{Rank, World};
use dial::{Address, dial};
use listen::listen;
use turned::Turned;

/// How many of those that rank 0 waits for it names: enough for an error, and no flood in a large world.
const WAITING: usize = 64;

/// How often rank 0 says whom it waits for.
const PROGRESS: Duration = Duration::from_millis(500);

/// How often [`Config::waiting`] is told whom this node waits for.
const WAITING_EVERY: Duration = Duration::from_secs(5);

/// What the tasks of a join tell its coordinator.
enum Note {
    Up(Greeted),
    Down(Rank, Connection, ConnectionError),
    Fatal(JoinError),
    /// Not fatal yet, but the better reason at the deadline.
    Trouble(JoinError),
    /// What came of an attempt to dial a rank that answered.
    Heard(Rank, String),
    /// A late caller knows that joining has failed.
    Told(Rank),
    Waiting(Vec<Rank>),
    Table(Vec<SocketAddr>),
}

/// One connection per peer, indexed by rank.
pub(super) async fn join(
    endpoint: Endpoint,
    config: Config,
    hello: Hello,
) -> Result<Vec<Option<Connection>>, JoinError> {
    let size = config.world.size() as usize;
    let (notes, inbox) = unbounded_channel();
    let mut join = Join {
        common: Arc::new(Common {
            endpoint: endpoint.clone(),
            hello,
            members: config.members(),
            world: config.world,
            silence: config.silence,
            seats: Seats::new(size),
            turned: Mutex::default(),
            over: OnceLock::new(),
        }),
        connections: vec![None; size],
        greetings: (0..size).map(|_| None).collect(),
        waiting: Vec::new(),
        placed: false,
        heard: None,
        trouble: None,
        config,
        notes,
        inbox,
        tasks: JoinSet::new(),
    };
    let result = join.run().await;
    if let Err(error) = &result {
        tracing::debug!(%error, "joining failed");
        join.farewell(error, &as_abort(error)).await;
    }
    join.common.turned().report();
    if result.is_ok() && join.config.world.rank() == Rank(0) {
        // Ends with the endpoint's thread.
        tokio::spawn(after::turn_away(endpoint, join.config.world.epoch()));
    } else {
        // From here on nobody new is answered.
        endpoint.set_server_config(None);
    }
    result.map(|()| join.connections)
}

struct Common {
    endpoint: Endpoint,
    hello: Hello,
    members: Members,
    world: World,
    silence: Duration,
    seats: Seats,
    turned: Mutex<Turned>,
    /// Why joining failed, once it has.
    over: OnceLock<Abort>,
}

impl Common {
    fn turned(&self) -> MutexGuard<'_, Turned> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Join {
    common: Arc<Common>,
    config: Config,
    connections: Vec<Option<Connection>>,
    /// The streams of the hellos, on which rank 0 sends its table.
    greetings: Vec<Option<(SendStream, RecvStream)>>,
    /// Whom rank 0 waits for, as far as it said.
    waiting: Vec<Rank>,
    /// Whether rank 0 has said where everyone is.
    placed: bool,
    /// The last that was heard from rank 0, if it is not connected.
    heard: Option<String>,
    trouble: Option<JoinError>,
    notes: UnboundedSender<Note>,
    inbox: UnboundedReceiver<Note>,
    /// Ends with this.
    tasks: JoinSet<()>,
}

impl Join {
    async fn run(&mut self) -> Result<(), JoinError> {
        let world = self.config.world;
        let own = world.rank();
        self.tasks.spawn(listen(self.common.clone(), self.notes.clone()));
        let known: Vec<String> = match &self.config.rendezvous {
            Rendezvous::Address(address) => vec![address.clone()],
            Rendezvous::Peers(peers) => peers.addresses().to_vec(),
        };
        for (rank, address) in world.ranks().take_while(|rank| *rank < own).zip(known) {
            self.dial(rank, Address::Name(address));
        }
        let began = Instant::now();
        let deadline = began + self.config.join;
        let mut waiting = interval_at(began + WAITING_EVERY, WAITING_EVERY);
        waiting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Vec::new();
        // One that was given up for a newer process is missing as soon as that is noticed.
        while self.missing().next().is_some() || !self.common.seats.settle(&self.connections) {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Err(self.late()),
                Some(note) = self.inbox.recv() => self.take(note)?,
                _ = waiting.tick() => {
                    if let Some(waiting) = &self.config.waiting {
                        waiting.tell(&self.waited_for(), began.elapsed());
                    }
                }
                _ = progress.tick(), if self.leads() => {
                    let missing: Vec<_> = self.missing().take(WAITING).collect();
                    if missing != told {
                        self.tell(&News::Waiting(missing.clone())).await;
                        told = missing;
                    }
                }
            }
        }
        if self.leads() {
            let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
            let address = |it: &Option<Connection>| it.as_ref().map_or(unknown, Connection::remote_address);
            self.tell(&News::Table(self.connections.iter().map(address).collect())).await;
        }
        Ok(())
    }

    /// Whether this node tells the others where everyone is.
    fn leads(&self) -> bool {
        self.config.world.rank() == Rank(0) && matches!(self.config.rendezvous, Rendezvous::Address(_))
    }

    fn holds(&self, rank: Rank, connection: &Connection) -> bool {
        let held = self.connections[rank.index()].as_ref();
        held.is_some_and(|held| held.stable_id() == connection.stable_id())
    }

    fn missing(&self) -> impl Iterator<Item = Rank> {
        self.config.world.peers().filter(|rank| self.connections[rank.index()].is_none())
    }

    /// Whom the world waits for, as far as this node knows.
    fn waited_for(&self) -> Vec<Rank> {
        let follows = matches!(self.config.rendezvous, Rendezvous::Address(_)) && !self.leads();
        if follows && self.connections[0].is_none() {
            vec![Rank(0)]
        } else if follows && !self.placed {
            self.waiting.clone()
        } else {
            self.missing().collect()
        }
    }

    fn take(&mut self, note: Note) -> Result<(), JoinError> {
        match note {
            Note::Up(Greeted { rank, connection, send, receive }) => {
                self.watch(rank, connection.clone());
                self.connections[rank.index()] = Some(connection);
                if rank == Rank(0) && matches!(self.config.rendezvous, Rendezvous::Address(_)) {
                    self.hear(receive);
                } else {
                    self.greetings[rank.index()] = Some((send, receive));
                }
                tracing::debug!(%rank, "connected");
            }
            // A peer may have come back before its old connection was seen to end.
            Note::Down(rank, old, _) if !self.holds(rank, &old) => {}
            Note::Down(rank, _, error) => {
                self.connections[rank.index()] = None;
                self.greetings[rank.index()] = None;
                match greet::ended(&error, rank, &self.common.hello) {
                    Unheard::Fatal(error) => return Err(error),
                    Unheard::Duplicate | Unheard::Dropped(_) | Unheard::Silent(_) => {
                        tracing::warn!(%rank, %error, "lost while joining");
                    }
                }
                if rank == Rank(0) {
                    self.heard = Some(error.to_string());
                }
                // A lower rank that comes back must be dialed; a higher one dials.
                let address = match &self.config.rendezvous {
                    Rendezvous::Peers(peers) => peers.addresses().get(rank.index()).cloned(),
                    Rendezvous::Address(address) if rank == Rank(0) => Some(address.clone()),
                    Rendezvous::Address(_) => None,
                };
                if let Some(address) = address.filter(|_| rank < self.config.world.rank()) {
                    self.dial(rank, Address::Name(address));
                }
            }
            Note::Fatal(error) => return Err(error),
            Note::Trouble(error) => self.trouble = Some(error),
            Note::Heard(Rank(0), reason) => self.heard = Some(reason),
            // Told: only once joining is over.
            Note::Heard(..) | Note::Told(_) => {}
            Note::Waiting(ranks) => self.waiting = ranks,
            Note::Table(addresses) => {
                self.waiting.clear();
                self.placed = true;
                let own = self.config.world.rank();
                let lower = self.config.world.ranks().zip(addresses).skip(1);
                for (rank, address) in lower.take_while(|(rank, _)| *rank < own) {
                    if self.connections[rank.index()].is_none() {
                        self.dial(rank, Address::Known(address));
                    }
                }
            }
        }
        Ok(())
    }

    fn dial(&mut self, rank: Rank, address: Address) {
        self.tasks.spawn(dial(self.common.clone(), rank, address, self.notes.clone()));
    }

    fn watch(&mut self, rank: Rank, connection: Connection) {
        let notes = self.notes.clone();
        self.tasks.spawn(async move {
            let error = connection.closed().await;
            let _ = notes.send(Note::Down(rank, connection, error));
        });
    }

    /// Reads what rank 0 says until it has said where everyone is.
    fn hear(&mut self, mut stream: RecvStream) {
        let (notes, world) = (self.notes.clone(), self.config.world);
        self.tasks.spawn(async move {
            loop {
                let note = match News::read(&mut stream, &world).await {
                    Ok(News::Waiting(ranks)) => Note::Waiting(ranks),
                    Ok(News::Table(addresses)) => {
                        let _ = notes.send(Note::Table(addresses));
                        return;
                    }
                    // The connection is watched; anything else is rank 0 breaking the protocol.
                    Err(TableError::Read(error)) => {
                        tracing::debug!(%error, "rank 0 says no more");
                        return;
                    }
                    Err(error) => {
                        let reason = format!("its {error}");
                        Note::Fatal(JoinError::Refused { rank: Rank(0), reason })
                    }
                };
                if notes.send(note).is_err() {
                    return;
                }
            }
        });
    }

    async fn tell(&mut self, news: &News) {
        let bytes = news.encode();
        for (send, _) in self.greetings.iter_mut().flatten() {
            // At most 100 KiB, for which there is always credit; a lost connection is noticed by its watch.
            let _ = timeout(PROGRESS, send.write_all(&bytes)).await;
        }
    }

    fn late(&mut self) -> JoinError {
        let waited = self.config.join;
        let missing: Vec<_> = self.missing().collect();
        if let Some(trouble) = self.trouble.take().filter(|it| it.culprit() == missing.first().copied()) {
            return trouble;
        }
        let hint = self.common.turned().latest();
        let own = self.config.world.rank();
        match &self.config.rendezvous {
            Rendezvous::Address(address) if own != Rank(0) => {
                if self.connections[0].is_none() {
                    let hint =
                        self.heard.take().map(|last| format!("the last that was heard from it: {last}"));
                    return JoinError::Rendezvous { address: address.clone(), waited, hint };
                }
                if !self.waiting.is_empty() {
                    return JoinError::Missing { missing: std::mem::take(&mut self.waiting), waited, hint };
                }
            }
            _ => {}
        }
        JoinError::Missing { missing, waited, hint }
    }
}

/// What the others are told when this node fails to join.
fn as_abort(error: &JoinError) -> Abort {
    let text = error.to_string();
    match error.culprit() {
        Some(rank) => {
            let prefix = format!("rank {rank} ");
            match text.strip_prefix(&prefix) {
                Some(reason) => Abort { culprit: Some(rank), reason: reason.to_owned() },
                None => Abort { culprit: None, reason: text },
            }
        }
        None => Abort { culprit: None, reason: text },
    }
}
