//! Discards: the background thread gives the space of emptied clusters back to the file system.
//!
//! Discarding a cluster that is reused soon would be wasted work. So discards begin when more slots are free than used
//! and this has lasted for a while. They end when it is no longer so; a few clusters are discarded at a time.
//!
//! **Locking.** Clusters and devices are looked at inside the fork gate. While the disk works, none of their locks is
//! held: a child could find it held for ever.

use std::time::{Duration, Instant};

use folioswap_sys::signals;

use crate::process::fatal;
use crate::process::wakeup::Gate;
use crate::swap::devices::Devices;

/// How long most of the space must have been free.
const DISCARD_DELAY: Duration = Duration::from_millis(500);

/// Clusters discarded before the thread checks for other work: ext4 on a virtual disk takes 2 to 5 ms per cluster.
const BATCH: usize = 4;

/// State of the thread's discards.
#[derive(Default)]
pub(crate) enum Discards {
    #[default]
    None,
    /// Most of the space has been free since this moment.
    Since(Instant),
    /// It was free for long enough: discards are in progress.
    Giving,
}

pub(crate) enum Next {
    /// Sleep until it is woken.
    Sleep,
    /// The same, but for this long at most.
    SleepFor(Duration),
    /// Continue at once.
    GoOn,
}

impl Discards {
    /// Discards a few clusters if it is time to. For a thread that is outside the fork gate.
    pub fn step(&mut self, devices: &Devices, gate: &Gate) -> Next {
        let are_due = || {
            let _inside = gate.enter(signals::thread_id());
            devices.each().any(|(_, attached)| attached.discards_due())
        };
        match self {
            Discards::Giving if discard(devices, BATCH, gate) => return Next::GoOn,
            Discards::None | Discards::Since(_) if are_due() => {
                let waited = match self {
                    Discards::Since(since) => since.elapsed(),
                    _ => {
                        *self = Discards::Since(Instant::now());
                        Duration::ZERO
                    }
                };
                if waited < DISCARD_DELAY {
                    return Next::SleepFor(DISCARD_DELAY - waited);
                }
                *self = Discards::Giving;
                return Next::GoOn;
            }
            _ => {}
        }
        // All was discarded, or is used again.
        *self = Discards::None;
        Next::Sleep
    }
}

/// Gives up to `most` emptied clusters back on each device that has more of them than clusters in use. `false`: no
/// device has.
fn discard(devices: &Devices, most: usize, gate: &Gate) -> bool {
    let enter = || gate.enter(signals::thread_id());
    let begun: Vec<_> = {
        let _inside = enter();
        let spare = devices.each().filter(|(_, attached)| attached.nr_spare() > 0);
        spare.map(|(id, attached)| (id, attached.begin_discard(most))).collect()
    };
    let any = !begun.is_empty();
    for (id, discard) in begun {
        let failed = discard.carry_out();
        let news = {
            let _inside = enter();
            let news = devices.get(id).and_then(|attached| attached.end_discard(discard, failed));
            devices.availability.freed(id);
            news
        };
        news.inspect(|news| fatal::say(news));
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::tuning::Tuning;
    use crate::device::Device;
    use crate::swap::attached::Frees;
    use folioswap_core::{CpuId, Order};
    use std::io;
    use std::sync::{Mutex, mpsc};

    /// A device that tells of each discard, and waits for an answer.
    struct Asks {
        tell: mpsc::Sender<()>,
        answered: Mutex<mpsc::Receiver<()>>,
    }

    impl Device for Asks {
        fn limit_bytes(&self) -> Option<u64> {
            Some(1 << 30)
        }

        fn discards(&self) -> bool {
            true
        }

        fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
            self.tell.send(()).unwrap();
            self.answered.lock().unwrap().recv().unwrap();
            Ok(())
        }

        fn read(&self, _offset: u64, _bytes: &mut [u8]) -> io::Result<()> {
            unreachable!("nothing is read here")
        }

        fn write(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
            unreachable!("nothing is written here")
        }

        fn name(&self) -> String {
            "asks".into()
        }
    }

    #[test]
    fn no_lock_of_a_device_is_held_while_its_disk_works() {
        let ((tell, told), (answer, answered)) = (mpsc::channel(), mpsc::channel());
        let device: Box<dyn Device> = Box::new(Asks { tell, answered: Mutex::new(answered) });
        let tuning = Tuning { frees: Frees::Synchronous, ..Tuning::default() }; // no thread discards
        let arena = Arena::builder().memory(16 << 20).tuning(tuning).build_on(vec![device]).unwrap();
        let (swap, gate) = (arena.engine().swap(), arena.engine().gate());
        let slots: Vec<_> = (0..30).map(|_| swap.allocate(CpuId::new(0), Order::HUGE).unwrap()).collect();
        slots.into_iter().for_each(|slot| swap.free_slots(slot, Order::HUGE));
        swap.devices().flush();
        std::thread::scope(|scope| {
            let discarding = scope.spawn(|| discard(swap.devices(), BATCH, gate));
            told.recv().unwrap();
            let is_free = swap.devices().entries[0].0.try_write().is_ok();
            let lets_fork = gate.is_empty();
            while !discarding.is_finished() {
                let _ = answer.send(());
                std::thread::yield_now();
            }
            assert!(is_free, "a child would find it locked for ever");
            assert!(lets_fork && discarding.join().unwrap());
        });
    }

    #[test]
    fn clusters_are_looked_at_inside_the_gate() {
        let arena = Arena::builder().memory(16 << 20).build().unwrap();
        let (devices, gate) = (arena.engine().swap().devices(), arena.engine().gate());
        for mut discards in [Discards::None, Discards::Giving] {
            gate.close(signals::thread_id());
            std::thread::scope(|scope| {
                let (tell, told) = mpsc::channel();
                scope.spawn(move || {
                    discards.step(devices, gate);
                    let _ = tell.send(());
                });
                let is_early = told.recv_timeout(Duration::from_millis(200)).is_ok();
                gate.open();
                assert!(!is_early, "a child might find a set of clusters locked for ever");
            });
        }
    }
}
