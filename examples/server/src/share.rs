//! Limits that clients share. No client can use up a limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{ServeError, Served};

/// A client, by its address. In IPv6 a single client has a whole network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The code of the error if there is no more of it.
    pub code: &'static str,
    /// What is counted, in messages.
    pub unit: &'static str,
}

/// A limit, and who has how much of it.
///
/// A client that has `percent` of the limit while nobody else has any gets no more. With several greedy clients each
/// gets less, so that some is always left for the next one: switches share their buffers by this rule, which is known
/// as dynamic thresholds.
#[derive(Debug)]
pub struct Limit {
    resource: Resource,
    most: u64,
    percent: u8,
    taken: Mutex<Taken>,
}

/// What a client has of a limit, until it is dropped.
#[derive(Debug)]
pub struct Share {
    limit: Arc<Limit>,
    peer: Peer,
    amount: u64,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_peer: HashMap<Peer, u64>,
}

impl Resource {
    /// Connections.
    pub const CONNECTIONS: Self = Self { code: "connections_full", unit: "connections" };
    /// Requests that wait for a device.
    pub const QUEUE: Self = Self { code: "queue_full", unit: "places in the queue" };
    /// Bytes of request bodies.
    pub const BODIES: Self = Self { code: "bodies_full", unit: "bytes for bodies" };
    /// Bytes of replies that are computed or sent.
    pub const REPLIES: Self = Self { code: "replies_full", unit: "bytes for replies" };
    /// Estimated microseconds of accepted requests that are not done.
    pub const WORK: Self = Self { code: "work_full", unit: "microseconds of estimated work" };
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into()),
            v4 => Self(v4),
        }
    }
}

impl Limit {
    /// A limit of `most`. A client gets at most `percent`.
    #[must_use]
    pub fn new(resource: Resource, most: u64, percent: u8) -> Arc<Self> {
        Arc::new(Self { resource, most, percent: percent.min(100), taken: Mutex::default() })
    }

    /// Takes `amount` for a client.
    ///
    /// # Errors
    ///
    /// [`ServeError::Full`] with the amounts.
    pub fn take(self: &Arc<Self>, peer: Peer, amount: u64) -> Served<Share> {
        let mut share = Share { limit: Arc::clone(self), peer, amount: 0 };
        share.grow(amount)?;
        Ok(share)
    }

    /// What all clients have together.
    pub fn taken(&self) -> u64 {
        self.taken.lock().all
    }
}

impl Share {
    /// Takes more for the same client.
    ///
    /// # Errors
    ///
    /// As [`Limit::take`].
    pub fn grow(&mut self, more: u64) -> Served<()> {
        if more == 0 {
            return Ok(());
        }
        let Limit { resource, most: limit, percent, .. } = *self.limit;
        let mut taken = self.limit.taken.lock();
        let own = taken.by_peer.get(&self.peer).copied().unwrap_or(0);
        let (all, own_then) = (taken.all.saturating_add(more), own.saturating_add(more));
        let leaves_enough = |free: u64| {
            let (own, others) = (u128::from(own_then), u128::from(100 - percent));
            own * others <= u128::from(free) * u128::from(percent)
        };
        if !limit.checked_sub(all).is_some_and(leaves_enough) {
            return Err(ServeError::Full { resource, limit, taken: taken.all, own });
        }
        taken.all = all;
        taken.by_peer.insert(self.peer, own_then);
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.limit.taken.lock();
        taken.all = taken.all.saturating_sub(self.amount);
        if let Some(own) = taken.by_peer.get_mut(&self.peer) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                taken.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn every_client_leaves_room_for_the_next() {
        let limit = Limit::new(Resource::QUEUE, 120, 50);
        let mut shares = Vec::new();
        // A client alone gets a half; two together leave a third, three a quarter.
        for (address, expected) in [("10.0.0.1", 60), ("10.0.0.2", 30), ("10.0.0.3", 15)] {
            let taken = std::iter::from_fn(|| limit.take(peer(address), 1).ok());
            let taken: Vec<Share> = taken.collect();
            assert_eq!(taken.len(), expected, "{address}");
            shares.push(taken);
        }
        let full = limit.take(peer("10.0.0.1"), 1).expect_err("it has its share");
        let expected =
            ServeError::Full { resource: Resource::QUEUE, limit: 120, taken: 105, own: 60 };
        assert_eq!(full, expected);
        drop(shares);
        assert_eq!(limit.taken(), 0);
        assert!(limit.taken.lock().by_peer.is_empty());
    }

    #[test]
    fn a_client_may_have_all_of_it_if_the_operator_says_so() {
        let limit = Limit::new(Resource::BODIES, 10, 100);
        let mut share = limit.take(peer("10.0.0.1"), 4).expect("free");
        share.grow(6).expect("free");
        share.grow(1).expect_err("full");
        share.grow(0).expect("nothing more");
        drop(share);
        limit.take(peer("10.0.0.1"), u64::MAX).expect_err("too much");
        assert_eq!(limit.taken(), 0);
    }

    #[test]
    fn addresses_of_one_client_are_one_peer() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::2:3"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
    }
}
