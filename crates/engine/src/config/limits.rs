//! What an arena takes at most and at least.

use folioswap_core::{Clusters, Order};

/// The smallest budget of an arena.
pub const MIN_MEMORY: u64 = 16 << 20;

/// The largest budget of an arena: the records of its frames have 60 GiB of addresses.
pub const MAX_MEMORY: u64 = 12 << 40;

/// The most bytes of one device: 16 TiB. A larger one is refused ([`Error::SwapTooLarge`](crate::Error::SwapTooLarge)).
pub const MAX_DEVICE_BYTES: u64 = Clusters::MAX_SLOTS * Order::PAGE.bytes() as u64;

/// Most swap devices of an arena.
pub const MAX_DEVICES: usize = 32;
